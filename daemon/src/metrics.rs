//! The metrics page. Families are typed where they are counted; this is what registers and prints them.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Families;

use crate::http::{Body, full};

/// All families of a process.
#[derive(Debug)]
pub struct Registry(Families);

impl Default for Registry {
    fn default() -> Self {
        Self(Families::with_prefix("baton"))
    }
}

impl Registry {
    /// Where families register themselves; their names get the prefix `baton_`.
    pub fn families(&mut self) -> &mut Families {
        &mut self.0
    }

    /// The page in OpenMetrics text.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut page, &self.0);
        page
    }

    /// The page as an HTTP answer.
    pub fn answer(&self) -> Response<Body> {
        let mut response = Response::new(full(self.page()));
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }
}

/// Buckets for durations in seconds, from a millisecond to ten minutes.
pub fn seconds() -> impl Iterator<Item = f64> {
    [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
        120.0, 600.0,
    ]
    .into_iter()
}

/// Counts something as long as it lives: the gauge goes up now and down on drop, on every path.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    /// Counts one more.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

//! Nothing may be left in flight when no request runs.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Run;
use crate::client::{Check, Outcome};
use crate::http;

/// Gauges of the router and the sidecars that must be 0 when no request runs.
const IN_FLIGHT_GAUGES: [&str; 2] = ["baton_router_in_flight", "baton_sidecar_in_flight"];

/// A request whose client has left is cleaned up within this.
const SETTLE_BOUND: Duration = Duration::from_secs(20);

impl Run<'_> {
    /// Every in-flight gauge goes back to 0.
    pub(super) fn in_flight(&self) -> Outcome {
        let mut outcome = Outcome::default();
        for (name, url) in self.cluster.baton_processes() {
            let settled = http::wait_for(
                &format!("in-flight gauges of {name} are 0"),
                SETTLE_BOUND,
                || {
                    let total = in_flight_total(&http::get(&format!("{url}/metrics"), None)?)?;
                    Ok((total == 0.0).then_some(()))
                },
            );
            let detail = settled
                .as_ref()
                .err()
                .map(|error| format!("{error:#}"))
                .unwrap_or_default();
            outcome.checks.push(Check {
                name,
                ok: settled.is_ok(),
                detail,
            });
        }
        outcome
    }
}

/// Sum of all in-flight gauges on a page of metrics; a page without any is an error, not a 0.
fn in_flight_total(metrics: &str) -> Result<f64> {
    let mut values = Vec::new();
    for line in metrics.lines() {
        let family = line.split(['{', ' ']).next().unwrap_or_default();
        if IN_FLIGHT_GAUGES.contains(&family) {
            let value = line.rsplit(' ').next().unwrap_or_default();
            values.push(
                value
                    .parse::<f64>()
                    .with_context(|| format!("not a number: {line}"))?,
            );
        }
    }
    if values.is_empty() {
        bail!("there is no in-flight gauge on the page");
    }
    Ok(values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_gauges_are_summed() {
        let page = "# TYPE baton_sidecar_in_flight gauge\nbaton_sidecar_in_flight{leg=\"prefill\"} 2\n\
                    baton_sidecar_in_flight{leg=\"decode\"} 1\nbaton_requests_total 7\n";
        assert_eq!(in_flight_total(page).ok(), Some(3.0));
        assert!(
            in_flight_total("baton_requests_total 7\n").is_err(),
            "a renamed gauge must not pass for 0"
        );
    }
}

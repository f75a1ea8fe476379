//! The time by which books are kept: seconds since the router started.

use tokio::time::Instant;

/// Seconds since a moment.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock {
    /// Now.
    pub fn now(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

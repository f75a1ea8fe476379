//! What no measurement gives: how much of one thing is worth how much of another.

/// Weights of a cost's parts that no measurement gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// What a token is worth that a request before this one is about to compute.
    pub expected: f64,
    /// What a token is worth that is likely to be cached and not known to be.
    pub likely: f64,
    /// What a cached token costs, of one that is not, if it is below the device's memory.
    pub lower_tier: f64,
    /// What computing a prompt costs each sequence that decodes there, as a share.
    pub interference: f64,
    /// The same where the worker was set apart for decode.
    pub guarded_interference: f64,
    /// What computing a prompt costs those who come after it, as a share, where there is much to do.
    pub crowding: f64,
    /// Seconds of waiting from which on there is much to do.
    pub crowded: f64,
    /// Fixed price of a handoff in seconds: two more legs over HTTP.
    pub handoff: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            expected: 0.95,
            likely: 0.5,
            lower_tier: 0.25,
            interference: 0.1,
            guarded_interference: 0.3,
            crowding: 2.0,
            crowded: 2.0,
            handoff: 0.003,
        }
    }
}

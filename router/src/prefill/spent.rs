//! What prefills cost that were for nothing.

use tokio::time::Instant;

use crate::metrics::Metrics;

/// Why a prefill was for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waste {
    /// Whoever wanted it went away.
    Abandoned,
    /// The prefill itself failed, was cut at its deadline, or stood still.
    Failed,
    /// Nobody decoded it.
    NotDecoded,
    /// Decode had it, but it could not be proven right.
    Withheld,
}

impl Waste {
    /// All causes.
    pub const ALL: [Self; 4] = [
        Self::Abandoned,
        Self::Failed,
        Self::NotDecoded,
        Self::Withheld,
    ];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Abandoned => "abandoned",
            Self::Failed => "failed",
            Self::NotDecoded => "not_decoded",
            Self::Withheld => "withheld",
        }
    }
}

/// A prefill's time in the engine, queue included. Unless it was used, dropping it counts it as wasted.
#[derive(Debug)]
pub struct Spent {
    metrics: Metrics,
    since: Instant,
    seconds: Option<f64>,
    cause: Option<Waste>,
}

impl Spent {
    /// A prefill begins.
    pub fn begin(metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.clone(),
            since: Instant::now(),
            seconds: None,
            cause: Some(Waste::Abandoned),
        }
    }

    /// The engine is done with it.
    pub fn computed(&mut self) {
        self.seconds = Some(self.since.elapsed().as_secs_f64());
    }

    /// It was for nothing, for this reason.
    pub fn wasted(&mut self, cause: Waste) {
        self.cause = Some(cause);
    }

    /// It was not for nothing, or no engine has seen it.
    pub fn used(&mut self) {
        self.cause = None;
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(cause) = self.cause {
            let seconds = self.seconds;
            let seconds = seconds.unwrap_or_else(|| self.since.elapsed().as_secs_f64());
            self.metrics.wasted(cause, seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_daemon::metrics::Registry;

    use super::*;

    fn wasted(of: impl FnOnce(&Metrics)) -> Vec<String> {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        of(&metrics);
        let page = registry.page();
        let lines = page.lines();
        lines
            .filter_map(|line| line.strip_prefix("baton_router_wasted_prefill_seconds_total"))
            .map(str::to_owned)
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_used_or_unseen_is_not_wasted() {
        let lines = wasted(|metrics| Spent::begin(metrics).used());
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_engines_time_counts() {
        let metrics = Metrics::default();
        let mut spent = Spent::begin(&metrics);
        tokio::time::advance(Duration::from_secs(2)).await;
        spent.computed();
        tokio::time::advance(Duration::from_secs(5)).await;
        spent.wasted(Waste::Withheld);
        let lines = wasted(|counted| {
            spent.metrics = counted.clone();
            drop(spent);
        });
        assert_eq!(lines, ["{cause=\"withheld\"} 2.0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefill_that_is_dropped_was_abandoned() {
        let lines = wasted(|metrics| drop(Spent::begin(metrics)));
        assert_eq!(lines, ["{cause=\"abandoned\"} 0.0"]);
    }
}

//! `--reset-uncertain-cache`: an idle engine whose view is uncertain is told to forget its cache, after which both know the
//! same: nothing.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::core::Core;
use crate::engine::Engine;

/// How long a view must have been uncertain. What requests report of reused blocks may make up for most of it.
const UNCERTAIN: Duration = Duration::from_secs(5);

/// How long after one reset another one may follow. An idle engine tells of a reset only with its next request (vLLM 0.32.0),
/// and of the first one amid that request's reports: it takes two, and the second must not come while those are under way.
const AGAIN: Duration = Duration::from_secs(15);

/// Longest the engine may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a view has been uncertain, and when its engine was last told to forget.
#[derive(Debug, Default)]
pub(crate) struct Relearn {
    uncertain_since: Option<Instant>,
    reset_at: Option<Instant>,
}

impl Relearn {
    /// Looks once, about once a second.
    pub(crate) async fn look<E: Engine>(&mut self, core: &Core<E>) {
        if !core.args.reset_uncertain_cache || !core.view.is_uncertain() {
            self.uncertain_since = None;
            return;
        }
        if !self.is_time(Instant::now()) || core.in_flight.count() > 0 {
            return;
        }
        self.reset_at = Some(Instant::now());
        match timeout(PATIENCE, core.engine.reset_cache()).await {
            Ok(Ok(())) => {
                core.metrics.view.resets.inc();
                tracing::info!("the engine's cache was reset, for not all that it held was known");
            }
            Ok(Err(error)) => tracing::warn!(%error, "the engine's cache cannot be reset"),
            Err(_) => tracing::warn!("the engine took too long to reset its cache"),
        }
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let since = *self.uncertain_since.get_or_insert(now);
        let reset_lately = self.reset_at.is_some_and(|at| now - at < AGAIN);
        now - since >= UNCERTAIN && !reset_lately
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_given_time_and_an_engine_as_well() {
        let mut relearn = Relearn::default();
        let start = Instant::now();
        assert!(!relearn.is_time(start));
        assert!(!relearn.is_time(start + UNCERTAIN / 2));
        assert!(relearn.is_time(start + UNCERTAIN));
        relearn.reset_at = Some(start + UNCERTAIN);
        assert!(!relearn.is_time(start + UNCERTAIN + AGAIN / 2));
        assert!(relearn.is_time(start + UNCERTAIN + AGAIN));
        relearn.uncertain_since = None;
        assert!(!relearn.is_time(start + UNCERTAIN + AGAIN));
    }
}

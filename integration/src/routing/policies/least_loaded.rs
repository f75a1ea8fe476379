//! Whoever has least to do.

use super::super::policy::{Arrival, Choice, News, Policy, Seen};
use super::outstanding::Outstanding;
use super::pools;

/// The worker with the fewest outstanding prompt tokens, of each pool. Tokens and not requests, for prompts differ in length
/// by two orders of magnitude.
#[derive(Debug, Default)]
pub struct LeastLoaded {
    outstanding: Outstanding,
}

impl Policy for LeastLoaded {
    fn name(&self) -> &'static str {
        "least_loaded"
    }

    fn choose(&mut self, _now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice {
        let choice = pools(fleet.workers).choose(|pool| self.outstanding.least(pool));
        self.outstanding.chosen(request, choice);
        choice
    }

    fn told(&mut self, _now: f64, news: &News<'_>) {
        self.outstanding.told(news);
    }
}

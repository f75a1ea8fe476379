//! One after another.

use super::super::policy::{Arrival, Choice, News, Policy, Seen};
use super::pools;

/// Each worker in its turn: with roles, each pair of a prefill and a decode worker; without, each alone.
#[derive(Debug, Default)]
pub struct RoundRobin {
    requests: usize,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn choose(&mut self, _now: f64, _request: &Arrival, fleet: &Seen<'_>) -> Choice {
        let turn = self.requests;
        self.requests += 1;
        pools(fleet.workers).choose(|pool| pool[turn % pool.len()])
    }

    fn told(&mut self, _now: f64, _news: &News<'_>) {}
}

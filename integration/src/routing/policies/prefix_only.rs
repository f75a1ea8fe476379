//! Whoever holds most of the prompt.

use std::cmp::Reverse;

use super::super::policy::{Arrival, Choice, News, Policy, Seen};
use super::outstanding::Outstanding;
use super::{Pools, pools};

/// The longest match of those that compute prompts, of equals the least loaded; decode goes to the least loaded.
#[derive(Debug, Default)]
pub struct PrefixOnly {
    outstanding: Outstanding,
}

impl PrefixOnly {
    fn longest(&self, pool: &[usize], fleet: &Seen<'_>) -> usize {
        let longest = pool.iter().min_by_key(|worker| {
            let held = fleet.cached[**worker].blocks;
            (Reverse(held), self.outstanding.of(**worker))
        });
        *longest.expect("a pool is not empty")
    }
}

impl Policy for PrefixOnly {
    fn name(&self) -> &'static str {
        "prefix_only"
    }

    fn choose(&mut self, _now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice {
        let choice = match pools(fleet.workers) {
            Pools::Whole(workers) => Choice::Local {
                worker: self.longest(&workers, fleet),
            },
            Pools::Split { prefill, decode } => Choice::Split {
                prefill: self.longest(&prefill, fleet),
                decode: self.outstanding.least(&decode),
            },
        };
        self.outstanding.chosen(request, choice);
        choice
    }

    fn told(&mut self, _now: f64, news: &News<'_>) {
        self.outstanding.told(news);
    }
}

//! The retry budget: what a router's requests may be tried again, all together, so that a pool that fails is not hammered.
//!
//! Each request earns a share of a retry, each retry costs one. Every router keeps its own, so a fleet's retries are
//! bounded by the same share of the fleet's requests.

use std::sync::{Mutex, PoisonError};

/// What can be saved up, and is there at the start: a few failures on a quiet day are no flood.
const RESERVE: f64 = 256.0;

/// The retries that a router has left.
#[derive(Debug)]
pub struct RetryBudget {
    share: f64,
    left: Mutex<f64>,
}

impl RetryBudget {
    /// One that lets this many of a hundred requests be tried again.
    pub fn new(percent: u32) -> Self {
        Self {
            share: f64::from(percent) / 100.0,
            left: Mutex::new(RESERVE),
        }
    }

    /// A request came.
    pub fn earn(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = (*left + self.share).min(RESERVE);
    }

    /// Whether something may be tried again; if so, it is paid.
    #[must_use]
    pub fn spend(&self) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = *left >= 1.0;
        if enough {
            *left -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(budget: &RetryBudget) -> usize {
        std::iter::repeat_with(|| budget.spend())
            .take_while(|paid| *paid)
            .count()
    }

    #[test]
    fn retries_are_a_share_of_requests_beyond_the_reserve() {
        let budget = RetryBudget::new(20);
        assert_eq!(spent(&budget), 256);
        for _ in 0..1000 {
            budget.earn();
        }
        let share = spent(&budget);
        assert!((199..=200).contains(&share), "{share}");
    }

    #[test]
    fn a_long_quiet_time_saves_up_no_flood() {
        let budget = RetryBudget::new(100);
        for _ in 0..10_000 {
            budget.earn();
        }
        assert_eq!(spent(&budget), 256);
    }

    #[test]
    fn without_a_share_the_reserve_is_all_there_is() {
        let budget = RetryBudget::new(0);
        budget.earn();
        assert_eq!(spent(&budget), 256);
        budget.earn();
        assert!(!budget.spend());
    }
}

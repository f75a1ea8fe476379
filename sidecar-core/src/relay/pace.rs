//! How fast the engine prefills, and with that whether a leg that nobody wants any more is worth reading to its end.
//!
//! An engine looks for requests that were given up between two steps. A prefill whose last step has begun ends with KV
//! that is held, and only its answer says under which id: cut off then, it would be held until its lease ends. So a leg
//! that is as far as its last step is read to its end, and one that is not is cut off.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long an answer and a cancellation may take to cross.
pub const CROSSING: Duration = Duration::from_millis(50);

/// Longest that a leg is read on for, whatever was learnt.
const MOST: Duration = Duration::from_secs(2);

/// Share of what was learnt that stays at each prefill.
const MEMORY: f64 = 0.9;

/// Tokens that a prefill costs by itself, about.
const OVERHEAD: f64 = 64.0;

/// Learns how fast an engine prefills.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Learnt>);

#[derive(Debug, Default, Clone, Copy)]
struct Learnt {
    seconds: f64,
    tokens: f64,
}

impl Pace {
    /// A prefill that computed so many tokens took this long.
    pub fn learn(&self, tokens: u64, took: Duration) {
        let mut learnt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        learnt.seconds = learnt.seconds * MEMORY + took.as_secs_f64();
        learnt.tokens = learnt.tokens * MEMORY + with_overhead(tokens);
    }

    /// For how long a leg is read on that has run for `elapsed` and that nobody wants any more. `step` is the most tokens
    /// that the engine computes at once.
    pub fn patience(&self, tokens: u64, step: Option<u64>, elapsed: Duration) -> Duration {
        let Learnt {
            seconds,
            tokens: learnt,
        } = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if learnt == 0.0 {
            return CROSSING;
        }
        let takes = |tokens: u64| seconds / learnt * with_overhead(tokens);
        let last_step = takes(step.map_or(tokens, |step| tokens.min(step)));
        if elapsed.as_secs_f64() + last_step < takes(tokens) {
            return CROSSING;
        }
        Duration::try_from_secs_f64(last_step).map_or(MOST, |step| (step + CROSSING).min(MOST))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^52"
)]
fn with_overhead(tokens: u64) -> f64 {
    tokens as f64 + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Option<u64> = Some(2048);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_leg_is_read_to_its_end_from_its_last_step_on() {
        let pace = Pace::default();
        assert_eq!(
            pace.patience(10_000, STEP, ms(0)),
            CROSSING,
            "nothing is known yet"
        );
        for _ in 0..50 {
            pace.learn(10_000 - 64, ms(1000));
        }
        let last_step = pace.patience(10_000 - 64, STEP, ms(900));
        assert!((ms(240)..ms(280)).contains(&last_step), "{last_step:?}");
        assert_eq!(pace.patience(10_000 - 64, STEP, ms(700)), CROSSING);
        assert!(
            pace.patience(1000, STEP, ms(0)) > CROSSING,
            "one step is the last one"
        );
        assert!(pace.patience(u64::MAX, None, ms(0)) <= MOST);
    }

    #[test]
    fn an_engine_that_became_slow_is_learnt_anew() {
        let pace = Pace::default();
        for _ in 0..50 {
            pace.learn(936, ms(100));
        }
        let fast = pace.patience(936, None, ms(0));
        for _ in 0..50 {
            pace.learn(936, ms(500));
        }
        let slow = pace.patience(936, None, ms(0));
        assert!(fast < ms(160) && slow > ms(500), "{fast:?} {slow:?}");
    }
}

//! How often the engine is polled.

use std::time::Duration;

/// How long after a request's end its events are there.
pub(super) const FLUSHED: Duration = Duration::from_millis(30);

/// Pause while something comes.
const FAST: Duration = Duration::from_millis(50);

/// Longest pause.
const SLOW: Duration = Duration::from_secs(1);

/// The pause before the next poll.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace(Duration);

impl Default for Pace {
    fn default() -> Self {
        Self(FAST)
    }
}

impl Pace {
    /// After a poll that had so many events.
    pub(super) fn after(&mut self, events: usize) -> Duration {
        self.0 = if events > 0 {
            FAST
        } else {
            (self.0 * 2).min(SLOW)
        };
        self.0
    }

    /// There is something to be had.
    pub(super) fn hurry(&mut self) {
        self.0 = FAST / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fast_while_something_comes_and_slows_down() {
        let mut pace = Pace::default();
        assert_eq!(pace.after(3), FAST);
        let pauses: Vec<Duration> = (0..6).map(|_| pace.after(0)).collect();
        assert_eq!(pauses[0], 2 * FAST);
        assert_eq!(pauses[5], SLOW);
        pace.hurry();
        assert_eq!((pace.after(0), pace.after(1)), (FAST, FAST));
    }
}

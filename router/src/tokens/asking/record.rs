//! What asking one worker for tokens has shown: how long it takes, and whether it is to be asked at all.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

/// Seconds that an answer is assumed to take before any was heard: of a question, and of a byte of it.
const QUESTION_S: f64 = 0.002;
const BYTE_S: f64 = 0.000_000_5;

/// Weight of the latest answer.
const LATEST: f64 = 0.2;

/// How far off the assumption may be: beyond that nothing is worth it anyway.
const FACTORS: (f64, f64) = (0.05, 50.0);

/// How long what was learnt counts. An engine that was slow once is asked again.
const LEARNT_FOR: Duration = Duration::from_secs(30);

/// How many times what it will take must fit into the time that is given.
const MARGIN: f64 = 1.5;

/// Questions that a worker has at a time.
const MOST_RUNNING: u32 = 2;

/// Misses in a row that end the asking for a while, and how long, at first and at most: each time in a row twice as long.
const MOST_MISSES: u32 = 4;
const AVOIDED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// One worker's record.
#[derive(Debug)]
pub(super) struct Record {
    running: u32,
    /// What an answer takes, by what it is assumed to.
    factor: f64,
    /// When that was last seen.
    seen: Option<Instant>,
    misses: u32,
    avoided_until: Option<Instant>,
    times_avoided: u32,
    told: u64,
    missed: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            running: 0,
            factor: 1.0,
            seen: None,
            misses: 0,
            avoided_until: None,
            times_avoided: 0,
            told: 0,
            missed: 0,
        }
    }
}

impl Record {
    /// Questions that it has.
    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// Whether an answer would come in time.
    pub(super) fn is_worth(&self, bytes: usize, time: Duration, now: Instant) -> bool {
        self.takes(bytes, now) * MARGIN <= time.as_secs_f64()
    }

    /// Whether it may be asked one thing more. One that was avoided is tried by one question.
    pub(super) fn may_be_asked(&self, now: Instant) -> bool {
        match self.avoided_until {
            None => self.running < MOST_RUNNING,
            Some(until) => until <= now && self.running == 0,
        }
    }

    /// It is asked.
    pub(super) fn asked(&mut self) {
        self.running += 1;
    }

    /// A question is over.
    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// It took so long to answer, in time or not.
    pub(super) fn took(&mut self, bytes: usize, took: Duration, now: Instant) {
        let ratio = took.as_secs_f64() / assumed(bytes);
        let factor = self.factor(now);
        self.factor = (factor + (ratio - factor) * LATEST).clamp(FACTORS.0, FACTORS.1);
        self.seen = Some(now);
    }

    /// It told in time what it was asked.
    pub(super) fn told(&mut self) {
        self.told += 1;
        self.misses = 0;
        self.times_avoided = 0;
        self.avoided_until = None;
    }

    /// It did not. How long it is avoided from now on, if so.
    pub(super) fn missed(&mut self, now: Instant) -> Option<Duration> {
        self.missed += 1;
        self.misses += 1;
        // What was on its way when it came to be avoided says nothing new.
        if self.avoided_until.is_some_and(|until| until > now) {
            return None;
        }
        let tried = self.avoided_until.is_some();
        if self.misses < MOST_MISSES && !tried {
            return None;
        }
        let times = self.times_avoided.min(10);
        let avoided = AVOIDED.0.saturating_mul(1 << times).min(AVOIDED.1);
        self.times_avoided += 1;
        self.avoided_until = Some(now + avoided);
        // When it is tried, it is tried as if nothing were known of it.
        self.seen = None;
        Some(avoided)
    }

    /// In JSON.
    pub(super) fn shown(&self, now: Instant) -> Value {
        let avoided = self.avoided_until.filter(|until| *until > now);
        json!({
            "told": self.told,
            "missed": self.missed,
            "avoided_for_seconds": avoided.map(|until| (until - now).as_secs_f64()),
            "seconds_of_4_kib": self.takes(4096, now),
        })
    }

    fn takes(&self, bytes: usize, now: Instant) -> f64 {
        assumed(bytes) * self.factor(now)
    }

    fn factor(&self, now: Instant) -> f64 {
        let fresh = self.seen.is_some_and(|seen| now - seen < LEARNT_FOR);
        if fresh { self.factor } else { 1.0 }
    }
}

fn assumed(bytes: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no question has 2^52 bytes")]
    let bytes = bytes as f64;
    QUESTION_S + bytes * BYTE_S
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn miss(record: &mut Record, now: Instant) -> Option<Duration> {
        record.asked();
        record.ended();
        record.missed(now)
    }

    #[tokio::test(start_paused = true)]
    async fn short_prompts_are_not_worth_it_and_slow_engines_make_more_of_them_short() {
        let (mut record, now) = (Record::default(), Instant::now());
        assert!(!record.is_worth(1000, 2 * MS, now));
        assert!(record.is_worth(40_000, 40 * MS, now));
        for _ in 0..20 {
            record.took(40_000, 200 * MS, now);
        }
        assert!(!record.is_worth(40_000, 40 * MS, now));
        assert!(record.is_worth(40_000, 400 * MS, now));
        let later = now + LEARNT_FOR;
        assert!(record.is_worth(40_000, 40 * MS, later), "it is asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_answer_in_time_is_left_alone_for_longer_each_time() {
        let (mut record, mut now) = (Record::default(), Instant::now());
        for _ in 1..MOST_MISSES {
            assert_eq!(miss(&mut record, now), None);
            assert!(record.may_be_asked(now));
        }
        let mut before = Duration::ZERO;
        for _ in 0..12 {
            let avoided = miss(&mut record, now).unwrap();
            assert!(avoided >= before && avoided <= AVOIDED.1, "{avoided:?}");
            assert!(!record.may_be_asked(now));
            before = avoided;
            now += avoided;
            assert!(record.may_be_asked(now), "one question tries it");
            assert!(record.is_worth(40_000, 40 * MS, now));
            record.asked();
            assert!(!record.may_be_asked(now));
            record.running = 0;
        }
        assert_eq!(before, AVOIDED.1);
        record.asked();
        record.ended();
        record.told();
        assert!(record.may_be_asked(now));
        assert_eq!(miss(&mut record, now), None, "and all is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_has_only_so_many_questions() {
        let (mut record, now) = (Record::default(), Instant::now());
        for _ in 0..MOST_RUNNING {
            assert!(record.may_be_asked(now));
            record.asked();
        }
        assert!(!record.may_be_asked(now));
        record.ended();
        assert!(record.may_be_asked(now));
    }
}

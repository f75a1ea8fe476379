//! A worker's breaker: closed while it serves, open for a while after a failure, then half-open: exactly one request at a
//! time tries it, until one is served.
//!
//! An open breaker says "others first", never "nobody": whoever plans takes the least bad worker when no other is left.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;
use serde::Serialize;
use tokio::time::Instant;

/// How long a worker that failed is avoided, at first and at most. Each time in a row it is twice as long.
const AVOIDED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// How far the time strays from that, so that two routers do not try a worker in the same moment.
const JITTER: std::ops::Range<f64> = 0.75..1.25;

/// Why a breaker opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It failed a request.
    Failed,
    /// It has work and makes no progress, by its sidecar's word.
    Stalled,
}

/// What a breaker lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Everything.
    Closed,
    /// Nothing, if there are others.
    Open,
    /// One request at a time.
    HalfOpen,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// How a breaker stands, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    state: Phase,
    cause: Option<Cause>,
    /// In a row.
    failures: u32,
    probing: bool,
    opens_for_seconds: f64,
}

/// What a request is given that wants to use a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is one of many.
    Free,
    /// It is the one that tries the worker, by this number.
    Probe(u64),
    /// Another one tries it just now.
    Taken,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    open: Option<(Cause, Instant)>,
    /// Number of the probe under way.
    probing: Option<u64>,
    probes: u64,
}

impl State {
    fn phase(&self, now: Instant) -> Phase {
        match self.open {
            None => Phase::Closed,
            Some((_, until)) if until > now => Phase::Open,
            Some(_) => Phase::HalfOpen,
        }
    }

    fn open(&mut self, cause: Cause, now: Instant) {
        let (first, most) = AVOIDED;
        let avoided = first.saturating_mul(1 << self.failures.min(10)).min(most);
        let avoided = avoided.mul_f64(rand::rng().random_range(JITTER));
        self.failures = self.failures.saturating_add(1);
        self.open = Some((cause, now + avoided));
        self.probing = None;
    }

    fn close(&mut self) {
        *self = Self {
            probes: self.probes,
            ..Self::default()
        };
    }
}

/// A worker's breaker.
#[derive(Debug, Default)]
pub struct Breaker(Mutex<State>);

impl Breaker {
    /// A request failed here. Of those that were under way when the breaker opened nothing new is learnt.
    pub fn failed(&self) {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.phase(now) != Phase::Open {
            state.open(Cause::Failed, now);
        }
    }

    /// The worker has work and makes no progress.
    pub fn stalled(&self) {
        self.lock().open(Cause::Stalled, Instant::now());
    }

    /// The worker makes progress again, though perhaps not for this router.
    pub fn moves_again(&self) {
        let mut state = self.lock();
        if matches!(state.open, Some((Cause::Stalled, _))) {
            state.close();
        }
    }

    /// A request was served: earlier failures are forgotten.
    pub fn served(&self) {
        self.lock().close();
    }

    /// A request wants in.
    pub fn enter(&self) -> Entry {
        let (mut state, now) = (self.lock(), Instant::now());
        match state.phase(now) {
            Phase::Closed | Phase::Open => Entry::Free,
            Phase::HalfOpen if state.probing.is_some() => Entry::Taken,
            Phase::HalfOpen => {
                state.probes += 1;
                state.probing = Some(state.probes);
                Entry::Probe(state.probes)
            }
        }
    }

    /// The one that tried went away, if it still was the one.
    pub fn gone(&self, probe: u64) {
        let mut state = self.lock();
        state.probing = state.probing.filter(|probing| *probing != probe);
    }

    /// What it lets through now.
    pub fn phase(&self) -> Phase {
        self.lock().phase(Instant::now())
    }

    /// Whether others are to be preferred: it is open, or somebody tries it already.
    pub fn avoids(&self) -> bool {
        let state = self.lock();
        match state.phase(Instant::now()) {
            Phase::Closed => false,
            Phase::Open => true,
            Phase::HalfOpen => state.probing.is_some(),
        }
    }

    /// How bad it is, to choose among those that are to be avoided; 0 while it is closed.
    pub fn badness(&self) -> u32 {
        let state = self.lock();
        state.open.map_or(0, |_| state.failures)
    }

    /// Whether a stall opened it.
    pub fn is_stalled(&self) -> bool {
        matches!(self.lock().open, Some((Cause::Stalled, _)))
    }

    /// For operators.
    pub fn shown(&self) -> Shown {
        let (state, now) = (self.lock(), Instant::now());
        let left = state.open.map(|(_, until)| until.duration_since(now));
        Shown {
            state: state.phase(now),
            cause: state.open.map(|(cause, _)| cause),
            failures: state.failures,
            probing: state.probing.is_some(),
            opens_for_seconds: left.unwrap_or_default().as_secs_f64(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any jitter of the first time, and shorter than any of the second.
    const FIRST: Duration = Duration::from_millis(650);

    fn failed() -> Breaker {
        let breaker = Breaker::default();
        breaker.failed();
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_opens_it_and_time_half_opens_it() {
        let breaker = Breaker::default();
        assert_eq!((breaker.phase(), breaker.badness()), (Phase::Closed, 0));
        breaker.failed();
        assert_eq!(breaker.phase(), Phase::Open);
        assert!(breaker.avoids());
        assert_eq!(breaker.enter(), Entry::Free, "nobody else was left");
        tokio::time::advance(FIRST).await;
        assert_eq!(breaker.phase(), Phase::HalfOpen);
        assert!(!breaker.avoids(), "somebody has to try");
        assert_eq!(breaker.badness(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn exactly_one_request_tries_until_it_is_served() {
        let breaker = failed();
        tokio::time::advance(FIRST).await;
        assert_eq!(breaker.enter(), Entry::Probe(1));
        assert_eq!(breaker.enter(), Entry::Taken);
        assert!(breaker.avoids());
        breaker.gone(1);
        assert_eq!(breaker.enter(), Entry::Probe(2), "the first one went away");
        breaker.gone(1);
        assert_eq!(breaker.enter(), Entry::Taken, "it is not the one any more");
        breaker.served();
        assert_eq!((breaker.phase(), breaker.badness()), (Phase::Closed, 0));
        assert_eq!(breaker.enter(), Entry::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_opens_it_again_for_longer() {
        let breaker = failed();
        for _ in 0..12 {
            tokio::time::advance(Duration::from_secs(19)).await;
            assert!(matches!(breaker.enter(), Entry::Probe(_)));
            breaker.failed();
            assert_eq!(breaker.phase(), Phase::Open);
            tokio::time::advance(FIRST).await;
            assert_eq!(breaker.phase(), Phase::Open, "it is longer each time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_when_it_opened_does_not_lengthen_it() {
        let breaker = failed();
        for _ in 0..100 {
            breaker.failed();
        }
        assert_eq!(breaker.badness(), 1);
        tokio::time::advance(FIRST).await;
        assert_eq!(breaker.phase(), Phase::HalfOpen);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_ends_by_progress_and_a_failure_does_not() {
        let breaker = Breaker::default();
        breaker.stalled();
        assert!(breaker.is_stalled() && breaker.avoids());
        breaker.moves_again();
        assert_eq!(breaker.phase(), Phase::Closed);
        breaker.failed();
        breaker.moves_again();
        assert_eq!(breaker.phase(), Phase::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn two_routers_do_not_try_in_the_same_moment() {
        let ends: std::collections::BTreeSet<_> = (0..32)
            .map(|_| failed().lock().open.map(|(_, until)| until))
            .collect();
        assert!(ends.len() > 16, "{ends:?}");
    }
}

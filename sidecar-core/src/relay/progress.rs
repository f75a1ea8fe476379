//! Whether the engine makes progress, whatever its health endpoint says.
//!
//! Work that the engine owes is counted against what it has shown it can do. Progress is anything that moves: a token, a
//! whole answer, an answer of failure, the engine's own counts of tokens. How long it may be silent is learnt from its
//! own silences and from the pace of its own prefills, each several times over, and is never less than a floor. An idle
//! engine owes nothing; nor does a stream after its first token, unless the engine says itself that it has work, for it may
//! be its reader who is slow; nor an answer that comes whole, unless the engine counts its tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::load::Stall;
use tokio::time::Instant;

/// How many times its longest silence, or the slowest pace of its prefills, an engine is given.
const TIMES: u32 = 6;

/// Longest bound that may be learnt.
const LONGEST: Duration = Duration::from_secs(600);

/// Pace that is believed of an engine of which no prefill was seen: a hundred tokens a second.
const UNKNOWN_PACE: Duration = Duration::from_millis(10);

/// Least tokens of a prefill that a pace is learnt from. Of shorter ones the time is not the tokens'.
const LEAST_TOKENS: u64 = 64;

/// What is learnt is forgotten by this factor a second: half of it in ten minutes.
const FORGOTTEN: f64 = 0.99885;

/// What the engine says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Own {
    /// Tokens that it has computed and generated in its life.
    pub work: Option<u64>,
    /// It has requests.
    pub busy: bool,
}

/// Legs that wait for the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owed {
    /// How many.
    pub legs: u32,
    /// Prompt tokens that they have to compute.
    pub tokens: u64,
    /// When the first of them began, of those that began after the last stall.
    pub since: Option<Instant>,
}

#[derive(Debug)]
struct State {
    /// When anything was last seen to move.
    moved: Instant,
    /// The engine's own count of work when it was last seen.
    work: Option<u64>,
    /// Longest silence after which it went on.
    silence: Duration,
    /// The silence of now, as far as it was judged.
    waiting: Duration,
    /// Slowest time per token of a prefill, queue included.
    pace: Option<Duration>,
    stall: Option<Stall>,
    /// When work last turned out to wait too long.
    stalled: Option<Instant>,
}

/// Whether the engine makes progress.
#[derive(Debug)]
pub struct Progress {
    floor: Duration,
    /// Something moved since the last judgement. Every chunk of every stream says so.
    moves: AtomicBool,
    state: Mutex<State>,
}

impl Progress {
    /// Of an engine of which nothing was seen. It may always be silent for as long as `floor`.
    pub fn new(floor: Duration) -> Self {
        Self {
            floor,
            moves: AtomicBool::new(false),
            state: Mutex::new(State::new()),
        }
    }

    /// Something moved.
    pub fn moved(&self) {
        self.moves.store(true, Ordering::Relaxed);
    }

    /// A prompt of so many tokens was computed in this time.
    pub fn computed(&self, tokens: u64, took: Duration) {
        self.moved();
        if tokens >= LEAST_TOKENS {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            let mut state = self.lock();
            state.pace = state.pace.max(Some(took / tokens));
        }
    }

    /// When work last turned out to wait too long; what began before is not judged twice.
    pub fn stalled_at(&self) -> Option<Instant> {
        self.lock().stalled
    }

    /// Another life of the engine: what the last one did says nothing.
    pub fn forget(&self) {
        *self.lock() = State::new();
    }

    /// Judges the engine. To be called about once a second, with what it says of itself.
    pub fn judge(&self, owed: Owed, own: Own) -> Option<Stall> {
        let moves = self.moves.swap(false, Ordering::Relaxed);
        let (mut state, now) = (self.lock(), Instant::now());
        let worked = own.work.is_some() && own.work != state.work;
        if worked {
            state.work = own.work;
        }
        if moves || worked {
            state.move_on(now, self.floor);
        }
        state.forget_slowly();
        let silent = owed.since.map(|since| now - since.max(state.moved));
        // Of a leg that was judged it is still to be seen whether it was worth the wait.
        if silent.is_some() || state.stalled.is_none() {
            state.waiting = silent.unwrap_or_default();
        }
        let bound = state.bound(self.floor, owed.tokens);
        if let Some(silent) = silent.filter(|silent| *silent > bound) {
            state.stalled = Some(now);
            state.stall = Some(Stall {
                times: state.stall.as_ref().map_or(0, |stall| stall.times) + 1,
                legs: owed.legs,
                silent_ms: millis(silent),
                bound_ms: millis(bound),
            });
        }
        state.stall.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        Self {
            moved: Instant::now(),
            work: None,
            silence: Duration::ZERO,
            waiting: Duration::ZERO,
            pace: None,
            stall: None,
            stalled: None,
        }
    }

    /// A silence is over, and was survived. One that was too long teaches only to wait twice as long.
    fn move_on(&mut self, now: Instant, floor: Duration) {
        let most = self.bound(floor, 0) * 2 / TIMES;
        self.silence = self.silence.max(self.waiting.min(most));
        self.moved = now;
        self.stall = None;
        self.stalled = None;
    }

    fn forget_slowly(&mut self) {
        self.silence = self.silence.mul_f64(FORGOTTEN);
        self.pace = self.pace.map(|pace| pace.mul_f64(FORGOTTEN));
    }

    fn bound(&self, floor: Duration, tokens: u64) -> Duration {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let computing = self.pace.unwrap_or(UNKNOWN_PACE).saturating_mul(tokens);
        let explained = self.silence.max(computing).saturating_mul(TIMES);
        explained.min(LONGEST).max(floor)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

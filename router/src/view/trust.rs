//! Whether what is predicted of a worker comes true, and if not, what is likely to be wrong.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cached::Basis;
use super::prediction::Foretold;

/// Weight of the latest request.
const LATEST: f64 = 1.0 / 16.0;

/// Least requests that a suspicion rests on.
const LEAST: u32 = 8;

/// Share of requests from which on something is wrong.
const SUSPECT: f64 = 0.25;

/// By which factor seconds may be off in the mean.
const FACTOR: f64 = 3.0;

/// What is likely to be wrong with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its prompts have other lengths than were computed here.
    Tokens,
    /// It has cached what no event told of, and no event comes at all.
    EventsOff,
    /// It counts in blocks of another size.
    BlockSize,
    /// It finds nothing where it holds something.
    Namespace,
    /// It finds more than it tells.
    EventsMissing,
    /// It finds less than it told.
    EventsWrong,
    /// It is much faster or slower than it seems.
    Seconds,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Tokens,
        Self::EventsOff,
        Self::BlockSize,
        Self::Namespace,
        Self::EventsMissing,
        Self::EventsWrong,
        Self::Seconds,
    ];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::EventsOff => "events_off",
            Self::BlockSize => "block_size",
            Self::Namespace => "namespace",
            Self::EventsMissing => "events_missing",
            Self::EventsWrong => "events_wrong",
            Self::Seconds => "seconds",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => {
                "its engine counts other prompt tokens than its tokenizer files and chat template give"
            }
            Self::EventsOff => {
                "its engine reports cached tokens, but no KV events come: give the engine --kv-events-config"
            }
            Self::BlockSize => {
                "its engine reports cached tokens in blocks of another size than it told"
            }
            Self::Namespace => {
                "its engine finds nothing of what it holds: prefix caching is off, or requests come under another salt or adapter"
            }
            Self::EventsMissing => "its engine finds more than its KV events told",
            Self::EventsWrong => "its engine finds less than its KV events told",
            Self::Seconds => "its first tokens come much sooner or later than predicted",
        })
    }
}

/// A mean of which the latest values count most.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        // The first values count alike.
        let weight = LATEST.max(1.0 / f64::from(self.count));
        self.value += (value - self.value) * weight;
    }

    fn note(&mut self, wrong: bool) {
        self.add(f64::from(u8::from(wrong)));
    }

    fn is_suspect(self) -> bool {
        self.count >= LEAST && self.value > SUSPECT
    }
}

#[derive(Debug, Default)]
struct Means {
    /// Prompts of another length.
    length: Mean,
    /// Something was cached though no event comes.
    unwatched: Mean,
    /// Cached tokens that were mispredicted, and how.
    cached: Mean,
    ragged: Mean,
    nothing: Mean,
    more: Mean,
    /// Logarithm of seconds taken by seconds predicted.
    seconds: Mean,
}

/// One worker's record.
#[derive(Debug, Default)]
pub struct Trust(Mutex<Means>);

impl Trust {
    /// An engine reports of a prompt; what it does not say is absent.
    pub fn reported(&self, foretold: &Foretold, tokens: Option<u64>, cached: Option<u64>) {
        let mut means = self.lock();
        let same_length = tokens.is_none_or(|tokens| tokens == foretold.tokens);
        if tokens.is_some() {
            means.length.note(!same_length);
        }
        let Some(cached) = cached.filter(|_| same_length && foretold.comparable) else {
            return;
        };
        if foretold.unwatched {
            means.unwatched.note(cached > 0);
        }
        if foretold.cached.basis == Basis::Exact {
            let known = foretold.cached.known;
            let wrong = cached != known;
            means.cached.note(wrong);
            let size = u64::from(foretold.block_size.max(1));
            means.ragged.note(wrong && !cached.is_multiple_of(size));
            means.nothing.note(wrong && cached == 0);
            means.more.note(wrong && cached > known);
        }
    }

    /// A first token came after so many seconds instead of those that were predicted.
    pub fn first_token(&self, predicted: f64, seconds: f64) {
        let ratio = (seconds / predicted).ln();
        if ratio.is_finite() {
            self.lock().seconds.add(ratio);
        }
    }

    /// What is likely to be wrong.
    pub fn causes(&self) -> Vec<Cause> {
        let means = self.lock();
        let mut causes = Vec::new();
        if means.length.is_suspect() {
            causes.push(Cause::Tokens);
        }
        if means.unwatched.is_suspect() {
            causes.push(Cause::EventsOff);
        }
        if means.cached.is_suspect() {
            let part = |mean: Mean| mean.value > means.cached.value / 2.0;
            causes.push(if part(means.ragged) {
                Cause::BlockSize
            } else if part(means.nothing) {
                Cause::Namespace
            } else if part(means.more) {
                Cause::EventsMissing
            } else {
                Cause::EventsWrong
            });
        }
        let seconds = means.seconds;
        if seconds.count >= 2 * LEAST && seconds.value.abs() > FACTOR.ln() {
            causes.push(Cause::Seconds);
        }
        causes
    }

    /// Its engine began anew: what was wrong may be right now.
    pub fn forget(&self) {
        *self.lock() = Means::default();
    }

    fn lock(&self) -> MutexGuard<'_, Means> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Cached;

    fn foretold(basis: Basis, known: u64) -> Foretold {
        Foretold {
            tokens: 100,
            cached: Cached {
                known,
                basis,
                ..Cached::default()
            },
            block_size: 16,
            comparable: true,
            unwatched: basis == Basis::Unknown,
        }
    }

    fn after(report: impl Fn(&Trust, u64)) -> Vec<Cause> {
        let trust = Trust::default();
        for turn in 0..20 {
            report(&trust, turn);
        }
        trust.causes()
    }

    #[test]
    fn what_comes_true_is_trusted() {
        let causes = after(|trust, turn| {
            let foretold = foretold(Basis::Exact, 16 * (turn % 4));
            trust.reported(&foretold, Some(100), Some(16 * (turn % 4)));
            trust.first_token(1.0, 0.7 + 0.05 * f64::from(u32::try_from(turn).unwrap()));
        });
        assert_eq!(causes, []);
    }

    #[test]
    fn each_cause_is_told_from_the_others() {
        let exact = |known, cached| {
            after(move |trust, _| {
                trust.reported(&foretold(Basis::Exact, known), Some(100), Some(cached));
            })
        };
        assert_eq!(exact(64, 0), [Cause::Namespace]);
        assert_eq!(exact(32, 64), [Cause::EventsMissing]);
        assert_eq!(exact(64, 32), [Cause::EventsWrong]);
        assert_eq!(exact(64, 40), [Cause::BlockSize]);
        let length = after(|trust, _| {
            trust.reported(&foretold(Basis::Exact, 64), Some(101), Some(64));
        });
        assert_eq!(length, [Cause::Tokens]);
        let off = after(|trust, _| {
            trust.reported(&foretold(Basis::Unknown, 0), Some(100), Some(64));
        });
        assert_eq!(off, [Cause::EventsOff]);
        let slow = after(|trust, _| trust.first_token(0.1, 1.0));
        assert_eq!(slow, [Cause::Seconds]);
    }

    #[test]
    fn a_few_or_seldom_ones_are_no_reason() {
        let trust = Trust::default();
        for _ in 0..LEAST - 1 {
            trust.reported(&foretold(Basis::Exact, 64), Some(100), Some(0));
        }
        assert_eq!(trust.causes(), []);
        let seldom = after(|trust, turn| {
            let cached = if turn % 8 == 0 { 0 } else { 64 };
            trust.reported(&foretold(Basis::Exact, 64), Some(100), Some(cached));
        });
        assert_eq!(seldom, []);
    }

    #[test]
    fn what_was_right_again_is_trusted_again() {
        let trust = Trust::default();
        for cached in [0; 30].into_iter().chain([64; 40]) {
            trust.reported(&foretold(Basis::Exact, 64), Some(100), Some(cached));
        }
        assert_eq!(trust.causes(), []);
        for _ in 0..30 {
            trust.reported(&foretold(Basis::Exact, 64), Some(100), Some(0));
        }
        assert_eq!(trust.causes(), [Cause::Namespace]);
        trust.forget();
        assert_eq!(trust.causes(), []);
    }

    #[test]
    fn what_cannot_be_compared_says_nothing() {
        let several = Foretold {
            comparable: false,
            ..foretold(Basis::Exact, 64)
        };
        let causes = after(|trust, _| {
            trust.reported(&several, Some(100), Some(0));
            trust.reported(&foretold(Basis::Expected, 64), Some(100), Some(0));
            trust.reported(&foretold(Basis::Uncertain, 64), None, Some(0));
            trust.first_token(0.0, 1.0);
        });
        assert_eq!(causes, []);
    }
}

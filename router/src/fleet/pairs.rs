//! What handoffs have taught of pairs of engines, in their present lives.
//!
//! A pair is proven by its first handoff that was settled. One whose handoff failed in the engines is suspected: others are
//! taken first for a while, longer each time, until a handoff proves it again. One that cannot hand over for as long as
//! both engines live is broken.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_proto::Incarnation;
use serde::Serialize;
use tokio::time::Instant;

/// How long a suspected pair is avoided, at first and at most.
const AVOIDED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Suspected pairs of one engine from which on it is the engine that is suspected.
const ENGINES_FAULT: usize = 2;

/// A prefill engine's life and a decode engine's.
type Lives = (Incarnation, Incarnation);

/// What is known of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// A handoff of it was settled.
    Proven,
    /// Its last handoffs failed.
    Suspected {
        /// So many in a row.
        failures: u32,
        /// Avoided until then.
        until: Instant,
    },
    /// It cannot hand over.
    Broken,
}

/// The word for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// No handoff was tried.
    Unproven,
    /// See [`Knowledge::Proven`].
    Proven,
    /// See [`Knowledge::Suspected`].
    Suspected,
    /// See [`Knowledge::Broken`].
    Broken,
}

impl Knowledge {
    /// The word for it.
    pub fn word(known: Option<&Self>) -> Word {
        match known {
            None => Word::Unproven,
            Some(Self::Proven) => Word::Proven,
            Some(Self::Suspected { .. }) => Word::Suspected,
            Some(Self::Broken) => Word::Broken,
        }
    }

    fn is_suspected(&self) -> bool {
        matches!(self, Self::Suspected { .. })
    }
}

/// Who is to blame for a failed handoff, beyond the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blame {
    /// The prefill engine fails with several others.
    pub prefill: bool,
    /// The decode engine does.
    pub decode: bool,
}

/// All pairs of which something is known.
#[derive(Debug, Default)]
pub(super) struct Pairs(Mutex<HashMap<Lives, Knowledge>>);

impl Pairs {
    /// A handoff was settled. Whether that was news.
    pub(super) fn proven(&self, lives: Lives) -> bool {
        let mut pairs = self.lock();
        pairs.insert(lives, Knowledge::Proven) != Some(Knowledge::Proven)
    }

    /// A handoff failed in the engines.
    pub(super) fn suspect(&self, lives: &Lives) -> Blame {
        let mut pairs = self.lock();
        let failures = match pairs.get(lives) {
            Some(Knowledge::Broken) => {
                return Blame {
                    prefill: false,
                    decode: false,
                };
            }
            Some(Knowledge::Suspected { failures, .. }) => failures.saturating_add(1),
            Some(Knowledge::Proven) | None => 1,
        };
        let (first, most) = AVOIDED;
        let avoided = first.saturating_mul(1 << (failures - 1).min(10)).min(most);
        let until = Instant::now() + avoided;
        pairs.insert(lives.clone(), Knowledge::Suspected { failures, until });
        let suspected = |of: fn(&Lives) -> &Incarnation| {
            let pairs = pairs.iter().filter(|(_, known)| known.is_suspected());
            pairs.filter(|(pair, _)| of(pair) == of(lives)).count() >= ENGINES_FAULT
        };
        Blame {
            prefill: suspected(|(prefill, _)| prefill),
            decode: suspected(|(_, decode)| decode),
        }
    }

    /// The two cannot hand over.
    pub(super) fn broken(&self, lives: Lives) {
        self.lock().insert(lives, Knowledge::Broken);
    }

    /// What is known of engines that are still in these lives.
    pub(super) fn of(&self, alive: &HashSet<&Incarnation>) -> HashMap<Lives, Knowledge> {
        let mut pairs = self.lock();
        pairs.retain(|(prefill, decode), _| alive.contains(prefill) && alive.contains(decode));
        pairs.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Lives, Knowledge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(prefill: &str, decode: &str) -> Lives {
        (prefill.parse().unwrap(), decode.parse().unwrap())
    }

    const NOBODY: Blame = Blame {
        prefill: false,
        decode: false,
    };

    fn avoided_for(pairs: &Pairs, pair: &Lives) -> Option<Duration> {
        let alive = HashSet::from([&pair.0, &pair.1]);
        match pairs.of(&alive).get(pair) {
            Some(Knowledge::Suspected { until, .. }) => Some(until.duration_since(Instant::now())),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_is_avoided_longer_each_time_until_it_is_proven() {
        let (pairs, pair) = (Pairs::default(), lives("p", "d"));
        assert!(pairs.proven(pair.clone()), "news");
        assert!(!pairs.proven(pair.clone()), "no news");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(pairs.suspect(&pair), NOBODY);
            assert_eq!(
                avoided_for(&pairs, &pair),
                Some(Duration::from_secs(seconds))
            );
        }
        assert!(pairs.proven(pair.clone()), "news");
        assert_eq!(avoided_for(&pairs, &pair), None);
        pairs.suspect(&pair);
        assert_eq!(avoided_for(&pairs, &pair), Some(Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_fails_with_several_is_to_blame() {
        let pairs = Pairs::default();
        assert_eq!(pairs.suspect(&lives("p0", "d0")), NOBODY);
        let blame = pairs.suspect(&lives("p0", "d1"));
        assert_eq!((blame.prefill, blame.decode), (true, false));
        let blame = pairs.suspect(&lives("p1", "d1"));
        assert_eq!((blame.prefill, blame.decode), (false, true));
        pairs.proven(lives("p0", "d1"));
        assert_eq!(pairs.suspect(&lives("p1", "d1")), NOBODY);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_broken_stays_so_until_one_of_them_lives_anew() {
        let (pairs, pair) = (Pairs::default(), lives("p", "d"));
        pairs.broken(pair.clone());
        pairs.suspect(&pair);
        let alive = HashSet::from([&pair.0, &pair.1]);
        assert_eq!(pairs.of(&alive)[&pair], Knowledge::Broken);
        assert!(pairs.of(&HashSet::from([&pair.0])).is_empty());
        assert!(pairs.of(&alive).is_empty(), "forgotten for good");
    }
}

//! Who computed the last prompt of each session.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use baton_proto::WorkerId;

/// Sessions that are remembered.
const MOST: usize = 1 << 16;

/// How long, in seconds.
const KEPT_S: f64 = 3600.0;

/// Where sessions are. Their names are not kept: clients choose them.
#[derive(Debug)]
pub struct Sessions {
    worth: f64,
    hasher: RandomState,
    known: Mutex<HashMap<u64, (WorkerId, f64)>>,
}

impl Sessions {
    /// Staying is worth so many seconds.
    pub(super) fn new(worth: f64) -> Self {
        Self {
            worth,
            hasher: RandomState::new(),
            known: Mutex::default(),
        }
    }

    /// Who computed the last prompt of a session, and what staying there is worth.
    pub fn last(&self, session: &[u8], now: f64) -> Option<(WorkerId, f64)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (worker, since) = known.get(&self.hasher.hash_one(session))?;
        (now - since < KEPT_S).then(|| (worker.clone(), self.worth))
    }

    /// A prompt of a session is computed there.
    pub fn note(&self, session: &[u8], worker: &WorkerId, now: f64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (_, since)| now - *since < KEPT_S);
        }
        if known.len() >= MOST {
            // Any of them: which is the oldest is not worth a list of its own.
            let some = known.keys().next().copied();
            some.map(|session| known.remove(&session));
        }
        let session = self.hasher.hash_one(session);
        known.insert(session, (worker.clone(), now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_remembered_for_a_while_and_only_so_many() {
        let sessions = Sessions::new(0.5);
        let worker: WorkerId = "a".parse().unwrap();
        sessions.note(b"one", &worker, 0.0);
        assert_eq!(sessions.last(b"one", 10.0), Some((worker.clone(), 0.5)));
        assert_eq!(sessions.last(b"two", 10.0), None);
        assert_eq!(sessions.last(b"one", KEPT_S + 1.0), None);
        for session in 0..=MOST {
            sessions.note(&session.to_le_bytes(), &worker, 1.0);
        }
        assert_eq!(sessions.known.lock().unwrap().len(), MOST);
    }
}

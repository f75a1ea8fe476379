//! The table of legs in the engine. An id that is already there is refused: engines mix up, or die of, duplicates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_daemon::metrics::{Counted, Gauge};
use baton_proto::{Error, ErrorKind, RequestId, Source, Stage};
use tokio::time::Instant;

use super::progress::{Owed, Own};

/// Legs in the engine. Clones share the table.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    table: Arc<Mutex<HashMap<RequestId, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// Prompt tokens that are not computed yet.
    queued_tokens: u64,
    since: Instant,
    /// Nothing of its answer has come.
    waits: bool,
    /// Its answer comes whole, after who knows how many tokens.
    whole: bool,
}

impl Entry {
    /// Whether the engine is to show progress on it.
    fn is_owed(&self, own: Own) -> bool {
        let counts = own.work.is_some();
        (self.waits && (counts || !self.whole)) || (counts && own.busy)
    }
}

/// A leg in the engine. Dropping it takes it out of the table.
#[derive(Debug)]
pub struct InFlightLeg {
    table: InFlight,
    id: RequestId,
    since: Instant,
    _counted: Counted,
}

impl InFlight {
    /// Enters a leg.
    pub fn enter(&self, id: &RequestId, stage: Stage, gauge: &Gauge) -> Result<InFlightLeg, Error> {
        let mut table = self.lock();
        if table.contains_key(id) {
            let message = format!("request id {id} is already in the engine");
            return Err(Error::new(
                ErrorKind::Conflict,
                Source::Router,
                stage,
                message,
            ));
        }
        let since = Instant::now();
        table.insert(
            id.clone(),
            Entry {
                stage,
                queued_tokens: 0,
                since,
                waits: true,
                whole: false,
            },
        );
        Ok(InFlightLeg {
            table: self.clone(),
            id: id.clone(),
            since,
            _counted: Counted::new(gauge),
        })
    }

    /// How many legs there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many legs of one stage there are.
    pub fn count_of(&self, stage: Stage) -> usize {
        self.lock()
            .values()
            .filter(|entry| entry.stage == stage)
            .count()
    }

    /// Prompt tokens of all legs that are not computed yet, as routers estimate them.
    pub fn queued_tokens(&self) -> u64 {
        let table = self.lock();
        let queued = table.values().map(|entry| entry.queued_tokens);
        queued.fold(0, u64::saturating_add)
    }

    /// What the engine owes, given what it says of itself. Legs that began before `judged` are not judged again.
    pub fn owed(&self, own: Own, judged: Option<Instant>) -> Owed {
        let table = self.lock();
        let mut owed = Owed::default();
        for entry in table.values().filter(|entry| entry.is_owed(own)) {
            owed.legs += 1;
            owed.tokens = owed.tokens.saturating_add(entry.queued_tokens);
            if judged.is_none_or(|judged| entry.since > judged) {
                let first = owed
                    .since
                    .map_or(entry.since, |since| since.min(entry.since));
                owed.since = Some(first);
            }
        }
        owed
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightLeg {
    /// It has so many prompt tokens to compute.
    #[must_use]
    pub fn computing(self, tokens: u64) -> Self {
        self.change(|entry| entry.queued_tokens = tokens);
        self
    }

    /// Its answer comes whole.
    #[must_use]
    pub fn whole(self, whole: bool) -> Self {
        self.change(|entry| entry.whole = whole);
        self
    }

    /// Its prompt is computed; so many tokens it had.
    pub fn computed(&self) -> u64 {
        let mut tokens = 0;
        self.change(|entry| {
            tokens = std::mem::take(&mut entry.queued_tokens);
            entry.waits = false;
        });
        tokens
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.table.lock().get_mut(&self.id) {
            change(entry);
        }
    }

    /// Since when.
    pub fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for InFlightLeg {
    fn drop(&mut self) {
        self.table.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_duplicates_until_the_first_has_ended() {
        let (table, gauge) = (InFlight::default(), Gauge::default());
        let id: RequestId = "r".parse().unwrap();
        let leg = table.enter(&id, Stage::Prefill, &gauge).unwrap();
        let leg = leg.computing(500);
        assert_eq!(table.queued_tokens(), 500);
        assert_eq!(leg.computed(), 500);
        assert_eq!(table.queued_tokens(), 0);
        let refused = table.enter(&id, Stage::Prefill, &gauge).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
        assert_eq!(
            (table.count(), table.count_of(Stage::Decode), gauge.get()),
            (1, 0, 1)
        );
        drop(leg);
        assert_eq!((table.count(), gauge.get()), (0, 0));
        table.enter(&id, Stage::Prefill, &gauge).unwrap();
    }

    #[test]
    fn what_an_engine_owes_depends_on_what_it_says_of_itself() {
        let (table, gauge) = (InFlight::default(), Gauge::default());
        let enter = |id: &str| {
            let id: RequestId = id.parse().unwrap();
            table.enter(&id, Stage::Generate, &gauge).unwrap()
        };
        let stream = enter("stream").computing(7);
        let _whole = enter("whole").whole(true);
        let owed = |own| table.owed(own, None).legs;
        let silent = Own::default();
        let counts = |busy| Own {
            work: Some(1),
            busy,
        };
        assert_eq!((owed(silent), owed(counts(false))), (1, 2));
        assert_eq!(table.owed(silent, None).tokens, 7);
        let judged = table.owed(silent, Some(Instant::now()));
        assert_eq!((judged.legs, judged.since), (1, None));
        stream.computed();
        assert_eq!(owed(silent), 0, "its reader may be slow");
        assert_eq!(
            (owed(counts(false)), owed(counts(true))),
            (1, 2),
            "by the engine's own word it has work"
        );
    }
}

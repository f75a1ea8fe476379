//! The table of legs in the engine. An id that is already there is refused: engines mix up, or die of, duplicates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_daemon::metrics::{Counted, Gauge};
use baton_proto::{Error, ErrorKind, RequestId, Source, Stage};
use tokio::time::Instant;

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
        let queued_tokens = 0;
        table.insert(
            id.clone(),
            Entry {
                stage,
                queued_tokens,
            },
        );
        Ok(InFlightLeg {
            table: self.clone(),
            id: id.clone(),
            since: Instant::now(),
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

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightLeg {
    /// It has so many prompt tokens to compute.
    #[must_use]
    pub fn computing(self, tokens: u64) -> Self {
        self.set_queued(tokens);
        self
    }

    /// Its prompt is computed.
    pub fn computed(&self) {
        self.set_queued(0);
    }

    fn set_queued(&self, tokens: u64) {
        if let Some(entry) = self.table.lock().get_mut(&self.id) {
            entry.queued_tokens = tokens;
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
        leg.computed();
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
}

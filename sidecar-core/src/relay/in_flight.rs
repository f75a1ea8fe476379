//! The table of legs in the engine. An id that is already there is refused: engines mix up, or die of, duplicates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_daemon::metrics::{Counted, Gauge};
use baton_proto::{Error, ErrorKind, RequestId, Source, Stage};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Legs in the engine. Clones share the table.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    table: Arc<Mutex<HashMap<RequestId, Entry>>>,
    emptied: Arc<Notify>,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
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
        table.insert(id.clone(), Entry { stage });
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

    /// Waits up to `time` until the table is empty; whether it is.
    pub async fn empty(&self, time: Duration) -> bool {
        let emptied = async {
            loop {
                let notified = self.emptied.notified();
                if self.count() == 0 {
                    return;
                }
                notified.await;
            }
        };
        tokio::time::timeout(time, emptied).await.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightLeg {
    /// Since when.
    pub fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for InFlightLeg {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.remove(&self.id);
        if table.is_empty() {
            self.table.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refuses_duplicates_and_tells_when_it_is_empty() {
        let (table, gauge) = (InFlight::default(), Gauge::default());
        let id: RequestId = "r".parse().unwrap();
        let leg = table.enter(&id, Stage::Prefill, &gauge).unwrap();
        assert_eq!(
            table.enter(&id, Stage::Prefill, &gauge).unwrap_err().kind,
            ErrorKind::Conflict
        );
        assert!(!table.empty(Duration::from_secs(1)).await);
        let waiting = tokio::spawn({
            let table = table.clone();
            async move { table.empty(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        drop(leg);
        assert!(waiting.await.unwrap());
        assert_eq!(gauge.get(), 0);
        table.enter(&id, Stage::Prefill, &gauge).unwrap();
    }
}

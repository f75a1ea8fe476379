//! Engines whose caches may hold foreign KV, remembered by their lives: a quarantine outlives the sidecar that was told.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_proto::{Error, Incarnation};
use tokio::time::Instant;

use super::Worker;
use crate::calls::Calls;

/// How long an engine's quarantine is remembered. Blocks that old were evicted or are hit by nobody.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// Quarantined engines, with the number of their last quarantine.
#[derive(Debug, Default)]
pub(super) struct Quarantines(Mutex<HashMap<Incarnation, (u64, Instant)>>);

impl Quarantines {
    /// This worker's sidecar has quarantined its engine. Whichever sidecar comes after it is told.
    pub(super) fn note(&self, worker: &Worker) {
        let Some(life) = worker.incarnation() else {
            return;
        };
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        engines.retain(|_, (_, since)| now.duration_since(*since) < REMEMBERED);
        let (number, _) = engines.get(&life).copied().unwrap_or((0, now));
        engines.insert(life, (number + 1, now));
        worker.tell_quarantine(number + 1);
    }

    /// A sidecar said which life its engine is in: it is told of what it cannot know.
    pub(super) async fn renew(
        &self,
        worker: &Worker,
        life: &Incarnation,
        calls: &Calls,
    ) -> Result<(), Error> {
        if worker.quarantine_told() < self.number(life) {
            self.tell(worker, Some(life), calls).await
        } else {
            Ok(())
        }
    }

    async fn tell(
        &self,
        worker: &Worker,
        life: Option<&Incarnation>,
        calls: &Calls,
    ) -> Result<(), Error> {
        let number = life.map_or(0, |life| self.number(life));
        calls.quarantine(worker).await?;
        worker.tell_quarantine(number);
        Ok(())
    }

    fn number(&self, life: &Incarnation) -> u64 {
        let engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.get(life).map_or(0, |(number, _)| *number)
    }
}

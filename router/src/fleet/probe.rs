//! The one request that tries a worker whose breaker is half-open, and whoever waits for a worker that may stand still.

use std::sync::Arc;

use super::Worker;
use super::breaker::Entry;

/// The right to use a worker. Where it is that of the one that tries it, dropping it lets another one try.
#[derive(Debug)]
pub struct Admission {
    worker: Arc<Worker>,
    probe: Option<u64>,
}

impl Admission {
    /// Asks for it; `None` while another request tries the worker.
    pub fn ask(worker: &Arc<Worker>) -> Option<Self> {
        let probe = match worker.breaker().enter() {
            Entry::Free => None,
            Entry::Probe(number) => Some(number),
            Entry::Taken => return None,
        };
        Some(Self {
            worker: Arc::clone(worker),
            probe,
        })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            self.worker.breaker().gone(probe);
        }
    }
}

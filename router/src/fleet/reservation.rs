//! A reservation: work that this router has given a worker and that no load report shows yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Worker;

/// Work given to a worker. Dropping it takes the work off again, on every path.
#[derive(Debug)]
pub struct Reservation {
    worker: Arc<Worker>,
    tokens: u64,
}

impl Reservation {
    /// Books one request with this many prompt tokens to compute.
    pub fn new(worker: &Arc<Worker>, tokens: u64) -> Self {
        worker.reserved_tokens.fetch_add(tokens, Ordering::Relaxed);
        worker.reserved_requests.fetch_add(1, Ordering::Relaxed);
        Self {
            worker: Arc::clone(worker),
            tokens,
        }
    }

    /// The prompt is computed; the request itself goes on.
    pub fn prefilled(&mut self) {
        self.worker
            .reserved_tokens
            .fetch_sub(std::mem::take(&mut self.tokens), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.prefilled();
        self.worker
            .reserved_requests
            .fetch_sub(1, Ordering::Relaxed);
    }
}

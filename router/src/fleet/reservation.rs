//! A reservation: work that this router has given a worker and that no load report shows yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Worker;
use crate::view::{Expectation, Prediction};

/// Work given to a worker. Dropping it takes the work off again, on every path.
#[derive(Debug)]
pub struct Reservation {
    worker: Arc<Worker>,
    tokens: u64,
    expectation: Option<Expectation>,
}

impl Reservation {
    /// Books one request with this many prompt tokens to compute. The prompt's blocks, as far as they are known, are
    /// expected at the worker from now on.
    pub fn new(worker: &Arc<Worker>, tokens: u64, prediction: &Prediction) -> Self {
        worker.reserved_tokens.fetch_add(tokens, Ordering::Relaxed);
        worker.reserved_requests.fetch_add(1, Ordering::Relaxed);
        let blocks = prediction.blocks(worker);
        Self {
            worker: Arc::clone(worker),
            tokens,
            expectation: blocks.and_then(|blocks| worker.expected().expect(blocks)),
        }
    }

    /// The prompt is computed; the request itself goes on.
    pub fn prefilled(&mut self) {
        self.take_off_tokens();
        if let Some(expectation) = &mut self.expectation {
            expectation.computed(self.worker.is_exactly_known());
        }
    }

    /// The engine did not compute the prompt and never will.
    pub fn refused(&mut self) {
        self.take_off_tokens();
        self.expectation = None;
    }

    fn take_off_tokens(&mut self) {
        self.worker
            .reserved_tokens
            .fetch_sub(std::mem::take(&mut self.tokens), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.take_off_tokens();
        self.worker
            .reserved_requests
            .fetch_sub(1, Ordering::Relaxed);
    }
}

//! A reservation: work that this router has given a worker.

use std::sync::Arc;

use baton_planner::{Booked, Work};

use super::Worker;
use crate::planner::Clock;
use crate::view::{Expectation, Prediction};

/// Tokens after which a sequence's KV is booked anew.
const GROWTH: u64 = 64;

/// Least tokens of a stream that its worker's speed is learnt from.
const LEAST_LEARNT: u64 = 8;

/// Work given to a worker. Dropping it takes the work off again, on every path.
#[derive(Debug)]
pub struct Reservation {
    worker: Arc<Worker>,
    clock: Clock,
    booked: Booked,
    kv_tokens: u64,
    expectations: Vec<Expectation>,
    text: Option<Expectation>,
    stream: Option<Stream>,
    /// Dropped last, when all the rest is given back.
    _room: TellsOfRoom,
}

/// Who waits for room in the worker is to look when this is dropped.
#[derive(Debug)]
struct TellsOfRoom(Arc<Worker>);

impl Drop for TellsOfRoom {
    fn drop(&mut self) {
        self.0.may_have_room();
    }
}

/// The tokens of an answer as they came.
#[derive(Debug)]
struct Stream {
    first: f64,
    last: f64,
    tokens: u64,
}

impl Reservation {
    /// Books one request: a prompt to compute, and the tokens of KV that it uses. The prompt's blocks or its text, as far as
    /// they are known, are expected at the worker from now on.
    pub fn new(
        worker: &Arc<Worker>,
        work: Work,
        kv_tokens: u64,
        prediction: &Prediction,
        clock: Clock,
    ) -> Self {
        let blocks = prediction.blocks(worker).iter();
        let expected = blocks.filter_map(|blocks| worker.expected().expect(blocks));
        let text = prediction.text();
        Self {
            booked: worker.books().book(work, kv_tokens, clock.now()),
            worker: Arc::clone(worker),
            clock,
            kv_tokens,
            expectations: expected.collect(),
            text: text.and_then(|text| worker.texts().expect(text)),
            stream: None,
            _room: TellsOfRoom(Arc::clone(worker)),
        }
    }

    /// What it takes of its worker.
    pub fn booked(&mut self) -> &mut Booked {
        &mut self.booked
    }

    /// The prompt is computed; the request itself goes on.
    pub fn prefilled(&mut self) {
        self.booked.computed(self.clock.now());
        for expectation in &mut self.expectations {
            expectation.computed(self.worker.is_exactly_known());
        }
        if let Some(text) = &mut self.text {
            // Events tell of blocks, never of texts.
            text.computed(false);
        }
    }

    /// Nothing follows here; the prompt's KV is held for another worker.
    pub fn held(&mut self) {
        self.booked.held();
        self.worker.may_have_room();
    }

    /// The engine did not compute the prompt and never will.
    pub fn refused(&mut self) {
        self.booked.refused();
        self.expectations.clear();
        self.text = None;
    }

    /// So many tokens of a streamed answer have come.
    pub fn streamed(&mut self, tokens: u64) {
        let now = self.clock.now();
        let stream = self.stream.get_or_insert(Stream {
            first: now,
            last: now,
            tokens: 0,
        });
        stream.last = now;
        let before = stream.tokens / GROWTH;
        stream.tokens += tokens;
        if stream.tokens / GROWTH > before {
            self.booked.grown(self.kv_tokens + stream.tokens);
        }
    }

    /// The whole answer has come: its worker's speed is learnt from it.
    pub fn answered(&mut self) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        self.worker.books().answered(stream.tokens);
        if stream.tokens >= LEAST_LEARNT {
            #[expect(clippy::cast_precision_loss, reason = "no answer has 2^52 tokens")]
            let steps = (stream.tokens - 1) as f64;
            self.worker
                .books()
                .stepped((stream.last - stream.first) / steps);
        }
    }
}

//! One worker as plans see it: how big it is, what it has to do, and how fast it has shown to be.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::book::{Book, Booked, Load, Work, prior, to_f64};
use crate::fit::Fit;
use crate::room::Room;

/// Tokens that an answer is assumed to have before any was seen.
const ANSWER: f64 = 256.0;

/// Weight of the latest answer in the mean of their lengths.
const LATEST: f64 = 0.02;

/// How big a worker is. What is absent is not known, and bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Tokens of KV that it can hold.
    pub kv_tokens: Option<u64>,
    /// Sequences that run at a time.
    pub sequences: Option<u32>,
    /// Longest sequence.
    pub context: Option<u64>,
    /// Bytes of KV that a token leaves.
    pub bytes_per_token: Option<u64>,
}

/// What workers of one kind have in common.
#[derive(Debug, Default)]
pub struct Kind(Mutex<Speeds>);

/// What is learnt of how fast prompts are computed and tokens come.
#[derive(Debug, Clone, Copy)]
struct Speeds {
    prefill: Fit<3>,
    step: Fit<3>,
    answer: f64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self {
            prefill: Fit::default(),
            step: Fit::default(),
            answer: ANSWER,
        }
    }
}

/// One worker. Shared by all who plan and by the requests that it serves.
#[derive(Debug)]
pub struct Worker {
    number: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    prefill: Fit<3>,
    step: Fit<3>,
    pub(crate) book: Book,
    pub(crate) room: Room,
    kind: Arc<Kind>,
}

impl State {
    /// What its kind has in common; what it has shown itself goes before where that differs.
    fn speeds(&self) -> Speeds {
        let kind = *self.kind.0.lock().unwrap_or_else(PoisonError::into_inner);
        let usual = Work {
            tokens: 1000,
            cached: 0,
        };
        Speeds {
            prefill: *self.prefill.unless_like(&kind.prefill, usual.prior()),
            step: *self.step.unless_like(&kind.step, [prior::STEP_S, 0.0, 0.0]),
            answer: kind.answer,
        }
    }

    fn of_kind(&self, learn: impl FnOnce(&mut Speeds)) {
        learn(&mut self.kind.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The prompt of a leg is computed: the worker learns from it, and its kind.
    pub(crate) fn computed(&mut self, leg: u64, now: f64) {
        let speeds = self.speeds();
        if self.prefill.observed() == 0 {
            self.prefill = speeds.prefill.kindred();
        }
        let before = self
            .book
            .computed(leg, &speeds.prefill, &mut self.prefill, now);
        if let Some(before) = before {
            self.of_kind(|kind| kind.prefill.observe(before.parts, before.took));
        }
    }
}

/// What a plan is made with, and operators see.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Seconds until a prompt that comes now is begun.
    pub waiting: f64,
    /// The same at the least, as far as is known of its speed.
    pub waiting_at_least: f64,
    /// Sequences that it was given here and has not finished.
    pub own_sequences: u32,
    /// Prompt tokens of these that it has not computed.
    pub own_queued_tokens: u64,
    /// Sequences that it has, those that others gave it included.
    pub sequences: u32,
    /// Of these, how many have their prompt and get tokens.
    pub decoding: u32,
    /// Sequences that are to be decoded here and have not come yet.
    pub promised: u32,
    /// Tokens of KV that they use.
    pub kv_tokens: u64,
    /// Seconds of a decode step with one sequence more.
    pub step: f64,
    /// Bytes that leave it at this moment.
    pub bytes_out: u64,
    /// Bytes that come to it.
    pub bytes_in: u64,
    /// Mean length of an answer in tokens.
    pub answer: f64,
    prefill: Fit<3>,
}

impl Figures {
    /// Seconds to compute a prompt.
    pub fn prefill(&self, work: Work) -> f64 {
        self.prefill.seconds(work.prior())
    }

    /// Prompt tokens per second, of prompts of a thousand tokens.
    pub fn tokens_per_second(&self) -> f64 {
        let thousand = Work {
            tokens: 1000,
            cached: 0,
        };
        1000.0 / self.prefill(thousand)
    }

    /// How many prefills it has learnt from.
    pub fn learnt_from(&self) -> u32 {
        self.prefill.observed()
    }
}

static NUMBERS: AtomicU32 = AtomicU32::new(0);

impl Worker {
    /// A worker of which nothing is known, the only one of its kind.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State {
                prefill: Fit::default(),
                step: Fit::default(),
                book: Book::default(),
                room: Room::default(),
                kind: Arc::default(),
            }),
        })
    }

    /// It turned out to be of this kind: it is taken to be as fast as those are until it shows otherwise.
    pub fn is_of(&self, kind: &Arc<Kind>) {
        self.lock().kind = Arc::clone(kind);
    }

    /// Its number, which no other has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Books a leg of a request: a prompt to compute, if any, and the KV that its sequence uses.
    pub fn book(self: &Arc<Self>, work: Work, kv_tokens: u64, now: f64) -> Booked {
        Booked::new(self, work, kv_tokens, now)
    }

    /// Its sidecar reports.
    pub fn report(&self, load: Load) {
        let mut state = self.lock();
        if state.book.report(load) {
            state.room.report(load.kv_tokens);
        }
    }

    /// Its sidecar began anew.
    pub fn forget_reports(&self) {
        let mut state = self.lock();
        state.book.forget_reports();
        state.room.report(None);
    }

    /// A sequence of `kv_tokens` got its tokens this many seconds apart, while the worker had as much to do as now.
    pub fn stepped(&self, seconds: f64) {
        let mut state = self.lock();
        let prior = step(&state.book, 0);
        if state.step.observed() == 0 {
            state.step = state.speeds().step.kindred();
        }
        state.step.observe(prior, seconds);
        state.of_kind(|kind| kind.step.observe(prior, seconds));
    }

    /// An answer ended after so many tokens.
    pub fn answered(&self, tokens: u64) {
        self.lock().of_kind(|kind| {
            kind.answer += (to_f64(tokens) - kind.answer) * LATEST;
        });
    }

    /// Seconds to compute a prompt, as far as it has shown.
    pub fn prefill_seconds(&self, work: Work) -> f64 {
        let speeds = self.lock().speeds();
        speeds.prefill.seconds(work.prior())
    }

    /// What is known of it now. `now` is in seconds of any clock, the same for all calls.
    pub fn figures(&self, now: f64) -> Figures {
        let state = self.lock();
        let Speeds {
            prefill,
            step: steps,
            answer,
        } = state.speeds();
        let book = &state.book;
        Figures {
            waiting: book.waiting(|prior| prefill.seconds(prior), now),
            waiting_at_least: book.waiting(|prior| prefill.at_least(prior), now),
            own_sequences: book.sequences,
            own_queued_tokens: book.queued_tokens(),
            sequences: book.all_sequences(),
            decoding: book.decoding(),
            promised: state.room.promised(),
            kv_tokens: book.all_kv_tokens(),
            step: steps.seconds(step(book, 1)),
            bytes_out: book.bytes_out,
            bytes_in: book.bytes_in,
            answer,
            prefill,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds of a decode step's parts, with so many sequences more, before anything is known of the worker.
fn step(book: &Book, more: u32) -> [f64; 3] {
    let sequences = f64::from(book.all_sequences().saturating_add(more));
    [
        prior::STEP_S,
        sequences * prior::SEQUENCE_S,
        to_f64(book.all_kv_tokens()) * prior::KV_S,
    ]
}

#[cfg(test)]
mod tests;

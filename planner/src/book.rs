//! What a worker was given and has not finished, and what others gave it, as far as its sidecar tells.
//!
//! Prompts are computed in the order in which they came, so the time that a new one waits is the sum of those before it,
//! less what the first of them has had already.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fit::Fit;
use crate::worker::Worker;

/// Part of a prompt that has had its time and is not done cannot count for less than this.
const LEAST_LEFT: f64 = 0.1;

/// A prompt to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Tokens to compute.
    pub tokens: u64,
    /// Tokens before them that are cached.
    pub cached: u64,
}

/// Seconds that parts of a prefill are assumed to take, before anything is known of a worker.
pub(crate) mod prior {
    /// Of any prefill.
    pub(crate) const PREFILL_S: f64 = 0.005;
    /// Of a token.
    pub(crate) const TOKEN_S: f64 = 1.0 / 15_000.0;
    /// Of a token's attention to one other.
    pub(crate) const ATTENTION_S: f64 = TOKEN_S / 40_000.0;
    /// Of any decode step.
    pub(crate) const STEP_S: f64 = 0.008;
    /// Of a sequence in a step.
    pub(crate) const SEQUENCE_S: f64 = 0.000_05;
    /// Of a token of KV that a step looks at.
    pub(crate) const KV_S: f64 = 0.000_000_03;
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of tokens and bytes are far below 2^52"
)]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

impl Work {
    /// Seconds of its parts, before anything is known of who does it.
    pub(crate) fn prior(self) -> [f64; 3] {
        let (tokens, cached) = (to_f64(self.tokens), to_f64(self.cached));
        let pairs = tokens * (cached + tokens / 2.0);
        [
            prior::PREFILL_S,
            tokens * prior::TOKEN_S,
            pairs * prior::ATTENTION_S,
        ]
    }

    fn is_none(self) -> bool {
        self.tokens == 0
    }
}

/// A sidecar's report. What is absent is not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Grows with each report of a sidecar's life.
    pub seq: u64,
    /// Sequences that run or wait.
    pub sequences: Option<u32>,
    /// Prompt tokens that are not computed yet.
    pub queued_tokens: Option<u64>,
    /// Tokens of KV that sequences use.
    pub kv_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    id: u64,
    work: Work,
    since: f64,
    /// It is seen when this is done.
    seen: bool,
}

/// What is not finished.
#[derive(Debug, Default)]
pub(crate) struct Book {
    serial: u64,
    queue: VecDeque<Queued>,
    /// When the last prompt was done.
    last_done: f64,
    last_learnt: Option<Learnt>,
    pub(crate) sequences: u32,
    pub(crate) kv_tokens: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    foreign: Foreign,
}

/// What was learnt last, to be learnt again together with what was done at the same time.
#[derive(Debug)]
pub(crate) struct Learnt {
    own_before: Fit<3>,
    /// Seconds of its parts by their priors.
    pub(crate) parts: [f64; 3],
    begun: f64,
    /// Seconds that it took.
    pub(crate) took: f64,
}

/// A prompt that was queued behind another one and took less than this share of what it should was computed together with that.
const TOGETHER: f64 = 0.3;

/// What others gave the worker, as of its last report.
#[derive(Debug, Clone, Copy, Default)]
struct Foreign {
    seq: u64,
    sequences: u32,
    queued_tokens: u64,
    kv_tokens: u64,
}

impl Book {
    pub(crate) fn queued_tokens(&self) -> u64 {
        self.queue.iter().map(|queued| queued.work.tokens).sum()
    }

    /// A report that is not older than the last one. What this router gave is in its own books to the last token; all
    /// that is reported beyond that, others gave. Whether it was not older.
    pub(crate) fn report(&mut self, load: Load) -> bool {
        if load.seq < self.foreign.seq {
            return false;
        }
        self.foreign = Foreign {
            seq: load.seq,
            sequences: load.sequences.unwrap_or(0).saturating_sub(self.sequences),
            queued_tokens: load
                .queued_tokens
                .unwrap_or(0)
                .saturating_sub(self.queued_tokens()),
            kv_tokens: load.kv_tokens.unwrap_or(0).saturating_sub(self.kv_tokens),
        };
        true
    }

    /// Its sidecar began anew, and its reports with it.
    pub(crate) fn forget_reports(&mut self) {
        self.foreign = Foreign::default();
    }

    /// Sequences of all routers.
    pub(crate) fn all_sequences(&self) -> u32 {
        self.sequences.saturating_add(self.foreign.sequences)
    }

    /// Sequences that have their prompt, as far as this router knows; of others it is not told.
    pub(crate) fn decoding(&self) -> u32 {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        self.all_sequences().saturating_sub(queued)
    }

    /// Tokens of KV that those of all routers use.
    pub(crate) fn all_kv_tokens(&self) -> u64 {
        self.kv_tokens.saturating_add(self.foreign.kv_tokens)
    }

    /// Seconds until a prompt that comes now is begun, by the seconds of the parts of those before it.
    pub(crate) fn waiting(&self, seconds: impl Fn([f64; 3]) -> f64, now: f64) -> f64 {
        let foreign = Work {
            tokens: self.foreign.queued_tokens,
            cached: 0,
        };
        let foreign = if foreign.is_none() {
            0.0
        } else {
            seconds(foreign.prior())
        };
        let free = self.queue.iter().fold(self.last_done, |free, queued| {
            let takes = seconds(queued.work.prior());
            let end = free.max(queued.since) + takes;
            // What is known not to be done takes some more time, however late it is.
            if queued.seen {
                end.max(now + takes * LEAST_LEFT)
            } else {
                end
            }
        });
        (free - now).max(0.0) + foreign
    }

    fn enqueue(&mut self, work: Work, now: f64) -> u64 {
        self.serial += 1;
        if !work.is_none() {
            let id = self.serial;
            let since = now;
            let seen = true;
            self.queue.push_back(Queued {
                id,
                work,
                since,
                seen,
            });
        }
        self.serial
    }

    fn dequeue(&mut self, id: u64) -> Option<Queued> {
        let at = self.queue.iter().position(|queued| queued.id == id)?;
        self.queue.remove(at)
    }

    /// A prompt is computed, and `own` learns from it. Of prompts that were computed in the same steps the first one seems to
    /// have taken all the time and the others none: they are learnt as one. What was learnt before is returned when nothing
    /// can be added to it any more.
    pub(crate) fn computed(
        &mut self,
        id: u64,
        usual: &Fit<3>,
        own: &mut Fit<3>,
        now: f64,
    ) -> Option<Learnt> {
        let done = self.dequeue(id).filter(|done| done.seen)?;
        let was_queued = done.since < self.last_done;
        let begun = done.since.max(self.last_done);
        self.last_done = now;
        // Work of other routers is done in between, as much as there is beside the own.
        let queued = to_f64(self.queued_tokens() + done.work.tokens);
        let beside = 1.0 + to_f64(self.foreign.queued_tokens) / queued;
        let parts = done.work.prior().map(|part| part * beside);
        let together = was_queued && now - begun < TOGETHER * usual.seconds(parts);
        let (before, mut learnt) = match self.last_learnt.take() {
            Some(last) if together => {
                *own = last.own_before;
                (None, last)
            }
            before => {
                let learnt = Learnt {
                    own_before: *own,
                    parts: [0.0; 3],
                    begun,
                    took: 0.0,
                };
                (before, learnt)
            }
        };
        for (sum, part) in learnt.parts.iter_mut().zip(parts) {
            *sum += part;
        }
        learnt.took = now - learnt.begun;
        own.observe(learnt.parts, learnt.took);
        self.last_learnt = Some(learnt);
        before
    }
}

/// What one leg of a request takes of a worker. Dropping it gives that back, on every path.
#[derive(Debug)]
pub struct Booked {
    worker: Arc<Worker>,
    id: u64,
    kv_tokens: u64,
    /// Of these, how many nobody else has there.
    own_tokens: u64,
    /// Its sequence runs, or waits to.
    runs: bool,
    /// Bytes that are moved: to here, and from whom.
    moving: Option<(u64, Arc<Worker>)>,
}

impl Booked {
    pub(crate) fn new(worker: &Arc<Worker>, work: Work, kv_tokens: u64, now: f64) -> Self {
        let mut state = worker.lock();
        state.book.sequences += 1;
        state.book.kv_tokens += kv_tokens;
        let id = state.book.enqueue(work, now);
        let own_tokens = if work.is_none() {
            kv_tokens
        } else {
            work.tokens
        };
        state.room.given(own_tokens);
        drop(state);
        Self {
            worker: Arc::clone(worker),
            id,
            kv_tokens,
            own_tokens,
            runs: true,
            moving: None,
        }
    }

    /// KV of so many bytes is on its way to here from another worker.
    pub fn moves(&mut self, bytes: u64, from: &Arc<Worker>) {
        self.arrived();
        self.worker.lock().book.bytes_in += bytes;
        from.lock().book.bytes_out += bytes;
        self.moving = Some((bytes, Arc::clone(from)));
    }

    /// The KV is here.
    pub fn arrived(&mut self) {
        if let Some((bytes, from)) = self.moving.take() {
            self.worker.lock().book.bytes_in -= bytes;
            from.lock().book.bytes_out -= bytes;
        }
    }

    /// It will not be seen when the prompt is computed, but only when all is over: nothing can be learnt from it, and it is
    /// taken to be computed when it should be.
    pub fn unseen(&mut self) {
        let mut state = self.worker.lock();
        let mut queue = state.book.queue.iter_mut();
        if let Some(queued) = queue.find(|queued| queued.id == self.id) {
            queued.seen = false;
        }
    }

    /// The prompt is computed; the sequence goes on. The worker learns from it.
    pub fn computed(&mut self, now: f64) {
        self.worker.lock().computed(self.id, now);
    }

    /// The prompt is computed and nothing follows here; its KV is held for another worker.
    pub fn held(&mut self) {
        if std::mem::take(&mut self.runs) {
            self.worker.lock().book.sequences -= 1;
        }
    }

    /// The prompt will never be computed.
    pub fn refused(&mut self) {
        self.worker.lock().book.dequeue(self.id);
    }

    /// The sequence has so many tokens by now.
    pub fn grown(&mut self, kv_tokens: u64) {
        let mut state = self.worker.lock();
        state.book.kv_tokens = state.book.kv_tokens - self.kv_tokens + kv_tokens;
        let more = kv_tokens.saturating_sub(self.kv_tokens);
        state.room.given(more);
        self.own_tokens += more;
        self.kv_tokens = kv_tokens;
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.arrived();
        self.held();
        let mut state = self.worker.lock();
        state.book.dequeue(self.id);
        state.book.kv_tokens -= self.kv_tokens;
        state.room.ended(self.own_tokens);
    }
}

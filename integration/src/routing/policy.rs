//! What a routing policy is asked, and all that it is told: what a router can see, and nothing that only an engine knows.
//!
//! Times are seconds since the start of the simulation. Workers are numbered from 0, requests by their place in the trace.

use std::sync::Arc;

use baton_proto::worker::Role;

/// Chooses workers.
pub trait Policy {
    /// Its name in figures.
    fn name(&self) -> &'static str;

    /// Where a request that came now is to run.
    fn choose(&mut self, now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice;

    /// How many tokens of a request's prompt it tells the worker are left to compute; it tells nothing if there is no number.
    fn uncached(&self, _request: u32) -> Option<u32> {
        None
    }

    /// Something happened that a router gets to know.
    fn told(&mut self, now: f64, news: &News<'_>);

    /// Whether it is to be told of every token ([`News::Token`]), of which there are millions.
    fn wants_tokens(&self) -> bool {
        false
    }
}

/// A request as a router knows it: its answer's length is not known.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Which.
    pub request: u32,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Sequence hashes of the prompt's full blocks.
    pub blocks: Arc<[u64]>,
}

/// What is known of all workers when a request comes.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What each worker said of itself when it registered.
    pub workers: &'a [Facts],
    /// What each worker is known to hold of this request's prompt.
    pub cached: &'a [Cached],
}

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Which legs it may serve.
    pub role: Role,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of its cache.
    pub blocks: u32,
    /// Sequences that run at a time.
    pub max_sequences: u32,
    /// Tokens that a step computes at most.
    pub max_batched_tokens: u32,
    /// Bytes of KV that a token leaves.
    pub kv_bytes_per_token: u32,
    /// Tokens of the longest sequence.
    pub context_length: u32,
}

/// What a worker is known to hold of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cached {
    /// Blocks from the first one on without a gap, as its events tell, some milliseconds late.
    pub blocks: u32,
    /// Whether its events come at all. If not, `blocks` is 0 and means nothing.
    pub known: bool,
}

/// Where a request is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// One worker does it all.
    Local {
        /// Which.
        worker: usize,
    },
    /// One computes the prompt, another one generates.
    Split {
        /// Who computes the prompt.
        prefill: usize,
        /// Who pulls its KV and generates.
        decode: usize,
    },
    /// None: the client is told so at once.
    Refuse,
}

/// What a router gets to know between requests.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// A prefill leg was answered: its KV is held for decode, and the decode leg goes out now.
    PrefillReady {
        /// Of which request.
        request: u32,
        /// By whom.
        worker: usize,
        /// Prompt tokens that it had cached, as the answer's usage says.
        cached: u32,
    },
    /// A request's KV was moved. Told with the first load report after it.
    Transferred {
        /// Of which request.
        request: u32,
        /// From whom.
        from: usize,
        /// To whom.
        to: usize,
        /// How much of it.
        bytes: u64,
        /// How long a transfer to this worker took in the mean since the report before: engines tell no more than sums.
        seconds: f64,
    },
    /// The first token of an answer came.
    FirstToken {
        /// Of which request.
        request: u32,
        /// From whom.
        worker: usize,
    },
    /// A later token came. Told only to those who want it, and when it leaves the worker.
    Token {
        /// Of which request.
        request: u32,
        /// From whom.
        worker: usize,
    },
    /// An answer is complete.
    Finished {
        /// Of which request.
        request: u32,
        /// From whom.
        worker: usize,
        /// Prompt tokens that were cached where the prompt was computed, as the answer's usage says.
        cached: u32,
        /// Tokens of the answer.
        generated: u32,
    },
    /// A worker reported its load.
    Load {
        /// Which.
        worker: usize,
        /// How it was when the report was written.
        load: Load,
    },
    /// A worker's cache changed.
    Kv {
        /// Which.
        worker: usize,
        /// How, in order.
        changes: &'a [KvChange],
    },
}

/// A load report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Grows by one with each report of a worker.
    pub sequence: u64,
    /// When it was written: dispatches of before are in it if they had arrived by then.
    pub written: f64,
    /// Sequences being computed.
    pub running: u32,
    /// Sequences waiting in the engine, those whose KV is coming included.
    pub waiting: u32,
    /// Prompt tokens of prefill and local legs that have no token yet, less what the router said is cached: the sidecar's own
    /// table, which does not see how far the engine has come.
    pub queued_prefill_tokens: u64,
    /// Blocks that nobody uses.
    pub free_blocks: u32,
    /// Handoffs whose KV is held there.
    pub handoffs_held: u32,
    /// Handoffs being pulled in there.
    pub handoffs_pulling: u32,
}

/// A change of a worker's cache. Each block is told once, however many copies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvChange {
    /// A block can be found from now on.
    Stored(u64),
    /// It cannot be found any more.
    Removed(u64),
}

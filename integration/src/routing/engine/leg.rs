//! A leg of a request, and where it stands in the engine.

use std::sync::Arc;

use crate::emulated::pool::{BlockHash, BlockId};
use crate::routing::trace::chained;

/// What a router sends to an engine.
#[derive(Debug, Clone)]
pub struct Leg {
    /// Of which request. An engine serves one leg of a request.
    pub request: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of these, how many the router says are left to compute.
    pub uncached: u32,
    /// Tokens to generate.
    pub answer: u32,
    /// Sequence hashes of the prompt's full blocks.
    pub blocks: Arc<[u64]>,
    /// What is done with its KV beyond this engine.
    pub handoff: Handoff,
}

/// What is done with KV beyond an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handoff {
    /// Nothing.
    None,
    /// It is held for a decode leg.
    Hold,
    /// It is pulled from its holder.
    Fetch {
        /// Who.
        from: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Fetching,
    /// Its KV is here; it waits for a place in a step.
    Fetched,
    Running,
}

/// A leg in the engine.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) leg: Leg,
    pub(super) phase: Phase,
    pub(super) generated: u32,
    /// Of full blocks, as far as they were needed.
    pub(super) hashes: Vec<BlockHash>,
    pub(super) blocks: Vec<BlockId>,
    /// Blocks that others can find.
    pub(super) stored: usize,
    /// Tokens whose KV is in the blocks.
    pub(super) computed: usize,
    /// Prompt tokens that were cached when it began.
    pub(super) local_hit: usize,
    /// It began once.
    pub(super) started: bool,
}

impl Sequence {
    pub(super) fn new(leg: Leg, block_size: u32) -> Self {
        debug_assert_eq!(leg.blocks.len(), (leg.prompt / block_size) as usize);
        Self {
            hashes: leg.blocks.iter().copied().map(wide).collect(),
            leg,
            phase: Phase::Waiting,
            generated: 0,
            blocks: Vec::new(),
            stored: 0,
            computed: 0,
            local_hit: 0,
            started: false,
        }
    }

    /// Tokens of prompt and answer so far.
    pub(super) fn tokens(&self) -> usize {
        (self.leg.prompt + self.generated) as usize
    }

    /// Names the full blocks that are partly or wholly the answer's, which nobody else has.
    pub(super) fn extend_hashes(&mut self, full: usize) {
        for block in self.hashes.len()..full {
            let parent = self.hashes.last().map_or(0, word);
            let own = u64::from(self.leg.request) << 32 | 1 << 31 | block as u64;
            self.hashes.push(wide(chained(parent, own)));
        }
    }

    /// The KV of the whole prompt is here; the last token is computed once more, for its logits.
    pub(super) fn take_fetched(&mut self) {
        self.computed = self.leg.prompt as usize - 1;
        self.phase = Phase::Fetched;
    }

    /// Begins anew: its blocks are gone, what it generated is not.
    #[must_use]
    pub(super) fn forget_kv(&mut self) -> Vec<BlockId> {
        self.stored = 0;
        self.computed = 0;
        self.phase = Phase::Waiting;
        std::mem::take(&mut self.blocks)
    }
}

/// A sequence hash in the form that the pool knows.
pub(super) fn wide(word: u64) -> BlockHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&word.to_le_bytes());
    hash
}

/// The sequence hash in what the pool knows.
pub(super) fn word(hash: &BlockHash) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(word)
}

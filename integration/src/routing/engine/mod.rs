//! One engine's rank in virtual time, as [`crate::emulated::core`] has it, without tokens and bytes.
//!
//! The cache is the emulated engines' own [`Pool`], with blocks of no bytes; the time of a step is their own [`Speed`].
//! What is written anew here is the scheduler in between, which works on counts of tokens instead of tokens. That it decides
//! what the emulated one decides is tested (`tests/routing_twin.rs`). It has no clock: whoever drives it says when a step
//! is over.

mod leg;
mod step;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;

pub use self::leg::{Handoff, Leg};
use self::leg::{Phase, Sequence};
use super::policy::KvChange;
use crate::emulated::pool::{BlockHash, BlockId, CacheKeys, Change, Pool};
use crate::emulated::speed::{self, Speed};

/// How a rank is made.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks that can be used.
    pub blocks: u32,
    /// Tokens that a step computes at most.
    pub max_batched_tokens: usize,
    /// Sequences that run at a time.
    pub max_sequences: usize,
    /// How long a step takes.
    pub speed: Speed,
    /// Of jitter.
    pub seed: u64,
}

/// One rank.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pool: Pool,
    sequences: HashMap<u32, Sequence>,
    waiting: VecDeque<u32>,
    running: Vec<u32>,
    held: HashMap<u32, Vec<BlockId>>,
    /// Copies of each block that can be found.
    copies: HashMap<BlockHash, u32>,
    random: StdRng,
    /// What the step that is under way computes.
    step: Option<Vec<(u32, usize)>>,
    stats: Stats,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps.
    pub steps: u64,
    /// Sequences that lost their place to others.
    pub preemptions: u64,
    /// Prompt tokens of legs that began, but for decode legs.
    pub prompt_tokens: u64,
    /// Of these, how many were cached.
    pub cached_tokens: u64,
    /// All time of steps.
    pub busy: Duration,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Planned {
    /// A step began that takes so long.
    Step(Duration),
    /// Nothing, unless something comes.
    Idle,
}

/// KV that a decode leg waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Of which request.
    pub request: u32,
    /// Who holds it.
    pub from: usize,
    /// Tokens to move, in whole blocks.
    pub tokens: u64,
}

/// What came of a step for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Which.
    pub request: u32,
    /// Tokens that it has now.
    pub generated: u32,
    /// Set with the last one.
    pub finish: Option<Finish>,
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// Prompt tokens that were cached here.
    pub cached: u32,
    /// Its KV is held for decode.
    pub held: bool,
}

/// How busy it is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Busy {
    /// Sequences being computed.
    pub running: u32,
    /// Sequences that wait for a place, or for their KV.
    pub waiting: u32,
    /// Of the waiting ones, those whose KV is on its way.
    pub fetching: u32,
    /// Requests whose KV is held.
    pub held: u32,
    /// Blocks that nobody uses.
    pub free_blocks: u32,
    /// Prompt tokens of legs that are to compute a prompt and have no token yet, as far as the router says they are uncached.
    pub queued_prefill_tokens: u64,
}

impl Engine {
    /// A rank with an empty cache.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            // One more: the null block.
            pool: Pool::new(config.blocks + 1, 0),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            held: HashMap::new(),
            copies: HashMap::new(),
            random: speed::random(config.seed, 0),
            step: None,
            stats: Stats::default(),
            config,
        }
    }

    /// Takes a leg. It begins with the next step.
    pub fn submit(&mut self, leg: Leg) {
        self.waiting.push_back(leg.request);
        self.sequences
            .insert(leg.request, Sequence::new(leg, self.config.block_size));
    }

    /// Whether a step is under way.
    pub fn is_stepping(&self) -> bool {
        self.step.is_some()
    }

    /// KV that was sent for came; or could not come, and is computed.
    pub fn fetched(&mut self, request: u32, came: bool) {
        let Some(sequence) = self.sequences.get_mut(&request) else {
            return;
        };
        if came {
            sequence.take_fetched();
        } else {
            let blocks = sequence.forget_kv();
            sequence.leg.handoff = Handoff::None;
            self.pool.give_back(&blocks);
        }
        self.waiting.push_front(request);
        if came {
            self.store_full_blocks(request);
        }
    }

    /// KV that is held is not needed any more. False if it is not held.
    pub fn release(&mut self, request: u32) -> bool {
        let held = self.held.remove(&request);
        held.inspect(|blocks| self.pool.give_back(blocks)).is_some()
    }

    /// Whether it holds this request's KV for decode.
    pub fn holds(&self, request: u32) -> bool {
        self.held.contains_key(&request)
    }

    /// Blocks that came or went since the last call, each told once however many copies there are.
    pub fn take_changes(&mut self) -> Vec<KvChange> {
        let mut told = Vec::new();
        for change in self.pool.take_changes() {
            match change {
                Change::Stored { hashes, .. } => {
                    for hash in hashes {
                        let copies = self.copies.entry(hash).or_default();
                        *copies += 1;
                        if *copies == 1 {
                            told.push(KvChange::Stored(leg::word(&hash)));
                        }
                    }
                }
                Change::Removed(hash) => {
                    let copies = self.copies.entry(hash).or_default();
                    *copies = copies.saturating_sub(1);
                    if *copies == 0 {
                        self.copies.remove(&hash);
                        told.push(KvChange::Removed(leg::word(&hash)));
                    }
                }
                // Nothing is copied to the host's memory here.
                Change::Cleared
                | Change::Copied { .. }
                | Change::RemovedFromHost(_)
                | Change::Offloaded(_)
                | Change::Onboarded(_) => {}
            }
        }
        told
    }

    /// How busy it is.
    pub fn busy(&self) -> Busy {
        let mut busy = Busy {
            running: count(self.running.len()),
            held: count(self.held.len()),
            free_blocks: count(self.pool.available()),
            ..Busy::default()
        };
        for sequence in self.sequences.values() {
            match sequence.phase {
                Phase::Waiting | Phase::Fetched => busy.waiting += 1,
                Phase::Fetching => {
                    busy.waiting += 1;
                    busy.fetching += 1;
                }
                Phase::Running => {}
            }
            let computes = !matches!(sequence.leg.handoff, Handoff::Fetch { .. });
            if computes && sequence.generated == 0 {
                busy.queued_prefill_tokens += u64::from(sequence.leg.uncached);
            }
        }
        busy
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Blocks in use, which there are none of when nothing runs and nothing is held.
    pub fn blocks_used(&self) -> usize {
        self.pool.usage().0
    }

    /// Requests that have not ended here.
    pub fn open(&self) -> usize {
        self.sequences.len()
    }

    /// Lets others find the blocks that are full now.
    fn store_full_blocks(&mut self, request: u32) {
        let Some(sequence) = self.sequences.get_mut(&request) else {
            return;
        };
        let full = sequence.computed / self.config.block_size as usize;
        if full <= sequence.stored {
            return;
        }
        sequence.extend_hashes(full);
        let blocks: Vec<(BlockId, BlockHash)> = (sequence.stored..full)
            .map(|block| (sequence.blocks[block], sequence.hashes[block]))
            .collect();
        sequence.stored = full;
        self.pool.store(&blocks, None, &[], &CacheKeys::default());
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

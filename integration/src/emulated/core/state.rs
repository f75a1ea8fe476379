//! All that a rank remembers.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use tokio::sync::mpsc;

use super::handoff::Held;
use super::sequence::{Handoff, Output, Phase, Request, Sequence};
use super::{CoreConfig, Failure, Measured};
use crate::emulated::pool::Pool;
use crate::emulated::speed;

/// Counts since the start of a rank, and what is true now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Sequences that get tokens now.
    pub running: usize,
    /// Sequences that wait for a place.
    pub waiting: usize,
    /// Sequences that wait for their KV.
    pub fetching: usize,
    /// Blocks in use.
    pub blocks_used: usize,
    /// Blocks that there are.
    pub blocks: usize,
    /// Prompt tokens that were looked for in the cache.
    pub cache_queries: u64,
    /// Prompt tokens that were found there.
    pub cache_hits: u64,
    /// Prompt tokens that were not found there, and for which the connector was asked.
    pub external_queries: u64,
    /// Prompt tokens that the connector promised, whether they came or not.
    pub external_hits: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Prompt tokens that came from other engines.
    pub external_tokens: u64,
    /// Prompt tokens of requests that began.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that ended, by reason.
    pub finished: HashMap<&'static str, u64>,
    /// Sequences that lost their place to others.
    pub preemptions: u64,
    /// Steps.
    pub steps: u64,
    /// Transfers that did not come.
    pub failed_transfers: u64,
    /// Held KV that nobody fetched in time.
    pub expired: u64,
    /// Notifications about KV that is not held.
    pub unrecognized_notifications: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) pool: Pool,
    pub(super) sequences: HashMap<u64, Sequence>,
    pub(super) waiting: VecDeque<u64>,
    pub(super) running: Vec<u64>,
    pub(super) held: HashMap<String, Held>,
    pub(super) stats: Stats,
    pub(super) random: StdRng,
    /// What was measured since the last step.
    pub(super) measured: Vec<Measured>,
    next_key: u64,
}

impl State {
    pub(super) fn new(pool: Pool, config: &CoreConfig) -> Self {
        Self {
            pool,
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            held: HashMap::new(),
            stats: Stats::default(),
            random: speed::random(config.seed, config.rank),
            measured: Vec::new(),
            next_key: 0,
        }
    }

    pub(super) fn admit(
        &mut self,
        request: Request,
        config: &CoreConfig,
    ) -> (u64, mpsc::Receiver<Output>) {
        let (mut sequence, outputs) = Sequence::new(request);
        sequence.extend_hashes(config.block_size as usize, config.hash);
        self.next_key += 1;
        self.sequences.insert(self.next_key, sequence);
        self.waiting.push_back(self.next_key);
        (self.next_key, outputs)
    }

    /// Takes a sequence out; what was to be done with its KV elsewhere, if that did not happen yet.
    pub(super) fn abort(&mut self, key: u64) -> Option<Handoff> {
        let phase = self.sequences.get(&key)?.phase;
        if phase == Phase::Fetching {
            // Its blocks are being written: it ends when they are.
            self.sequences.get_mut(&key)?.given_up = true;
            return None;
        }
        let sequence = self.remove(key)?;
        *self.stats.finished.entry("abort").or_default() += 1;
        (phase == Phase::Waiting).then_some(sequence.handoff)
    }

    pub(super) fn abort_by_id(&mut self, id: &str) {
        let keys: Vec<u64> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.is_called(id) && sequence.phase != Phase::Fetching)
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            if let Some(sequence) = self.remove(key) {
                *self.stats.finished.entry("abort").or_default() += 1;
                sequence.say(Output::Aborted);
            }
        }
    }

    /// Takes a sequence out and gives its blocks back.
    pub(super) fn remove(&mut self, key: u64) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&key)?;
        self.waiting.retain(|waiting| *waiting != key);
        self.running.retain(|running| *running != key);
        self.pool.give_back(&std::mem::take(&mut sequence.blocks));
        Some(sequence)
    }

    /// KV came from another engine, or did not.
    pub(super) fn fetched(
        &mut self,
        key: u64,
        rows: Result<Vec<u8>, Failure>,
        took: Duration,
        config: &CoreConfig,
    ) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        if sequence.given_up {
            // Nobody looks at what came, so that nobody finds it later either.
            self.remove(key);
            return;
        }
        match rows {
            Ok(rows) => {
                self.write_fetched(key, &rows, took, config);
            }
            Err(_) if config.recompute_failed_loads => {
                self.stats.failed_transfers += 1;
                let blocks = std::mem::take(&mut sequence.blocks);
                sequence.forget_kv();
                sequence.handoff = Handoff::None;
                self.pool.give_back(&blocks);
                self.waiting.push_front(key);
            }
            Err(_) => {
                self.stats.failed_transfers += 1;
                sequence.say(Output::LoadFailed);
                *self.stats.finished.entry("error").or_default() += 1;
                self.remove(key);
            }
        }
    }

    fn write_fetched(&mut self, key: u64, rows: &[u8], took: Duration, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        let block_bytes = config.block_bytes();
        let first = sequence.computed / config.block_size as usize;
        let blocks = &sequence.blocks[first..];
        self.measured.push(Measured::Transfer {
            took,
            bytes: rows.len(),
            blocks: blocks.len(),
        });
        for (id, bytes) in blocks.iter().zip(rows.chunks(block_bytes)) {
            self.pool.write(*id, 0, bytes);
        }
        sequence.fetched = sequence.prompt_len - sequence.computed;
        if let Handoff::Fetch(remote) = &sequence.handoff {
            sequence.said_elsewhere = remote.first_token;
        }
        // The last token is computed once more, for its logits.
        sequence.computed = sequence.prompt_len - 1;
        sequence.phase = Phase::Fetched;
        self.stats.external_tokens += sequence.fetched as u64;
        self.waiting.push_front(key);
        self.store_full_blocks(key, config);
    }

    pub(super) fn stats(&self) -> Stats {
        let (blocks_used, blocks) = self.pool.usage();
        let in_phase = |phase| {
            let sequences = self.sequences.values();
            sequences.filter(|sequence| sequence.phase == phase).count()
        };
        Stats {
            running: self.running.len(),
            waiting: in_phase(Phase::Waiting) + in_phase(Phase::Fetched),
            fetching: in_phase(Phase::Fetching),
            blocks_used,
            blocks,
            ..self.stats.clone()
        }
    }
}

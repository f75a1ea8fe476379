//! What a rank tells: of its cache as events, of its steps as iteration statistics.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::super::core::{Core, Listener, Measured};
use super::super::pool::{BlockHash, Change};
use super::super::texts::Texts;
use super::config::{Config, Era, HashAlgo};
use super::events::{Data, Name, StoredBlock};
use super::hash::first_eight;
use super::iterations::Iterations;
use super::outbox::Outbox;

/// What a rank told so far.
pub(super) struct Telling {
    rank: u32,
    era: Era,
    algo: HashAlgo,
    tokens_per_block: u32,
    outbox: Option<Arc<Outbox>>,
    iterations: Arc<Iterations>,
    core: OnceLock<Weak<Core>>,
    /// Blocks that were told and not taken back.
    present: Mutex<HashSet<BlockHash>>,
    texts: Option<Arc<Mutex<Texts>>>,
}

impl Telling {
    pub(super) fn new(
        rank: u32,
        config: &Config,
        outbox: Option<Arc<Outbox>>,
        iterations: Arc<Iterations>,
    ) -> Self {
        let telling = Self {
            rank,
            era: config.era,
            algo: config.hash_algo,
            tokens_per_block: config.tokens_per_block,
            outbox,
            iterations,
            core: OnceLock::new(),
            present: Mutex::default(),
            texts: config.remember.then(Arc::default),
        };
        telling.tell(&[Data::Created {
            num_blocks_per_cache_level: [config.blocks as usize, config.host_blocks],
        }]);
        telling
    }

    /// It tells of this one.
    pub(super) fn of(&self, core: &Arc<Core>) {
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// What is remembered of the cache.
    pub(super) fn texts(&self) -> Option<Arc<Mutex<Texts>>> {
        self.texts.clone()
    }

    fn tell(&self, told: &[Data]) {
        if let Some(outbox) = &self.outbox {
            outbox.tell(self.rank, told);
        }
    }

    fn name(&self, hash: &BlockHash) -> Name {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        match self.algo {
            HashAlgo::V1BlockKey => Name::Number(first_eight(hash)),
            HashAlgo::V2Sha256Short => Name::Number(u64::from_be_bytes(first)),
            HashAlgo::V2Sha256 => {
                let digits = hash.iter().map(|byte| format!("{byte:02x}"));
                Name::Hex(digits.collect())
            }
        }
    }

    /// What is told together: blocks in a row, and removals in a row.
    fn events(&self, changes: Vec<Change>) -> Vec<Data> {
        let mut events: Vec<Data> = Vec::new();
        for change in changes {
            let Some(next) = self.event(change) else {
                continue;
            };
            match (events.last_mut(), next) {
                (
                    Some(Data::Stored { blocks, .. }),
                    Data::Stored {
                        parent_hash: Some(parent),
                        blocks: next,
                    },
                ) if blocks.last().is_some_and(|last| last.block_hash == parent) => {
                    blocks.extend(next);
                }
                (Some(Data::Removed { block_hashes }), Data::Removed { block_hashes: next }) => {
                    block_hashes.extend(next)
                }
                (_, next) => events.push(next),
            }
        }
        events
    }

    fn event(&self, change: Change) -> Option<Data> {
        let mut present = self.present.lock().unwrap();
        let removed = |hashes: Vec<BlockHash>| {
            let block_hashes: Vec<Name> = hashes.iter().map(|hash| self.name(hash)).collect();
            (!block_hashes.is_empty()).then_some(Data::Removed { block_hashes })
        };
        match change {
            Change::Stored {
                hashes,
                parent,
                tokens,
                keys,
            } => {
                present.extend(&hashes);
                let tokens = tokens.chunks(self.tokens_per_block as usize);
                let block = |(hash, tokens)| {
                    StoredBlock::new(self.era, self.name(hash), tokens, keys.salt.as_deref())
                };
                Some(Data::Stored {
                    parent_hash: parent.map(|parent| self.name(&parent)),
                    blocks: hashes.iter().zip(tokens).map(block).collect(),
                })
            }
            Change::Removed(hash) | Change::RemovedFromHost(hash) => {
                present.remove(&hash);
                removed(vec![hash])
            }
            Change::Offloaded(hash) => Some(Data::moved(self.name(&hash), 0, 1)),
            Change::Onboarded(hash) => Some(Data::moved(self.name(&hash), 1, 0)),
            // There is no word for it: every block is taken back.
            Change::Cleared => removed(present.drain().collect()),
            Change::Copied { .. } => unreachable!("the host's memory has what was evicted"),
        }
    }
}

impl Listener for Telling {
    fn changed(&self, changes: Vec<Change>) {
        if let Some(texts) = &self.texts {
            texts.lock().unwrap().add(&changes, self.tokens_per_block);
        }
        self.tell(&self.events(changes));
    }

    fn measured(&self, measured: Vec<Measured>) {
        let core = self.core.get().and_then(Weak::upgrade);
        let step = measured
            .iter()
            .any(|of| matches!(of, Measured::Step { .. }));
        if let Some(core) = core.filter(|_| step) {
            self.iterations.add(&core);
        }
    }
}

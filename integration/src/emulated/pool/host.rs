//! Copies of blocks in the host's memory: they outlive the eviction of their originals, and are evicted by themselves.

use std::collections::{BTreeMap, HashMap};

use super::BlockHash;

/// The host's part of a cache; least recently used goes first.
#[derive(Debug)]
pub(super) struct Host {
    capacity: usize,
    blocks: HashMap<BlockHash, (u64, Vec<u8>)>,
    used: BTreeMap<u64, BlockHash>,
    next: u64,
}

impl Host {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: HashMap::new(),
            used: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn holds(&self, hash: &BlockHash) -> bool {
        self.blocks.contains_key(hash)
    }

    pub(super) fn held(&self) -> Vec<BlockHash> {
        self.blocks.keys().copied().collect()
    }

    /// Keeps a copy; gives what had to go for it.
    pub(super) fn keep(&mut self, hash: BlockHash, bytes: Vec<u8>) -> Option<BlockHash> {
        self.put(hash, bytes);
        if self.blocks.len() <= self.capacity {
            return None;
        }
        let (_, oldest) = self.used.pop_first()?;
        self.blocks.remove(&oldest);
        Some(oldest)
    }

    /// The bytes of a block, which is used by that.
    pub(super) fn get(&mut self, hash: &BlockHash) -> Option<Vec<u8>> {
        let (stamp, bytes) = self.blocks.remove(hash)?;
        self.used.remove(&stamp);
        self.put(*hash, bytes.clone());
        Some(bytes)
    }

    fn put(&mut self, hash: BlockHash, bytes: Vec<u8>) {
        self.used.insert(self.next, hash);
        self.blocks.insert(hash, (self.next, bytes));
        self.next += 1;
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.used.clear();
    }
}

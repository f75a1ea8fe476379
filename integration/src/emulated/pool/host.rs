//! Blocks in the host's memory, copied there or moved: they outlive their eviction, and are evicted from there by themselves.

use std::collections::{BTreeMap, HashMap};

use super::BlockHash;

/// The host's part of a cache; least recently used goes first.
#[derive(Debug)]
pub(super) struct Host {
    capacity: usize,
    /// Blocks come here when they are evicted, and go when they are used again.
    evicted: bool,
    blocks: HashMap<BlockHash, (u64, Vec<u8>)>,
    used: BTreeMap<u64, BlockHash>,
    next: u64,
}

impl Host {
    pub(super) fn of_copies(capacity: usize) -> Self {
        Self::new(capacity, false)
    }

    pub(super) fn of_evicted(capacity: usize) -> Self {
        Self::new(capacity, true)
    }

    fn new(capacity: usize, evicted: bool) -> Self {
        Self {
            capacity,
            evicted,
            blocks: HashMap::new(),
            used: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn takes_evicted(&self) -> bool {
        self.evicted
    }

    /// Whether it wants a copy of this block.
    pub(super) fn copies(&self, hash: &BlockHash) -> bool {
        !self.evicted && !self.blocks.contains_key(hash)
    }

    /// Whether it had this block and gives it up, which it does with blocks that were moved here.
    pub(super) fn gives(&mut self, hash: &BlockHash) -> bool {
        let given = self.evicted.then(|| self.blocks.remove(hash)).flatten();
        if let Some((stamp, _)) = &given {
            self.used.remove(stamp);
        }
        given.is_some()
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

//! The paged KV cache of one rank: real bytes in blocks, found again by hash, evicted least recently used first.
//!
//! It does what vLLM's block pool does: a freed block keeps its hash and its bytes until it is needed for something else,
//! a block that nobody can find is used again first, then the tail of the sequence that was used least recently, and every
//! full block is announced, a second copy of one included.

mod host;

use std::collections::{BTreeMap, HashMap};

use self::host::Host;
use super::memory::{Memory, Place};

/// Hash of a full block with its whole prefix.
pub type BlockHash = [u8; 32];

/// Number of a block; 0 is the null block, which is never used.
pub type BlockId = u32;

/// What happened to the cache, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Full blocks can be found from now on.
    Stored {
        /// Their hashes, in the order of the sequence.
        hashes: Vec<BlockHash>,
        /// The block before them; `None` for the first of a sequence.
        parent: Option<BlockHash>,
        /// Their tokens.
        tokens: Vec<u32>,
        /// What else their hashes depend on.
        keys: CacheKeys,
    },
    /// A block was evicted.
    Removed(BlockHash),
    /// A block was copied to the host's memory as well.
    Copied {
        /// Its hash.
        hash: BlockHash,
        /// The block before it.
        parent: Option<BlockHash>,
        /// Its tokens.
        tokens: Vec<u32>,
        /// What else its hash depends on.
        keys: CacheKeys,
    },
    /// A block was evicted from the host's memory.
    RemovedFromHost(BlockHash),
    /// A block went to the host's memory instead of being evicted.
    Offloaded(BlockHash),
    /// It is back.
    Onboarded(BlockHash),
    /// Nothing can be found any more.
    Cleared,
}

/// What the host's memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMemory {
    /// Nothing.
    Unused,
    /// Copies of so many blocks, made as soon as they can be found (SGLang).
    Copies(usize),
    /// So many blocks that would be evicted: a block is either here or there (TensorRT-LLM).
    Evicted(usize),
}

/// What separates sequences of equal tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheKeys {
    /// LoRA adapter and its number.
    pub lora: Option<(String, u64)>,
    /// The request's `cache_salt`.
    pub salt: Option<String>,
    /// What else keeps it apart: SGLang's `extra_key`.
    pub extra: Option<String>,
    /// Told with the blocks, but no part of their hash.
    pub session: Option<String>,
}

#[derive(Debug, Clone, Default)]
struct Block {
    users: u32,
    hash: Option<BlockHash>,
    /// Its place in the order of eviction, while nobody uses it.
    free_at: i64,
}

/// The paged KV cache of one rank.
#[derive(Debug)]
pub struct Pool {
    block_bytes: usize,
    memory: Memory,
    blocks: Vec<Block>,
    /// By their places: the first is used again first.
    free: BTreeMap<i64, BlockId>,
    /// Places at both ends that nobody had yet.
    ends: (i64, i64),
    cached: HashMap<BlockHash, Vec<BlockId>>,
    host: Option<Host>,
    changes: Vec<Change>,
}

impl Pool {
    /// `blocks` of this many bytes, the null block among them, that nobody else can read.
    pub fn new(blocks: u32, block_bytes: usize) -> Self {
        let memory = Memory::Own(vec![0; blocks as usize * block_bytes]);
        Self::within(memory, blocks, block_bytes)
    }

    /// The same in memory that has room for them.
    pub fn within(memory: Memory, blocks: u32, block_bytes: usize) -> Self {
        let mut pool = Self {
            block_bytes,
            memory,
            blocks: vec![Block::default(); blocks as usize],
            free: BTreeMap::new(),
            ends: (-1, 0),
            cached: HashMap::new(),
            host: None,
            changes: Vec::new(),
        };
        (1..blocks).for_each(|id| pool.put_last(id));
        pool
    }

    /// Uses the host's memory.
    pub fn use_host(&mut self, memory: HostMemory) {
        self.host = match memory {
            HostMemory::Copies(blocks) if blocks > 0 => Some(Host::of_copies(blocks)),
            HostMemory::Evicted(blocks) if blocks > 0 => Some(Host::of_evicted(blocks)),
            _ => None,
        };
    }

    /// Blocks that can be taken, evicting what they hold.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Blocks in use, of all that there are.
    pub fn usage(&self) -> (usize, usize) {
        let usable = self.blocks.len() - 1;
        (usable - self.free.len(), usable)
    }

    /// The longest run of these blocks that is held, from the first on.
    pub fn longest_prefix(&self, hashes: &[BlockHash]) -> Vec<BlockId> {
        hashes
            .iter()
            .map_while(|hash| self.cached.get(hash)?.first().copied())
            .collect()
    }

    /// Hashes of all blocks that can be found.
    pub fn held(&self) -> Vec<BlockHash> {
        self.cached.keys().copied().collect()
    }

    /// Uses held blocks: nobody can evict them.
    pub fn share(&mut self, ids: &[BlockId]) {
        for id in ids {
            let block = &mut self.blocks[*id as usize];
            if block.users == 0 {
                self.free.remove(&block.free_at);
            }
            block.users += 1;
        }
    }

    /// Takes blocks, least recently used first. `None` if there are too few.
    pub fn take(&mut self, count: usize) -> Option<Vec<BlockId>> {
        if self.free.len() < count {
            return None;
        }
        let ids = (0..count)
            .filter_map(|_| self.free.pop_first())
            .map(|(_, id)| id)
            .collect::<Vec<_>>();
        for id in &ids {
            self.forget(*id);
            self.blocks[*id as usize].users = 1;
        }
        Some(ids)
    }

    /// Gives blocks of a sequence back, in the order of the sequence; the last one will be evicted first.
    pub fn give_back(&mut self, ids: &[BlockId]) {
        let mut unfindable = Vec::new();
        for id in ids.iter().rev() {
            let block = &mut self.blocks[*id as usize];
            debug_assert!(block.users > 0, "block {id} is given back once too often");
            block.users -= 1;
            match (block.users, block.hash) {
                (0, Some(_)) => self.put_last(*id),
                (0, None) => unfindable.push(*id),
                _ => {}
            }
        }
        unfindable.iter().rev().for_each(|id| self.put_first(*id));
    }

    /// Full blocks of a sequence can be found from now on.
    pub fn store(
        &mut self,
        blocks: &[(BlockId, BlockHash)],
        parent: Option<BlockHash>,
        tokens: &[u32],
        keys: &CacheKeys,
    ) {
        if blocks.is_empty() {
            return;
        }
        for (id, hash) in blocks {
            self.name(*id, *hash);
        }
        let hashes: Vec<_> = blocks.iter().map(|(_, hash)| *hash).collect();
        self.announce(&hashes, parent, tokens, keys);
    }

    fn name(&mut self, id: BlockId, hash: BlockHash) {
        self.blocks[id as usize].hash = Some(hash);
        self.cached.entry(hash).or_default().push(id);
    }

    /// Whether this block was in the host's memory only: then it is there no longer, but here.
    fn onboard(&mut self, id: BlockId, hash: BlockHash) -> bool {
        let back = self.host.as_mut().is_some_and(|host| host.gives(&hash));
        if back {
            self.name(id, hash);
            self.changes.push(Change::Onboarded(hash));
        }
        back
    }

    /// The same, but nothing is found twice: where a block is held already, that one is used in place of the given one. The
    /// blocks to use from now on, as many as were given.
    pub fn insert(
        &mut self,
        blocks: &[(BlockId, BlockHash)],
        parent: Option<BlockHash>,
        tokens: &[u32],
        keys: &CacheKeys,
    ) -> Vec<BlockId> {
        let block_size = tokens.len() / blocks.len().max(1);
        let held = |pool: &Self, hash| pool.cached.get(hash).and_then(|ids| ids.first().copied());
        let mut used = Vec::new();
        let mut fresh = Vec::new();
        let mut parent = parent;
        for (at, block) in blocks.iter().enumerate() {
            match held(self, &block.1) {
                Some(known) if known != block.0 => {
                    self.share(&[known]);
                    self.give_back(&[block.0]);
                    used.push(known);
                }
                Some(known) => used.push(known),
                None if self.onboard(block.0, block.1) => used.push(block.0),
                None => {
                    let tokens = &tokens[at * block_size..(at + 1) * block_size];
                    self.store(&[*block], parent, tokens, keys);
                    used.push(block.0);
                    fresh.push((*block, parent, tokens));
                }
            }
            parent = Some(block.1);
        }
        for (block, parent, tokens) in fresh {
            self.copy_to_host(block, parent, tokens, keys);
        }
        used
    }

    fn copy_to_host(
        &mut self,
        (id, hash): (BlockId, BlockHash),
        parent: Option<BlockHash>,
        tokens: &[u32],
        keys: &CacheKeys,
    ) {
        let bytes = self.read(id, 0, self.block_bytes);
        let Some(host) = self.host.as_mut().filter(|host| host.copies(&hash)) else {
            return;
        };
        let gone = host.keep(hash, bytes);
        self.changes.push(Change::Copied {
            hash,
            parent,
            tokens: tokens.to_vec(),
            keys: keys.clone(),
        });
        self.changes.extend(gone.map(Change::RemovedFromHost));
    }

    /// Brings blocks back from the host's memory, as many of these in a row as are there and find room. They are taken.
    pub fn load_back(
        &mut self,
        hashes: &[BlockHash],
        parent: Option<BlockHash>,
        tokens: &[u32],
        keys: &CacheKeys,
    ) -> Vec<BlockId> {
        let mut loaded = Vec::new();
        let mut parent = parent;
        let block_size = tokens.len() / hashes.len().max(1);
        for (hash, tokens) in hashes.iter().zip(tokens.chunks(block_size.max(1))) {
            let bytes = self.host.as_mut().and_then(|host| host.get(hash));
            let Some(bytes) = bytes else { break };
            let Some(taken) = self.take(1) else { break };
            self.write(taken[0], 0, &bytes);
            if !self.onboard(taken[0], *hash) {
                self.store(&[(taken[0], *hash)], parent, tokens, keys);
            }
            loaded.extend(taken);
            parent = Some(*hash);
        }
        loaded
    }

    /// Hashes of all blocks that the host's memory has.
    pub fn held_by_host(&self) -> Vec<BlockHash> {
        self.host.as_ref().map(Host::held).unwrap_or_default()
    }

    /// Tells of blocks that are held already.
    pub fn announce(
        &mut self,
        hashes: &[BlockHash],
        parent: Option<BlockHash>,
        tokens: &[u32],
        keys: &CacheKeys,
    ) {
        self.changes.push(Change::Stored {
            hashes: hashes.to_vec(),
            parent,
            tokens: tokens.to_vec(),
            keys: keys.clone(),
        });
    }

    /// Forgets everything that was stored. Blocks in use stay in use.
    pub fn clear(&mut self) {
        self.cached.clear();
        if let Some(host) = &mut self.host {
            host.clear();
        }
        self.blocks.iter_mut().for_each(|block| block.hash = None);
        self.changes.push(Change::Cleared);
    }

    /// What happened since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Whether nothing but a clearing happened since.
    pub fn was_only_cleared(&self) -> bool {
        self.changes.iter().all(|change| *change == Change::Cleared)
    }

    /// A block's bytes, whoever uses it; `None` if there is no such block.
    pub fn block(&self, id: BlockId) -> Option<Vec<u8>> {
        let exists = (id as usize) < self.blocks.len();
        exists.then(|| self.read(id, 0, self.block_bytes))
    }

    /// So many bytes of a block from there on.
    pub fn read(&self, id: BlockId, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.memory.read(self.place(id, at), &mut read);
        read
    }

    /// Writes a part of a block.
    pub fn write(&mut self, id: BlockId, at: usize, bytes: &[u8]) {
        let place = self.place(id, at);
        self.memory.write(place, bytes);
    }

    fn place(&self, id: BlockId, at: usize) -> Place {
        Place {
            block: id as usize,
            block_bytes: self.block_bytes,
            at,
        }
    }

    /// Writes nonsense over every block that nobody uses, and forgets their hashes.
    pub fn overwrite_free(&mut self) {
        let free: Vec<BlockId> = self.free.values().copied().collect();
        for id in free {
            self.forget(id);
            self.write(id, 0, &vec![0xa5; self.block_bytes]);
        }
    }

    fn forget(&mut self, id: BlockId) {
        let Some(hash) = self.blocks[id as usize].hash.take() else {
            return;
        };
        if let Some(copies) = self.cached.get_mut(&hash) {
            copies.retain(|copy| *copy != id);
            if copies.is_empty() {
                self.cached.remove(&hash);
            }
        }
        self.leave(id, hash);
    }

    /// A block goes to the host's memory, or nowhere.
    fn leave(&mut self, id: BlockId, hash: BlockHash) {
        if !self.host.as_ref().is_some_and(Host::takes_evicted) {
            self.changes.push(Change::Removed(hash));
            return;
        }
        let bytes = self.read(id, 0, self.block_bytes);
        let gone = self.host.as_mut().and_then(|host| host.keep(hash, bytes));
        self.changes.push(Change::Offloaded(hash));
        self.changes.extend(gone.map(Change::RemovedFromHost));
    }

    fn put_last(&mut self, id: BlockId) {
        self.put_at(self.ends.1, id);
        self.ends.1 += 1;
    }

    fn put_first(&mut self, id: BlockId) {
        self.put_at(self.ends.0, id);
        self.ends.0 -= 1;
    }

    fn put_at(&mut self, place: i64, id: BlockId) {
        self.blocks[id as usize].free_at = place;
        self.free.insert(place, id);
    }
}

#[cfg(test)]
mod tests;

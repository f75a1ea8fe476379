//! The index as its users see it.

use crate::find::{self, Found};
use crate::sync::{Mutex, Published};
use crate::target::{Target, Tier};
use crate::view::{SHARDS, View};
use crate::writer::Writer;

/// Blocks that are changed before other writers have their turn.
const TURN: usize = 1024;

const TIERS: [Tier; 4] = [Tier::DEVICE, Tier::HOST, Tier::DISK, Tier::EXTERNAL];

/// Which targets hold which blocks, in which tier.
///
/// Blocks are named by sequence hashes: numbers that are as good as random, each of which stands for a block and all
/// that comes before it. Shared by `Arc`; every method may be called from any thread at any time.
#[derive(Debug)]
pub struct Index {
    views: Published<View>,
    writer: Mutex<Writer>,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// One that has no targets.
    pub fn new() -> Self {
        let writer = Writer::new();
        Self {
            views: Published::new(writer.view().clone()),
            writer: Mutex::new(writer),
        }
    }

    /// A target that holds nothing, and whose blocks are whole prefixes.
    pub fn add_target(&self) -> Target {
        self.writer.lock().add_target(&self.views)
    }

    /// Takes out a target with all that it holds. Nothing can be stored for it any more; its number will be another's.
    pub fn remove_target(&self, target: Target) {
        if !self.writer.lock().retire(target) {
            return;
        }
        self.clear_tables(target, &TIERS);
        self.writer.lock().release(target);
    }

    /// A target's tier holds these blocks now. Those that it held already are none the more held.
    pub fn store(&self, target: Target, tier: Tier, blocks: &[u64]) {
        for turn in blocks.chunks(TURN) {
            let mut writer = self.writer.lock();
            writer.store(&self.views, target, tier, turn);
        }
    }

    /// A target's tier holds these blocks no longer. Those that it did not hold change nothing.
    pub fn remove(&self, target: Target, tier: Tier, blocks: &[u64]) {
        for turn in blocks.chunks(TURN) {
            let mut writer = self.writer.lock();
            writer.remove(&self.views, target, tier, turn);
        }
    }

    /// A target's tier, or all of them, hold nothing any more. Takes a pass over the whole index if there was anything.
    pub fn clear(&self, target: Target, tier: Option<Tier>) {
        if self.writer.lock().is_given(target) {
            let tiers = tier.as_ref().map_or(&TIERS[..], std::slice::from_ref);
            self.clear_tables(target, tiers);
        }
    }

    fn clear_tables(&self, target: Target, tiers: &[Tier]) {
        for shard in 0..SHARDS {
            let mut writer = self.writer.lock();
            writer.clear(&self.views, shard, target, tiers);
        }
    }

    /// Whether the caller vouches that a target's blocks are whole prefixes: that with each block that any of its tiers
    /// holds, all blocks before it are held, too. Then finding looks at few of them; otherwise at each.
    pub fn set_whole(&self, target: Target, whole: bool) {
        let writer = self.writer.lock();
        if writer.is_given(target) {
            writer.targets().set_whole(target, whole);
        }
    }

    /// How many blocks a target's tier holds.
    pub fn blocks(&self, target: Target, tier: Tier) -> u64 {
        self.views.load().targets.held(target, tier)
    }

    /// Finds who holds how much of a sequence, from its beginning. Allocates only what `found` has not room for yet.
    pub fn find(&self, sequence: &[u64], found: &mut Found) {
        // A view that was replaced while it was used may not know what its blocks say.
        while !find::search(&self.views.load(), sequence, found) {}
    }

    /// Memory that the index takes, in bytes, as far as it is its own to count.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.writer.lock().bytes()
    }
}

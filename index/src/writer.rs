//! Changes, one writer at a time.
//!
//! The order in which things are written is what makes readers right: a set is in the directory before its name is beside a
//! block, a directory or table is published before anything is in it alone, and a set is forgotten after the last block
//! that said so.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::sets::Sets;
use crate::sync::Published;
use crate::table::{Keys, Position, SLOTS, Seek, Table};
use crate::target::{Holder, Target, Targets, Tier};
use crate::view::{SHARDS, View};
use crate::word::Holding;

/// Blocks whose buckets are fetched together, one such group ahead of the one that is worked on: the processor waits for the
/// address of what it fetches, for several at the same time if nothing stands between them.
const GROUP: usize = 8;

/// Parts of a table, in per cent: the most that is used, the part in use after growing or shrinking, and the part below
/// which it shrinks.
const FULL: usize = 60;
const RELAXED: usize = 49;
const SPARSE: usize = 28;

/// What only writers know.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The one that is published.
    view: Arc<View>,
    /// Blocks in each table.
    blocks: [usize; SHARDS],
    sets: Sets,
    /// Whether each target's number is given.
    given: Vec<bool>,
    free: BinaryHeap<Reverse<u32>>,
    /// Of the blocks that are being changed those that more than a look at their own bucket must be had for.
    left: Vec<u64>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        let keys = Keys::new(salt());
        let sets = Sets::new();
        let view = View {
            keys,
            tables: std::array::from_fn(|_| Table::new(keys, 1)),
            sets: sets.directory().clone(),
            targets: Arc::new(Targets::new(0, None)),
        };
        Self {
            view: Arc::new(view),
            blocks: [0; SHARDS],
            sets,
            given: Vec::new(),
            free: BinaryHeap::new(),
            left: Vec::new(),
        }
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    fn publish(&mut self, views: &Published<View>, view: View) {
        self.view = Arc::new(view);
        views.publish(self.view.clone());
    }

    pub(crate) fn add_target(&mut self, views: &Published<View>) -> Target {
        let number = self
            .free
            .pop()
            .map_or(self.given.len(), |free| free.0 as usize);
        let target = Target(u32::try_from(number).expect("there are fewer targets"));
        if number == self.given.len() {
            self.given.push(false);
        }
        if number == self.view.targets.len() {
            let targets = Targets::new(number + 1, Some(&self.view.targets));
            let view = View {
                targets: Arc::new(targets),
                ..View::clone(&self.view)
            };
            self.publish(views, view);
        }
        self.given[number] = true;
        self.view.targets.set_whole(target, true);
        target
    }

    /// Whether there was such a target. It takes no more blocks, and its number is not given until [`Self::release`].
    pub(crate) fn retire(&mut self, target: Target) -> bool {
        let given = self.given.get_mut(target.0 as usize);
        given.is_some_and(std::mem::take)
    }

    pub(crate) fn release(&mut self, target: Target) {
        self.free.push(Reverse(target.0));
    }

    pub(crate) fn is_given(&self, target: Target) -> bool {
        self.given.get(target.0 as usize) == Some(&true)
    }

    pub(crate) fn targets(&self) -> &Targets {
        &self.view.targets
    }

    pub(crate) fn store(
        &mut self,
        views: &Published<View>,
        target: Target,
        tier: Tier,
        blocks: &[u64],
    ) {
        if !self.is_given(target) {
            return;
        }
        let holder = Holder::new(target, tier);
        let mut new = self.each_near(blocks, |writer, hash| writer.store_near(holder, hash));
        new += self.each_left(|writer, hash| writer.store_seeking(views, holder, hash));
        self.held_becomes(target, tier, |held| held + new);
    }

    pub(crate) fn remove(
        &mut self,
        views: &Published<View>,
        target: Target,
        tier: Tier,
        blocks: &[u64],
    ) {
        if !self.is_given(target) {
            return;
        }
        let holder = Holder::new(target, tier);
        let mut gone = self.each_near(blocks, |writer, hash| {
            writer.remove_near(views, holder, hash)
        });
        gone += self.each_left(|writer, hash| writer.remove_seeking(views, holder, hash));
        self.held_becomes(target, tier, |held| held - gone);
        self.shrink_sets(views);
    }

    /// Changes blocks that are in their own buckets, and leaves the others; how many did change.
    #[inline]
    fn each_near(&mut self, blocks: &[u64], change: impl Fn(&mut Self, u64) -> bool) -> u64 {
        let mut ahead = blocks.chunks(GROUP);
        self.fetch(ahead.next());
        let mut changed = 0;
        for group in blocks.chunks(GROUP) {
            self.fetch(ahead.next());
            for hash in group {
                if change(self, *hash) {
                    changed += 1;
                } else {
                    self.view.table(*hash).fetch_further(*hash);
                    self.left.push(*hash);
                }
            }
        }
        changed
    }

    #[inline]
    fn fetch(&self, group: Option<&[u64]>) {
        for hash in group.unwrap_or_default() {
            self.view.fetch(*hash);
        }
    }

    /// Changes the blocks that were left, for which the next bucket was fetched meanwhile; how many did change.
    fn each_left(&mut self, change: impl Fn(&mut Self, u64) -> bool) -> u64 {
        let mut left = std::mem::take(&mut self.left);
        let changed = left.iter().filter(|hash| change(self, **hash)).count();
        left.clear();
        self.left = left;
        changed as u64
    }

    fn held_becomes(&self, target: Target, tier: Tier, held: impl Fn(u64) -> u64) {
        if self.is_given(target) {
            let targets = self.targets();
            targets.set_held(target, tier, held(targets.held(target, tier)));
        }
    }

    fn make_room_for_a_set(&mut self, views: &Published<View>) {
        if self.sets.make_room() {
            let view = View {
                sets: self.sets.directory().clone(),
                ..View::clone(&self.view)
            };
            self.publish(views, view);
        }
    }

    /// Whether it was not there, and could be put into its own bucket.
    #[inline]
    fn store_near(&mut self, holder: Holder, hash: u64) -> bool {
        let shard = self.view.keys.shard(hash);
        let table = &self.view.tables[shard];
        let own = table.own(hash);
        if let Some(slot) = own.held(hash) {
            let to = own.holding(slot).with_new(holder);
            return to.map(|to| own.change(slot, to)).is_some();
        }
        let has_room = self.blocks[shard] * 100 < table.slots() * FULL;
        match (own.vacant(), Holding::NONE.with(holder)) {
            (Some(slot), Some(alone)) if has_room => {
                own.fill(slot, hash, alone);
                self.blocks[shard] += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether it was not there, wherever the block may be, and whoever holds it.
    fn store_seeking(&mut self, views: &Published<View>, holder: Holder, hash: u64) -> bool {
        self.make_room_for_a_set(views);
        let shard = self.view.keys.shard(hash);
        loop {
            let table = &self.view.tables[shard];
            match table.seek(table.home(hash), hash) {
                Seek::Held(at) => {
                    let from = table.holding(at);
                    let Some(to) = self.sets.with(from, holder) else {
                        return false;
                    };
                    table.change(at, to);
                    self.sets.moved(from, to);
                    return true;
                }
                Seek::Vacant(at) if self.blocks[shard] * 100 < table.slots() * FULL => {
                    // Nearly every block is held by one target.
                    if let Some(alone) = Holding::NONE.with(holder) {
                        table.fill(at, hash, alone);
                    } else if let Some(to) = self.sets.with(Holding::NONE, holder) {
                        table.fill(at, hash, to);
                        self.sets.moved(Holding::NONE, to);
                    }
                    self.blocks[shard] += 1;
                    return true;
                }
                Seek::Vacant(_) | Seek::Full => {
                    let wanted = buckets_for(self.blocks[shard] + 1);
                    let more = self.view.tables[shard].buckets() + 1;
                    self.resize(views, shard, wanted.max(more));
                }
            }
        }
    }

    /// Whether it was there, in its own bucket.
    #[inline]
    fn remove_near(&mut self, views: &Published<View>, holder: Holder, hash: u64) -> bool {
        let shard = self.view.keys.shard(hash);
        let own = self.view.tables[shard].own(hash);
        let Some(slot) = own.held(hash) else {
            return false;
        };
        let Some(to) = own.holding(slot).without_known(holder) else {
            return false;
        };
        own.change(slot, to);
        if to.is_none() {
            self.blocks[shard] -= 1;
            self.shrink(views, shard);
        }
        true
    }

    /// Whether it was there, wherever the block may be, and whoever holds it.
    fn remove_seeking(&mut self, views: &Published<View>, holder: Holder, hash: u64) -> bool {
        self.make_room_for_a_set(views);
        let shard = self.view.keys.shard(hash);
        let table = &self.view.tables[shard];
        let Seek::Held(at) = table.seek(table.home(hash), hash) else {
            return false;
        };
        let from = table.holding(at);
        if Holding::NONE.with(holder) == Some(from) {
            self.vacate(views, shard, at);
            return true;
        }
        let Some(to) = self.sets.without(from, holder) else {
            return false;
        };
        if to.is_none() {
            self.vacate(views, shard, at);
        } else {
            table.change(at, to);
        }
        self.sets.moved(from, to);
        true
    }

    fn vacate(&mut self, views: &Published<View>, shard: usize, at: Position) {
        self.view.tables[shard].vacate(at);
        self.blocks[shard] -= 1;
        self.shrink(views, shard);
    }

    /// Takes all blocks of a target's tiers out of one table.
    pub(crate) fn clear(
        &mut self,
        views: &Published<View>,
        shard: usize,
        target: Target,
        tiers: &[Tier],
    ) {
        if tiers
            .iter()
            .all(|tier| self.targets().held(target, *tier) == 0)
        {
            return;
        }
        let mut gone = Vec::new();
        for tier in tiers {
            let holder = Holder::new(target, *tier);
            let blocks = self.view.tables[shard].blocks();
            let held = blocks.filter(|(_, holding)| self.sets.has(*holding, holder));
            gone.extend(held.map(|(hash, _)| hash));
            for hash in &gone {
                self.remove_seeking(views, holder, *hash);
            }
            let held = self.targets().held(target, *tier) - gone.len() as u64;
            self.targets().set_held(target, *tier, held);
            gone.clear();
        }
        self.shrink_sets(views);
    }

    fn shrink(&mut self, views: &Published<View>, shard: usize) {
        let table = &self.view.tables[shard];
        if self.blocks[shard] * 100 >= table.slots() * SPARSE {
            return;
        }
        let wanted = buckets_for(self.blocks[shard]);
        if wanted < table.buckets() {
            self.resize(views, shard, wanted);
        }
    }

    fn resize(&mut self, views: &Published<View>, shard: usize, buckets: usize) {
        let mut view = View::clone(&self.view);
        view.tables[shard] = view.tables[shard].rebuilt(buckets, |holding| holding);
        self.publish(views, view);
    }

    /// Gives back what sets took that are no more. That changes the numbers of the others, and so all tables.
    fn shrink_sets(&mut self, views: &Published<View>) {
        if !self.sets.is_sparse() {
            return;
        }
        let mut view = View::clone(&self.view);
        let renumbered = self.sets.renumber();
        for table in &mut view.tables {
            *table = table.rebuilt(table.buckets(), &renumbered);
        }
        view.sets = self.sets.directory().clone();
        self.publish(views, view);
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables = self.view.tables.iter().map(Table::bytes);
        let targets = self.given.capacity() * (size_of::<bool>() + size_of::<u32>());
        size_of::<Self>()
            + size_of::<View>()
            + tables.sum::<usize>()
            + self.sets.bytes()
            + self.view.targets.bytes()
            + targets
    }
}

/// Another one for each index, except where runs are to be repeated.
fn salt() -> u64 {
    if cfg!(loom) {
        0x9e37_79b9_7f4a_7c15
    } else {
        RandomState::new().hash_one("baton-index")
    }
}

/// Buckets that so many blocks fill to the part that leaves room both ways.
fn buckets_for(blocks: usize) -> usize {
    (blocks * 100).div_ceil(RELAXED * SLOTS).max(1)
}

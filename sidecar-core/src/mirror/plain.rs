//! Names and blocks that belong to each other and to nothing else.
//!
//! Nearly every block has one name. Both are written down side by side, where the name says: a cache line for every four
//! pairs, and the next line if that one is full. Which name a block has is hardly ever asked; a table for that is made
//! when it is, and kept for as long as it is asked.

use baton_proto::hash::SequenceHash;
use hashbrown::HashMap;
use prefetch_index::prefetch_index;

use super::event::EngineHash;
use super::salt::{Salt, bucket_of};

/// Pairs of a bucket: what fits into a cache line.
const SLOTS: usize = 4;

/// Slots where nearly every name is: those of its own bucket and of the next.
const NEAR: usize = 2 * SLOTS;

/// How many buckets from its own a name may be.
const FURTHEST: usize = 63;

/// Buckets behind the last home of the smallest table.
const FEW: usize = 15;

/// Parts of the table, in per cent: the most that is used, the part in use after growing or shrinking, and the part below
/// which it shrinks.
const FULL: usize = 72;
const RELAXED: usize = 50;
const SPARSE: usize = 25;

/// A name and the block that it leads to.
type Pair = (EngineHash, SequenceHash);

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    names: [u64; SLOTS],
    blocks: [u64; SLOTS],
}

impl Bucket {
    /// Slots that have this name or had it once, as bits: without a branch that would be foretold wrongly.
    #[inline]
    fn same(&self, name: u64) -> u32 {
        let names = self.names.iter().enumerate();
        names.fold(0, |bits, (slot, other)| {
            bits | u32::from(*other == name) << slot
        })
    }
}

/// What is known of a bucket without looking into it: one bit for each slot that is taken, and in the others how many buckets
/// further its names may be.
#[derive(Debug, Clone, Copy, Default)]
struct State(u16);

impl State {
    #[inline]
    fn used(self) -> u32 {
        u32::from(self.0) % (1 << SLOTS)
    }

    #[inline]
    fn reach(self) -> usize {
        usize::from(self.0 >> SLOTS)
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is less than a hundred")]
    fn set_reach(&mut self, reach: usize) {
        self.0 = (self.0 % (1 << SLOTS)) | ((reach as u16) << SLOTS);
    }
}

/// What a look at a name's own bucket and at the next one shows.
#[derive(Clone, Copy)]
struct Look {
    /// Its own bucket.
    home: usize,
    /// Slots that have the name, as bits; at most one.
    same: u32,
    /// Slots that are vacant, as bits.
    vacant: u32,
    /// How many buckets further names of that bucket may be.
    reach: usize,
}

/// Pairs of which both halves are in no other.
#[derive(Debug)]
pub(super) struct Plain {
    /// As many as there are homes, and what names of the last ones may need further on.
    buckets: Box<[Bucket]>,
    states: Box<[State]>,
    homes: usize,
    pairs: usize,
    names: Option<Names>,
    salt: Salt,
}

/// Names by block.
#[derive(Debug)]
struct Names {
    by_block: HashMap<SequenceHash, EngineHash>,
    /// How many pairs may come until it is given up, unless it is asked again: by then making it anew would have cost no more.
    patience: usize,
}

impl Default for Plain {
    fn default() -> Self {
        Self::new(0, Salt::new())
    }
}

impl Plain {
    fn new(homes: usize, salt: Salt) -> Self {
        // A small table need not end in many that nothing is in.
        let further = if homes == 0 { 0 } else { homes + FEW };
        let buckets = homes + further.min(FURTHEST);
        Self {
            buckets: vec![Bucket::default(); buckets].into(),
            states: vec![State::default(); buckets].into(),
            homes,
            pairs: 0,
            names: None,
            salt,
        }
    }

    #[inline]
    fn home(&self, name: u64) -> usize {
        bucket_of(self.salt.spread(name), self.homes)
    }

    /// Has what a look at a name needs fetched, without waiting for it.
    #[inline]
    pub(super) fn fetch(&self, name: EngineHash) {
        let home = self.home(name.0);
        prefetch_index(&self.buckets, home);
        prefetch_index(&self.buckets, home + 1);
    }

    #[inline]
    fn look(&self, name: u64) -> Option<Look> {
        let home = self.home(name);
        let [first, second] = self.buckets.get(home..home + 2)? else {
            return None;
        };
        let [own, next] = self.states.get(home..home + 2)? else {
            return None;
        };
        let used = own.used() | next.used() << SLOTS;
        Some(Look {
            home,
            same: (first.same(name) | second.same(name) << SLOTS) & used,
            vacant: !used & ((1 << NEAR) - 1),
            reach: own.reach(),
        })
    }

    /// Where a name is: the number of a slot.
    #[inline]
    fn place(&self, look: Look, name: u64) -> Option<usize> {
        if look.same != 0 {
            return Some(look.home * SLOTS + look.same.trailing_zeros() as usize);
        }
        if look.reach < 2 {
            return None;
        }
        self.place_far(look, name)
    }

    #[cold]
    fn place_far(&self, look: Look, name: u64) -> Option<usize> {
        (2..=look.reach).find_map(|distance| {
            let bucket = look.home + distance;
            let same = self.buckets[bucket].same(name) & self.states[bucket].used();
            (same != 0).then(|| bucket * SLOTS + same.trailing_zeros() as usize)
        })
    }

    /// Where a name that is not there can be put.
    #[inline]
    fn vacancy(&self, look: Look) -> Option<usize> {
        if look.vacant != 0 {
            return Some(look.home * SLOTS + look.vacant.trailing_zeros() as usize);
        }
        self.vacancy_far(look)
    }

    #[cold]
    fn vacancy_far(&self, look: Look) -> Option<usize> {
        self.vacancy_from(look.home + 2, look.home)
    }

    #[inline]
    fn vacancy_from(&self, first: usize, home: usize) -> Option<usize> {
        let end = self.buckets.len().min(home + FURTHEST + 1);
        (first..end).find_map(|bucket| {
            let slot = self.states[bucket].used().trailing_ones() as usize;
            (slot < SLOTS).then_some(bucket * SLOTS + slot)
        })
    }

    /// The block that a name leads to.
    pub(super) fn sequence(&self, name: EngineHash) -> Option<SequenceHash> {
        let place = self.place(self.look(name.0)?, name.0)?;
        Some(SequenceHash(
            self.buckets[place / SLOTS].blocks[place % SLOTS],
        ))
    }

    /// The name of a block. To be asked only where there is reason to believe that it has one.
    #[cold]
    pub(super) fn name(&mut self, block: SequenceHash) -> Option<EngineHash> {
        let mut names = self.names.take().unwrap_or_else(|| Names {
            by_block: self.iter().map(|(name, block)| (block, name)).collect(),
            patience: 0,
        });
        names.patience = self.pairs;
        let name = names.by_block.get(&block).copied();
        self.names = Some(names);
        name
    }

    /// Puts a pair in; false, and nothing done, if the name is in one, or if there is no room for it. The caller knows that the
    /// block is in none.
    pub(super) fn insert(&mut self, name: EngineHash, block: SequenceHash) -> bool {
        if self.pairs * 100 >= self.homes * SLOTS * FULL {
            self.resize();
        }
        let Some(look) = self.look(name.0) else {
            return false;
        };
        if self.place(look, name.0).is_some() {
            return false;
        }
        let Some(place) = self.vacancy(look) else {
            return false;
        };
        self.write(place, look.home, name, block);
        if self.names.is_some() {
            self.note_name(name, block);
        }
        true
    }

    #[cold]
    fn note_name(&mut self, name: EngineHash, block: SequenceHash) {
        if let Some(names) = &mut self.names {
            let other = names.by_block.insert(block, name);
            debug_assert!(other.is_none(), "a block is in one pair");
            match names.patience.checked_sub(1) {
                Some(patience) => names.patience = patience,
                None => self.names = None,
            }
        }
    }

    /// Puts a pair in that was in the table before it had another size; whether there was room.
    fn refill(&mut self, name: EngineHash, block: SequenceHash) -> bool {
        let home = self.home(name.0);
        let place = self.vacancy_from(home, home);
        place
            .map(|place| self.write(place, home, name, block))
            .is_some()
    }

    #[inline]
    fn write(&mut self, place: usize, home: usize, name: EngineHash, block: SequenceHash) {
        let (bucket, slot) = (place / SLOTS, place % SLOTS);
        self.buckets[bucket].names[slot] = name.0;
        self.buckets[bucket].blocks[slot] = block.0;
        self.states[bucket].0 |= 1 << slot;
        if self.states[home].reach() < bucket - home {
            self.states[home].set_reach(bucket - home);
        }
        self.pairs += 1;
    }

    /// Takes the pair of a name out; its block.
    pub(super) fn remove(&mut self, name: EngineHash) -> Option<SequenceHash> {
        let look = self.look(name.0)?;
        let place = self.place(look, name.0)?;
        let (bucket, slot) = (place / SLOTS, place % SLOTS);
        let block = SequenceHash(self.buckets[bucket].blocks[slot]);
        self.states[bucket].0 &= !(1 << slot);
        // A reach of 1 costs nothing.
        if look.reach > 1 && bucket - look.home == look.reach {
            self.pull_in(look);
        }
        self.pairs -= 1;
        if let Some(names) = &mut self.names {
            names.by_block.remove(&block);
        }
        if self.pairs * 100 < self.homes * SLOTS * SPARSE && self.homes > 1 {
            self.resize();
        }
        Some(block)
    }

    /// Lowers the reach of a bucket of which the furthest pair was taken out.
    #[cold]
    fn pull_in(&mut self, look: Look) {
        let is_of = |bucket: usize| {
            let used = (0..SLOTS).filter(|slot| self.states[bucket].used() & 1 << slot != 0);
            let mut names = used.map(|slot| self.buckets[bucket].names[slot]);
            names.any(|name| self.home(name) == look.home)
        };
        let mut distances = (2..=look.reach).rev();
        let reach = distances.find(|distance| is_of(look.home + distance));
        self.states[look.home].set_reach(reach.unwrap_or(1));
    }

    /// Gives the pairs there are, and one more, the room that they want.
    #[cold]
    fn resize(&mut self) {
        let homes = ((self.pairs + 1) * 100).div_ceil(RELAXED * SLOTS);
        let mut new = Self::new(homes, self.salt);
        // With a salt worth the name there is room for all of them.
        if self.iter().all(|(name, block)| new.refill(name, block)) {
            new.names = self.names.take();
            *self = new;
        }
    }

    /// All pairs, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Pair> + '_ {
        let buckets = self.buckets.iter().zip(&self.states);
        buckets.flat_map(|(bucket, state)| {
            let used = (0..SLOTS).filter(|slot| state.used() & 1 << slot != 0);
            used.map(|slot| {
                let pair = (bucket.names[slot], bucket.blocks[slot]);
                (EngineHash(pair.0), SequenceHash(pair.1))
            })
        })
    }
}

#[cfg(test)]
mod tests;

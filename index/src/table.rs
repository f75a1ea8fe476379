//! A flat hash table that one thread changes while others read it.
//!
//! A bucket is a cache line of four slots. A block is in its own bucket or, if that was full, in one of the next; each bucket
//! says how far the furthest of its blocks is (its *reach*, nearly always 0), so a block that is not there costs one cache
//! miss like one that is. Nothing moves, so a reader cannot miss a block that is there all the time; and what is taken out
//! leaves nothing behind, so a table does not wear out.
//!
//! A slot that is free keeps its last key until another block takes it. A reader therefore must not believe that the word
//! beside a key belongs to it: between the two loads the slot may have changed hands. Slots have versions for that
//! ([`Slot::read`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use prefetch_index::prefetch_index;

use crate::sync::{AtomicU64, spin_loop};
use crate::word::{Holding, MAX_REACH, Word, bits};

/// Slots of a bucket: what fits into a cache line.
pub(crate) const SLOTS: usize = 4;

/// Bits of a hash that choose among the tables of an index.
pub(crate) const SHARD_BITS: u32 = if cfg!(loom) { 0 } else { 6 };

/// How hashes become places. Salted, since whoever chooses prompts can choose the bits of sequence hashes, and could have
/// thousands of blocks meet in one bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys(u64);

impl Keys {
    pub(crate) fn new(salt: u64) -> Self {
        Self(salt | 1)
    }

    fn mix(self, hash: u64) -> u64 {
        hash.wrapping_mul(self.0)
    }

    /// Which of the index's tables.
    pub(crate) fn shard(self, hash: u64) -> usize {
        (self.mix(hash) >> 1 >> (63 - SHARD_BITS)) as usize
    }

    /// Which of a table's buckets.
    fn home(self, hash: u64, buckets: usize) -> usize {
        let rest = self.mix(hash) << SHARD_BITS;
        ((u128::from(rest) * buckets as u128) >> 64) as usize
    }
}

#[derive(Debug, Default)]
struct Slot {
    key: AtomicU64,
    word: AtomicU64,
}

impl Slot {
    /// Who holds this block, if it is the one that is here.
    fn read(&self, hash: u64) -> Option<Holding> {
        // Mostly it is another one, or nobody meanwhile changes the slot.
        while self.key.load(Relaxed) == hash {
            let word = Word(self.word.load(Acquire));
            let key = self.key.load(Acquire);
            if Word(self.word.load(Acquire)) == word {
                // The key was the same all the time between two loads of the same settled version.
                let here = key == hash && word.is_settled();
                let holding = word.holding();
                return (here && !holding.is_none()).then_some(holding);
            }
            spin_loop();
        }
        None
    }

    /// For the writer, whom nobody interferes with.
    fn word(&self) -> Word {
        Word(self.word.load(Relaxed))
    }

    fn set(&self, word: Word) {
        self.word.store(word.0, Release);
    }

    fn fill(&self, hash: u64, holding: Holding) {
        let word = self.word();
        if self.key.load(Relaxed) == hash {
            return self.set(word.with_holding(holding));
        }
        let changing = word.next();
        self.word.store(changing.0, Relaxed);
        // Whoever sees the new key sees that the slot is changing; whoever sees the next word sees the new key.
        self.key.store(hash, Release);
        self.set(changing.next().with_holding(holding));
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([Slot; SLOTS]);

impl Bucket {
    fn read(&self, hash: u64) -> Option<Holding> {
        let same = self.slots(|slot| slot.key.load(Relaxed) == hash);
        bits(same).find_map(|slot| self.0[slot].read(hash))
    }

    /// Which slots are so, as bits: without a branch that would be foretold wrongly.
    fn slots(&self, so: impl Fn(&Slot) -> bool) -> u32 {
        let slots = self.0.iter().enumerate();
        slots.fold(0, |bits, (place, slot)| bits | u32::from(so(slot)) << place)
    }

    /// How many buckets further blocks of this one may be.
    fn reach(&self) -> usize {
        Word(self.0[0].word.load(Acquire)).reach()
    }
}

/// A slot, and which way led to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    home: usize,
    distance: usize,
    slot: usize,
}

/// Where a block is, or could be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seek {
    Held(Position),
    Vacant(Position),
    Full,
}

/// The bucket that nearly every one of its blocks is in, for the writer.
#[derive(Clone, Copy)]
pub(crate) struct Own<'a>(&'a Bucket);

impl Own<'_> {
    /// The slot of a block.
    #[inline]
    pub(crate) fn held(self, hash: u64) -> Option<usize> {
        let same = self.0.slots(|slot| slot.key.load(Relaxed) == hash);
        // What is vacant may have the key, too, and what is in the next buckets is not seen.
        bits(same).find(|slot| !self.holding(*slot).is_none())
    }

    /// A vacant slot, if blocks that are not in this bucket are nowhere.
    #[inline]
    pub(crate) fn vacant(self) -> Option<usize> {
        let free = self.0.slots(|slot| slot.word().holding().is_none());
        (free != 0 && self.0.reach() == 0).then_some(free.trailing_zeros() as usize % SLOTS)
    }

    #[inline]
    pub(crate) fn holding(self, slot: usize) -> Holding {
        self.0.0[slot].word().holding()
    }

    /// Changes who holds a block that is there, nobody included.
    #[inline]
    pub(crate) fn change(self, slot: usize, holding: Holding) {
        let slot = &self.0.0[slot];
        slot.set(slot.word().with_holding(holding));
    }

    #[inline]
    pub(crate) fn fill(self, slot: usize, hash: u64, holding: Holding) {
        self.0.0[slot].fill(hash, holding);
    }
}

/// The table. Copies are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    keys: Keys,
    buckets: Arc<[Bucket]>,
}

impl Table {
    pub(crate) fn new(keys: Keys, buckets: usize) -> Self {
        let buckets = (0..buckets.max(1)).map(|_| Bucket::default()).collect();
        Self { keys, buckets }
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// The bucket of a block.
    pub(crate) fn home(&self, hash: u64) -> usize {
        self.keys.home(hash, self.buckets.len())
    }

    fn after(&self, home: usize, distance: usize) -> usize {
        let bucket = home + distance;
        let end = self.buckets.len();
        if bucket < end { bucket } else { bucket - end }
    }

    /// Has the bucket of a block fetched, without waiting for it.
    #[inline]
    pub(crate) fn fetch(&self, hash: u64) {
        prefetch_index(&self.buckets, self.home(hash));
    }

    /// The same for the bucket after that.
    #[inline]
    pub(crate) fn fetch_further(&self, hash: u64) {
        prefetch_index(&self.buckets, self.after(self.home(hash), 1));
    }

    /// The bucket of a block, for the writer.
    #[inline]
    pub(crate) fn own(&self, hash: u64) -> Own<'_> {
        Own(&self.buckets[self.home(hash)])
    }

    /// Who holds a block. For readers.
    #[inline]
    pub(crate) fn read(&self, hash: u64) -> Holding {
        let home = self.home(hash);
        let own = &self.buckets[home];
        own.read(hash)
            .or_else(|| {
                let further = 1..=own.reach();
                further
                    .map(|distance| self.after(home, distance))
                    .find_map(|bucket| self.buckets[bucket].read(hash))
            })
            .unwrap_or_default()
    }

    fn slot(&self, at: Position) -> &Slot {
        &self.buckets[self.after(at.home, at.distance)].0[at.slot]
    }

    /// Where a block is, or could be put. For the writer, like all that follows.
    #[inline]
    pub(crate) fn seek(&self, home: usize, hash: u64) -> Seek {
        let reach = self.buckets[home].reach();
        let furthest = MAX_REACH.min(self.buckets.len() - 1);
        let mut vacant = None;
        for distance in 0..=furthest {
            let bucket = &self.buckets[self.after(home, distance)];
            let at = |slots: u32| Position {
                home,
                distance,
                slot: slots.trailing_zeros() as usize,
            };
            let same = bucket.slots(|slot| slot.key.load(Relaxed) == hash);
            let free = bucket.slots(|slot| slot.word().holding().is_none());
            if same & !free != 0 {
                return Seek::Held(at(same & !free));
            }
            if free != 0 && vacant.is_none() {
                vacant = Some(at(free));
            }
            if distance >= reach && vacant.is_some() {
                break;
            }
        }
        vacant.map_or(Seek::Full, Seek::Vacant)
    }

    #[inline]
    pub(crate) fn holding(&self, at: Position) -> Holding {
        self.slot(at).word().holding()
    }

    /// Changes who holds a block that is there, and stays.
    #[inline]
    pub(crate) fn change(&self, at: Position, holding: Holding) {
        debug_assert!(!holding.is_none());
        let slot = self.slot(at);
        slot.set(slot.word().with_holding(holding));
    }

    /// Puts a block into a vacant slot.
    #[inline]
    pub(crate) fn fill(&self, at: Position, hash: u64, holding: Holding) {
        let own = &self.buckets[at.home];
        if own.reach() < at.distance {
            own.0[0].set(own.0[0].word().with_reach(at.distance));
        }
        self.slot(at).fill(hash, holding);
    }

    /// Takes a block out.
    #[inline]
    pub(crate) fn vacate(&self, at: Position) {
        let slot = self.slot(at);
        slot.set(slot.word().with_holding(Holding::NONE));
        let own = &self.buckets[at.home];
        if at.distance > 0 && own.reach() == at.distance {
            let further = (1..=at.distance).rev();
            let furthest = further.into_iter().find(|distance| {
                let bucket = &self.buckets[self.after(at.home, *distance)];
                bucket.0.iter().any(|slot| self.is_of(slot, at.home))
            });
            own.0[0].set(own.0[0].word().with_reach(furthest.unwrap_or(0)));
        }
    }

    fn is_of(&self, slot: &Slot, home: usize) -> bool {
        !slot.word().holding().is_none() && self.home(slot.key.load(Relaxed)) == home
    }

    /// All blocks, with where they are and who holds them.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, Holding)> + '_ {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.0);
        slots.filter_map(|slot| {
            let holding = slot.word().holding();
            (!holding.is_none()).then(|| (slot.key.load(Relaxed), holding))
        })
    }

    /// The same blocks in another number of buckets, or in more if that is too few, with other names of their holders.
    pub(crate) fn rebuilt(&self, mut buckets: usize, holders: impl Fn(Holding) -> Holding) -> Self {
        loop {
            let new = Self::new(self.keys, buckets);
            let mut blocks = self.blocks();
            if blocks.all(|(hash, holding)| new.put(hash, holders(holding))) {
                return new;
            }
            // Too many blocks met in one place; in a bigger table they spread.
            buckets += buckets / 4 + 1;
        }
    }

    /// Puts a block in that is not in yet; whether there was room.
    fn put(&self, hash: u64, holding: Holding) -> bool {
        let Seek::Vacant(at) = self.seek(self.home(hash), hash) else {
            return false;
        };
        self.fill(at, hash, holding);
        true
    }
}

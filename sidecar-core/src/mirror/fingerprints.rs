//! Whether a block may be in a set: 32 bits of each of its blocks, a cache line for every sixteen.
//!
//! *No* is certain and *yes* hardly ever wrong: 32 bits, of which a look compares some sixteen with its own. A block whose
//! bucket is full goes to one of the next, and its own bucket counts how many of its blocks are away, and how far at most.

use prefetch_index::prefetch_index;

use super::salt::{Salt, bucket_of};

/// Fingerprints of a bucket: what fits into a cache line.
pub(super) const SLOTS: usize = 16;

/// How many blocks wait until they are taken out.
const LEAVING: usize = 8;

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u32; SLOTS]);

impl Bucket {
    #[inline]
    fn has(&self, print: u32) -> bool {
        self.0
            .iter()
            .fold(0, |has, other| has | u32::from(*other == print))
            != 0
    }

    /// Slots that have this fingerprint, as bits.
    #[inline]
    fn same(&self, print: u32) -> u32 {
        let slots = self.0.iter().enumerate();
        slots.fold(0, |bits, (slot, other)| {
            bits | if *other == print { 1 << slot } else { 0 }
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// One bit for each slot that is taken.
    used: u16,
    /// How many blocks of this bucket are in another one.
    away: u16,
    /// How many buckets further those may be. Not lowered before all are back.
    reach: u16,
}

/// The fingerprints of a set of blocks. Two that are equal are in it twice.
#[derive(Debug)]
pub(super) struct Fingerprints {
    buckets: Box<[Bucket]>,
    states: Box<[State]>,
    salt: Salt,
    /// Blocks that are to be taken out once what is needed for that is fetched. Until then they only might be taken to be in.
    leaving: [u64; LEAVING],
    /// How many those are, and which of them came first.
    waiting: usize,
    first: usize,
}

impl Fingerprints {
    pub(super) fn new(buckets: usize, salt: Salt) -> Self {
        Self {
            buckets: vec![Bucket::default(); buckets].into(),
            states: vec![State::default(); buckets].into(),
            salt,
            leaving: [0; LEAVING],
            waiting: 0,
            first: 0,
        }
    }

    /// The bucket that a block belongs in, and its fingerprint.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a fingerprint is what is left of a block"
    )]
    fn of(&self, block: u64) -> (usize, u32) {
        let (place, print) = self.salt.mix(block);
        (bucket_of(place, self.buckets.len()), print as u32)
    }

    fn after(&self, home: usize, distance: usize) -> usize {
        let bucket = home + distance;
        let end = self.buckets.len();
        if bucket < end { bucket } else { bucket - end }
    }

    /// Whether such a block may be in.
    #[inline]
    pub(super) fn may_have(&self, block: u64) -> bool {
        let (home, print) = self.of(block);
        let (Some(bucket), Some(state)) = (self.buckets.get(home), self.states.get(home)) else {
            return false;
        };
        // What is in vacant slots does no harm: it only might be taken for a block.
        bucket.has(print) || state.reach > 0 && self.may_have_far(home, state.reach, print)
    }

    #[cold]
    fn may_have_far(&self, home: usize, reach: u16, print: u32) -> bool {
        let mut distances = 1..=usize::from(reach);
        distances.any(|distance| self.buckets[self.after(home, distance)].has(print))
    }

    /// Puts a block in; false, and nothing done, if there is no room for it.
    #[inline]
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let (home, print) = self.of(block);
        if self
            .states
            .get(home)
            .is_some_and(|state| state.used != u16::MAX)
        {
            self.put(home, print);
            return true;
        }
        self.insert_far(home, print)
    }

    #[cold]
    fn insert_far(&mut self, home: usize, print: u32) -> bool {
        let mut distances = 1..self.buckets.len().min(usize::from(u16::MAX));
        let is_free = |bucket: usize| self.states[bucket].used != u16::MAX;
        let Some(distance) = distances.find(|distance| is_free(self.after(home, *distance))) else {
            return false;
        };
        let state = &mut self.states[home];
        let Some(away) = state.away.checked_add(1) else {
            return false;
        };
        state.away = away;
        state.reach = state.reach.max(u16::try_from(distance).unwrap_or(u16::MAX));
        self.put(self.after(home, distance), print);
        true
    }

    #[inline]
    fn put(&mut self, bucket: usize, print: u32) {
        let state = &mut self.states[bucket];
        let slot = state.used.trailing_ones() as usize % SLOTS;
        state.used |= 1 << slot;
        self.buckets[bucket].0[slot] = print;
    }

    /// Takes a block out that is in, but not at once.
    #[inline]
    pub(super) fn remove(&mut self, block: u64) {
        prefetch_index(&self.buckets, self.of(block).0);
        let place = (self.first + self.waiting) % LEAVING;
        if self.waiting < LEAVING {
            self.leaving[place] = block;
            self.waiting += 1;
            return;
        }
        let first = std::mem::replace(&mut self.leaving[place], block);
        self.first = (self.first + 1) % LEAVING;
        self.remove_now(first);
    }

    /// Takes all blocks out that wait for it.
    #[inline]
    pub(super) fn settle(&mut self) {
        while self.waiting > 0 {
            self.waiting -= 1;
            let block = self.leaving[(self.first + self.waiting) % LEAVING];
            self.remove_now(block);
        }
    }

    fn remove_now(&mut self, block: u64) {
        let (home, print) = self.of(block);
        if home < self.buckets.len() && !self.take(home, print) {
            self.remove_far(home, print);
        }
    }

    #[cold]
    fn remove_far(&mut self, home: usize, print: u32) {
        let mut distances = 1..=usize::from(self.states[home].reach);
        let removed = distances.any(|distance| self.take(self.after(home, distance), print));
        debug_assert!(removed, "a block that is taken out was in");
        if removed {
            self.came_back(home);
        }
    }

    /// Takes one of these fingerprints out of a bucket: of equal ones any will do, they are the same to whoever looks.
    #[inline]
    fn take(&mut self, bucket: usize, print: u32) -> bool {
        let state = &mut self.states[bucket];
        let same = self.buckets[bucket].same(print) & u32::from(state.used);
        if same == 0 {
            return false;
        }
        let slot = same.trailing_zeros() as usize % SLOTS;
        state.used &= !(1 << slot);
        self.buckets[bucket].0[slot] = 0;
        true
    }

    fn came_back(&mut self, home: usize) {
        let state = &mut self.states[home];
        state.away -= 1;
        if state.away == 0 {
            state.reach = 0;
        }
    }
}

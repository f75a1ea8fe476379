//! The tables: which blocks are where, under which of the engine's names.
//!
//! Nearly all blocks have one name and one copy, in the device tier. Those are *plain*: of them the tables say no more than
//! that the name and the block belong together. All others have counters.

use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::event::EngineHash;
use super::plain::Plain;

/// The tiers that are mirrored, in the order of their counters.
pub const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];

/// How many blocks ahead of the one that is worked on their places are fetched.
const AHEAD: usize = 8;

/// Place of the device tier's counters.
const DEVICE: usize = 0;

/// Place of a tier's counters; none for a tier that is not mirrored.
pub(super) fn slot(tier: Tier) -> Option<usize> {
    TIERS.iter().position(|known| *known == tier)
}

/// One counter for each tier. Eight bytes a block; a counter that reaches its end stays there until the tier is cleared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts([u16; TIERS.len()]);

impl Counts {
    /// Of what was plain.
    const PLAIN: Self = Self([1, 0, 0, 0]);

    /// Whether it was zero. One that was not is only raised if this is one `more`.
    fn add(&mut self, slot: usize, more: bool) -> bool {
        let before = self.0[slot];
        if before == 0 || more {
            self.0[slot] = before.saturating_add(1);
        }
        before == 0
    }

    /// Whether it became zero.
    fn take(&mut self, slot: usize) -> bool {
        if self.0[slot] < u16::MAX {
            self.0[slot] = self.0[slot].saturating_sub(1);
        }
        self.0[slot] == 0
    }

    fn is_zero(self) -> bool {
        self.0 == [0; TIERS.len()]
    }
}

/// A block that has a place in a sequence, under one of the engine's names.
#[derive(Debug, Clone, Copy)]
struct Placed {
    sequence: SequenceHash,
    copies: Counts,
}

/// Where the engine's name of a block leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// To this block.
    Placed(SequenceHash),
    /// To a block that is kept out of the view.
    Outside,
}

/// What a block was to a tier that it was put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The tier did not hold it.
    New(SequenceHash),
    /// The tier held it under another name, or it is not in the view.
    Unseen,
    /// The tier held it under this name.
    Again,
}

/// What became of a block under one of the engine's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was not there.
    Absent,
    /// There are further copies or names of it, or it is not in the view.
    Unseen,
    /// The tier holds it no longer.
    Gone(SequenceHash),
}

/// All blocks of a rank.
#[derive(Debug, Default)]
pub struct Holdings {
    /// Names under which the device tier holds one copy and no other tier any, of blocks that have no other name.
    plain: Plain,
    /// How many copies each tier holds under each of the other names.
    placed: HashMap<EngineHash, Placed>,
    /// The same for blocks that are kept out of the view, so that their removal and their children are no riddle.
    outside: HashMap<EngineHash, Counts>,
    /// Under how many of the engine's names each tier holds each of the other blocks.
    sequences: HashMap<SequenceHash, Counts>,
    /// Names of blocks that were there before something was lost. They may be gone, but the names still mean the same.
    faded: HashMap<EngineHash, SequenceHash>,
    views: [TierView; TIERS.len()],
}

/// Size and digest of what one tier holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierView {
    /// How many blocks.
    pub blocks: u64,
    /// Of these blocks.
    pub digest: BlockSetDigest,
}

impl Holdings {
    /// Where a name leads.
    pub fn find(&self, hash: EngineHash) -> Option<Known> {
        if let Some(sequence) = self.plain.sequence(hash) {
            return Some(Known::Placed(sequence));
        }
        if let Some(placed) = self.placed.get(&hash) {
            return Some(Known::Placed(placed.sequence));
        }
        if self.outside.contains_key(&hash) {
            return Some(Known::Outside);
        }
        let faded = self.faded.get(&hash);
        faded.map(|sequence| Known::Placed(*sequence))
    }

    /// Has what is needed for the blocks of an event fetched, without waiting for it: of the one at `place`, a later one; of the
    /// first, the first ones, too. Called for each of them in turn.
    #[inline]
    pub fn fetch_ahead(&self, hashes: &[EngineHash], place: usize) {
        if place == 0 {
            let first = hashes.iter().take(AHEAD);
            first.for_each(|hash| self.plain.fetch(*hash));
        }
        if let Some(later) = hashes.get(place + AHEAD) {
            self.plain.fetch(*later);
        }
    }

    /// Puts a block that no tier holds into one under a name that is new, too, as nearly all are: what [`Self::find`] and
    /// [`Self::put`] would do then. False, and nothing done, if the name may be known, or if it is not that simple.
    pub fn put_new(&mut self, hash: EngineHash, sequence: SequenceHash, tier: Tier) -> bool {
        debug_assert!(!self.sequences.contains_key(&sequence));
        // Nearly always these maps are empty, or small.
        let known = self.placed.contains_key(&hash)
            || self.outside.contains_key(&hash)
            || self.faded.contains_key(&hash);
        if tier != Tier::Device || known || !self.plain.insert(hash, sequence) {
            return false;
        }
        self.see(sequence, DEVICE);
        true
    }

    /// One more copy of a block in a tier. `held` says whether any tier holds the block, under whatever name. One that is there
    /// under this name already is counted again if `copies` do count.
    pub fn put(
        &mut self,
        hash: EngineHash,
        sequence: SequenceHash,
        held: bool,
        tier: Tier,
        copies: bool,
    ) -> Put {
        let Some(slot) = slot(tier) else {
            return Put::Unseen;
        };
        debug_assert!(held || !self.sequences.contains_key(&sequence));
        if !held && self.put_plain(hash, sequence, slot) {
            return self.see(sequence, slot);
        }
        if slot == DEVICE && !copies && self.plain.sequence(hash).is_some() {
            return Put::Again;
        }
        self.faded.remove(&hash);
        self.complicate(hash);
        let placed = self.placed.entry(hash).or_insert(Placed {
            sequence,
            copies: Counts::default(),
        });
        if !placed.copies.add(slot, copies) {
            return Put::Again;
        }
        // One that is held and has no counters is plain under another name.
        if held
            && !self.sequences.contains_key(&sequence)
            && let Some(other) = self.plain.name(sequence)
        {
            self.complicate(other);
        }
        if !self.sequences.entry(sequence).or_default().add(slot, true) {
            return Put::Unseen;
        }
        self.see(sequence, slot)
    }

    /// Whether a block that no tier holds could be made plain.
    fn put_plain(&mut self, hash: EngineHash, sequence: SequenceHash, slot: usize) -> bool {
        // Nearly always these maps are empty, or small.
        let known = self.placed.contains_key(&hash) || self.faded.contains_key(&hash);
        slot == DEVICE && !known && self.plain.insert(hash, sequence)
    }

    /// Gives a name that is plain, and its block, counters.
    fn complicate(&mut self, hash: EngineHash) {
        if let Some(sequence) = self.plain.remove(hash) {
            let copies = Counts::PLAIN;
            self.placed.insert(hash, Placed { sequence, copies });
            self.sequences.insert(sequence, Counts::PLAIN);
        }
    }

    /// A tier holds a block that it did not hold.
    fn see(&mut self, sequence: SequenceHash, slot: usize) -> Put {
        self.views[slot].blocks += 1;
        self.views[slot].digest.insert(sequence);
        Put::New(sequence)
    }

    /// A tier holds a block no longer.
    fn unsee(&mut self, sequence: SequenceHash, slot: usize) {
        self.views[slot].blocks -= 1;
        self.views[slot].digest.remove(sequence);
    }

    /// The same for a block that is kept out of the view.
    pub fn put_outside(&mut self, hash: EngineHash, tier: Tier, copies: bool) -> Put {
        match slot(tier) {
            Some(slot) if !self.outside.entry(hash).or_default().add(slot, copies) => Put::Again,
            _ => Put::Unseen,
        }
    }

    /// One copy less.
    pub fn take(&mut self, hash: EngineHash, tier: Tier) -> Taken {
        let Some(slot) = slot(tier) else {
            return Taken::Absent;
        };
        if slot == DEVICE
            && let Some(sequence) = self.plain.remove(hash)
        {
            self.unsee(sequence, slot);
            return Taken::Gone(sequence);
        }
        let Entry::Occupied(mut placed) = self.placed.entry(hash) else {
            return self.take_unseen(hash, slot);
        };
        let Placed { sequence, copies } = placed.get_mut();
        let sequence = *sequence;
        if copies.0[slot] == 0 {
            return Taken::Absent;
        }
        let last_copy = copies.take(slot);
        if copies.is_zero() {
            placed.remove();
        }
        if last_copy && self.unname(sequence, slot) {
            return Taken::Gone(sequence);
        }
        Taken::Unseen
    }

    fn take_unseen(&mut self, hash: EngineHash, slot: usize) -> Taken {
        if self.faded.remove(&hash).is_some() {
            return Taken::Unseen;
        }
        let Entry::Occupied(mut outside) = self.outside.entry(hash) else {
            return Taken::Absent;
        };
        let copies = outside.get_mut();
        if copies.0[slot] == 0 {
            return Taken::Absent;
        }
        copies.take(slot);
        if copies.is_zero() {
            outside.remove();
        }
        Taken::Unseen
    }

    /// A block has one name less in a tier; whether that was the last one.
    fn unname(&mut self, sequence: SequenceHash, slot: usize) -> bool {
        let Some(names) = self.sequences.get_mut(&sequence) else {
            debug_assert!(false, "a placed block has an entry of its own");
            return false;
        };
        let last_name = names.take(slot);
        if names.is_zero() {
            self.sequences.remove(&sequence);
        }
        if last_name {
            self.unsee(sequence, slot);
        }
        last_name
    }

    /// Moves a block under one of its names out of the view; the tiers that hold it no longer.
    pub fn expel(&mut self, hash: EngineHash) -> Vec<(Tier, SequenceHash)> {
        self.faded.remove(&hash);
        self.complicate(hash);
        let Some(placed) = self.placed.remove(&hash) else {
            return Vec::new();
        };
        self.outside.insert(hash, placed.copies);
        let slots = (0..TIERS.len()).filter(|slot| placed.copies.0[*slot] > 0);
        let gone = slots.filter(|slot| self.unname(placed.sequence, *slot));
        gone.map(|slot| (TIERS[slot], placed.sequence)).collect()
    }

    /// Empties the view: what was there may have left unseen. Names are kept until the next such moment, since blocks that
    /// are announced from here on stand behind blocks that were announced before. Whether there was anything.
    pub fn fade(&mut self) -> bool {
        let placed = std::mem::take(&mut self.placed).into_iter();
        let placed = placed.map(|(hash, placed)| (hash, placed.sequence));
        let faded = placed.chain(self.plain.iter()).collect();
        let held = self.clear(None);
        self.faded = faded;
        held
    }

    /// How many names are kept of blocks that may be gone.
    pub fn faded(&self) -> usize {
        self.faded.len()
    }

    /// Whether there was anything in the tier, or in any tier.
    pub fn clear(&mut self, tier: Option<Tier>) -> bool {
        let Some(tier) = tier else {
            let held = self.views.iter().any(|view| view.blocks > 0);
            // Emptying the tables would keep their memory.
            *self = Self::default();
            return held;
        };
        let Some(slot) = slot(tier) else {
            return false;
        };
        let held = self.views[slot].blocks > 0;
        self.views[slot] = TierView::default();
        if slot == DEVICE {
            self.plain = Plain::default();
        }
        self.placed.retain(|_, placed| {
            placed.copies.0[slot] = 0;
            !placed.copies.is_zero()
        });
        let without = |counts: &mut Counts| {
            counts.0[slot] = 0;
            !counts.is_zero()
        };
        self.outside.retain(|_, copies| without(copies));
        self.sequences.retain(|_, names| without(names));
        held
    }

    /// Size and digest of what a tier holds.
    pub fn view(&self, tier: Tier) -> TierView {
        slot(tier).map_or_else(TierView::default, |slot| self.views[slot])
    }

    /// The blocks of a tier, in no order.
    pub fn blocks(&self, tier: Tier) -> impl Iterator<Item = SequenceHash> + '_ {
        let slot = slot(tier);
        let held = move |names: &Counts| slot.is_some_and(|slot| names.0[slot] > 0);
        let counted = self.sequences.iter();
        let counted = counted.filter_map(move |(sequence, names)| held(names).then_some(*sequence));
        let plain = (slot == Some(DEVICE)).then(|| self.plain.iter());
        let plain = plain.into_iter().flatten().map(|(_, sequence)| sequence);
        counted.chain(plain)
    }
}

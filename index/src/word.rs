//! Who holds a block, in one word.
//!
//! ```text
//!  bits  0..42   three holders of 14 bits, or a set: its number (26 bits) and the end of its serial number (16 bits)
//!       42..45   how many holders; 4 says that it is a set
//!       45..50   of the first slot of a bucket: how many buckets further its blocks may be
//!       50..64   version of the slot: odd while its key changes
//! ```
//!
//! A reader gets it in one load, so there is no time at which it sees half a change.

use crate::target::Holder;

const HOLDER_BITS: u32 = 14;
const HOLDER_MASK: u64 = (1 << HOLDER_BITS) - 1;
/// How many holders fit.
pub(crate) const INLINE: usize = 3;
const COUNT_SHIFT: u32 = 42;
const SET: u64 = 4;
const SET_NUMBER_BITS: u32 = 26;
const REACH_SHIFT: u32 = 45;
const VERSION_SHIFT: u32 = 50;
const HOLDING_MASK: u64 = (1 << REACH_SHIFT) - 1;
const VERSION_MASK: u64 = u64::MAX << VERSION_SHIFT;
const REACH_MASK: u64 = !HOLDING_MASK & !VERSION_MASK;

/// How many buckets from its own a block may be.
pub(crate) const MAX_REACH: usize = (REACH_MASK >> REACH_SHIFT) as usize;

/// How many sets there can be. Each is of holders that no other is of, and takes a hundred bytes or more.
pub(crate) const MAX_SETS: usize = 1 << SET_NUMBER_BITS;

/// The holders of a block.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Holding(u64);

/// A set of holders, at one time of the life of its number.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct SetName {
    pub(crate) number: u32,
    serial: u16,
}

impl SetName {
    pub(crate) fn new(number: u32, serial: u64) -> Self {
        Self {
            number,
            serial: serial as u16,
        }
    }

    /// The same set under another number.
    pub(crate) fn renumbered(self, number: u32) -> Self {
        Self { number, ..self }
    }

    /// Whether the set of this serial number is meant.
    pub(crate) fn is(self, serial: u64) -> bool {
        self.serial == serial as u16
    }
}

impl Holding {
    /// Nobody.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// These holders, if they fit.
    pub(crate) fn of(holders: &[Holder]) -> Option<Self> {
        holders
            .iter()
            .try_fold(Self::NONE, |holding, holder| holding.with(*holder))
    }

    pub(crate) fn of_set(name: SetName) -> Self {
        let serial = u64::from(name.serial) << SET_NUMBER_BITS;
        Self(u64::from(name.number) | serial | SET << COUNT_SHIFT)
    }

    pub(crate) fn set(self) -> Option<SetName> {
        (self.count() == SET).then_some(SetName {
            number: (self.0 & (MAX_SETS as u64 - 1)) as u32,
            serial: (self.0 >> SET_NUMBER_BITS) as u16,
        })
    }

    fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }

    /// The holders of one that is no set.
    pub(crate) fn holders(self) -> impl ExactSizeIterator<Item = Holder> {
        debug_assert!(self.count() < SET);
        let at = move |place: u32| self.0 >> (place * HOLDER_BITS) & HOLDER_MASK;
        (0..self.count() as u32).map(move |place| Holder(at(place) as u32))
    }

    /// With one more, if it fits. This one is no set and has not got it.
    pub(crate) fn with(self, holder: Holder) -> Option<Self> {
        let count = self.count();
        let fits = count < INLINE as u64 && u64::from(holder.0) <= HOLDER_MASK;
        fits.then(|| {
            let shift = count as u32 * HOLDER_BITS;
            Self((self.0 | u64::from(holder.0) << shift) + (1 << COUNT_SHIFT))
        })
    }

    /// With one more, if this one is no set, has not got it, and has room.
    #[inline]
    pub(crate) fn with_new(self, holder: Holder) -> Option<Self> {
        // A set's count is beyond those that have room.
        let held = self.count() < INLINE as u64 && self.place(holder) < INLINE;
        if held { None } else { self.with(holder) }
    }

    /// Without one, if this one is no set and has it.
    #[inline]
    pub(crate) fn without_known(self, holder: Holder) -> Option<Self> {
        let place = self.place(holder);
        (self.count() < SET && place < INLINE).then(|| self.without(place))
    }

    /// Where a holder is, without a branch that would be foretold wrongly; [`INLINE`] if it is not there.
    #[inline]
    fn place(self, holder: Holder) -> usize {
        let places = (0..INLINE).rev();
        places.fold(INLINE, |found, place| {
            let other = self.0 >> (place as u32 * HOLDER_BITS) & HOLDER_MASK;
            let same = other == u64::from(holder.0) && (place as u64) < self.count();
            if same { place } else { found }
        })
    }

    /// Without the one at a place. This one is no set.
    pub(crate) fn without(self, place: usize) -> Self {
        let holders = self.0 & ((1 << COUNT_SHIFT) - 1);
        let shift = place as u32 * HOLDER_BITS;
        let before = holders & ((1 << shift) - 1);
        let after = holders >> shift >> HOLDER_BITS << shift;
        Self(before | after | (self.count() - 1) << COUNT_SHIFT)
    }
}

/// All that a slot says beside its key.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    pub(crate) fn holding(self) -> Holding {
        Holding(self.0 & HOLDING_MASK)
    }

    pub(crate) fn with_holding(self, holding: Holding) -> Self {
        Self(self.0 & !HOLDING_MASK | holding.0)
    }

    pub(crate) fn reach(self) -> usize {
        ((self.0 & REACH_MASK) >> REACH_SHIFT) as usize
    }

    pub(crate) fn with_reach(self, reach: usize) -> Self {
        debug_assert!(reach <= MAX_REACH);
        Self(self.0 & !REACH_MASK | (reach as u64) << REACH_SHIFT)
    }

    /// Whether the key beside it is settled.
    pub(crate) fn is_settled(self) -> bool {
        self.0 >> VERSION_SHIFT & 1 == 0
    }

    /// In the next version, which comes round after 16,384.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << VERSION_SHIFT))
    }
}

/// Places of the ones in a word.
pub(crate) fn bits(word: impl Into<u64>) -> impl Iterator<Item = usize> {
    let mut word = word.into();
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(holding: Holding) -> Vec<u32> {
        holding.holders().map(|holder| holder.0).collect()
    }

    #[test]
    fn holders_come_and_go_at_every_place() {
        let three = Holding::of(&[Holder(0), Holder(16383), Holder(7)]).unwrap();
        assert_eq!(all(three), [0, 16383, 7]);
        assert_eq!(three.set(), None);
        assert_eq!(three.with(Holder(1)), None, "four do not fit");
        assert_eq!(Holding::NONE.with(Holder(16384)), None, "15 bits");
        assert_eq!(all(three.without(0)), [16383, 7]);
        assert_eq!(all(three.without(1)), [0, 7]);
        assert_eq!(all(three.without(2)), [0, 16383]);
        assert!(three.without(0).without(0).without(0).is_none());
        assert!(!Holding::of(&[Holder(0)]).unwrap().is_none());
    }

    #[test]
    fn what_is_not_as_expected_is_left_to_others() {
        let two = Holding::of(&[Holder(0), Holder(7)]).unwrap();
        assert_eq!(two.with_new(Holder(9)), two.with(Holder(9)));
        assert_eq!(two.with_new(Holder(0)), None, "it is there already");
        let three = two.with(Holder(9)).unwrap();
        assert_eq!(three.with_new(Holder(1)), None, "four do not fit");
        assert_eq!(three.without_known(Holder(7)), Some(three.without(1)));
        assert_eq!(three.without_known(Holder(1)), None);
        assert_eq!(two.without_known(Holder(16384)), None, "15 bits");
        let alone = Holding::NONE.with_new(Holder(0)).unwrap();
        assert_eq!(alone.without_known(Holder(0)), Some(Holding::NONE));
        assert_eq!(Holding::NONE.without_known(Holder(0)), None);
        let set = Holding::of_set(SetName::new(0, 7));
        assert_eq!(set.with_new(Holder(1)), None);
        assert_eq!(set.without_known(Holder(0)), None);
    }

    #[test]
    fn sets_are_told_apart_by_serial_number() {
        let name = SetName::new((1 << 26) - 1, 0x1_fffe);
        let holding = Holding::of_set(name);
        assert_eq!(holding.set(), Some(name));
        assert!(name.is(0xfffe) && !name.is(0xffff));
        assert_eq!(Holding::of_set(SetName::new(0, 0)).set().unwrap().number, 0);
    }

    #[test]
    fn parts_of_a_word_do_not_touch_each_other() {
        let holding = Holding::of_set(SetName::new(u32::MAX >> 6, u64::MAX));
        let mut word = Word(0).with_holding(holding).with_reach(MAX_REACH);
        for step in 1..=16384_u32 {
            word = word.next();
            assert_eq!(word.is_settled(), step % 2 == 0);
        }
        assert_eq!((word.holding(), word.reach()), (holding, MAX_REACH));
        let word = word.next().with_reach(0).with_holding(Holding::NONE);
        assert_eq!(word, Word(0).next());
    }
}

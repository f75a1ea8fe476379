//! Names and blocks that belong to each other and to nothing else.
//!
//! Nearly every block has one name. Both are written down once, side by side, in the order in which they came; what finds
//! them is two tables of places, which take four bytes an entry and so stay near. Neighbours in a sequence are neighbours
//! here, and leave one after the other, so most of what is looked at was just looked at.

use std::hash::{BuildHasher, RandomState};

use baton_proto::hash::SequenceHash;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::event::EngineHash;

/// A name and the block that it leads to.
type Pair = (EngineHash, SequenceHash);

/// Pairs of which both halves are in no other.
#[derive(Debug)]
pub(super) struct Plain {
    pairs: Vec<Pair>,
    /// Places in `pairs` of no pair.
    free: Vec<u32>,
    by_name: HashTable<u32>,
    by_sequence: HashTable<u32>,
    salt: Salt,
}

/// What makes hashes into places. Whoever chooses prompts does not know it, or could make many blocks meet in one.
#[derive(Debug, Clone, Copy)]
struct Salt(u64);

impl Salt {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "both halves of the product are taken"
    )]
    fn place(self, hash: u64) -> u64 {
        let mixed = u128::from(hash) * u128::from(self.0);
        (mixed >> 64) as u64 ^ mixed as u64
    }
}

impl Default for Plain {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            free: Vec::new(),
            by_name: HashTable::new(),
            by_sequence: HashTable::new(),
            salt: Salt(RandomState::new().hash_one("plain") | 1),
        }
    }
}

impl Plain {
    /// The block that a name leads to.
    pub(super) fn sequence(&self, name: EngineHash) -> Option<SequenceHash> {
        let same = |place: &u32| self.pairs[*place as usize].0 == name;
        let place = self.by_name.find(self.salt.place(name.0), same)?;
        Some(self.pairs[*place as usize].1)
    }

    /// The name of a block.
    pub(super) fn name(&self, sequence: SequenceHash) -> Option<EngineHash> {
        let same = |place: &u32| self.pairs[*place as usize].1 == sequence;
        let place = self.by_sequence.find(self.salt.place(sequence.0), same)?;
        Some(self.pairs[*place as usize].0)
    }

    /// Puts a pair in; false, and nothing done, if either half is in one, or if there are more than can be counted.
    pub(super) fn insert(&mut self, name: EngineHash, sequence: SequenceHash) -> bool {
        let (pairs, salt) = (&self.pairs, self.salt);
        let pair = |place: &u32| pairs[*place as usize];
        let by_name = self.by_name.entry(
            salt.place(name.0),
            |place| pair(place).0 == name,
            |place| salt.place(pair(place).0.0),
        );
        let by_sequence = self.by_sequence.entry(
            salt.place(sequence.0),
            |place| pair(place).1 == sequence,
            |place| salt.place(pair(place).1.0),
        );
        let (Entry::Vacant(by_name), Entry::Vacant(by_sequence)) = (by_name, by_sequence) else {
            return false;
        };
        let new = || u32::try_from(pairs.len()).ok();
        let Some(place) = self.free.pop().or_else(new) else {
            return false;
        };
        by_name.insert(place);
        by_sequence.insert(place);
        match self.pairs.get_mut(place as usize) {
            Some(pair) => *pair = (name, sequence),
            None => self.push((name, sequence)),
        }
        true
    }

    /// In smaller steps than a `Vec` takes by itself: half of it would be empty in the mean.
    fn push(&mut self, pair: Pair) {
        if self.pairs.len() == self.pairs.capacity() {
            self.pairs.reserve_exact(self.pairs.len() / 8 + 64);
        }
        self.pairs.push(pair);
    }

    /// Takes the pair of a name out; its block.
    pub(super) fn remove(&mut self, name: EngineHash) -> Option<SequenceHash> {
        let (pairs, salt) = (&self.pairs, self.salt);
        let same = |place: &u32| pairs[*place as usize].0 == name;
        let entry = self.by_name.find_entry(salt.place(name.0), same).ok()?;
        let (place, _) = entry.remove();
        let sequence = pairs[place as usize].1;
        let this = |other: &u32| *other == place;
        if let Ok(entry) = self.by_sequence.find_entry(salt.place(sequence.0), this) {
            entry.remove();
        }
        self.free.push(place);
        self.give_back();
        Some(sequence)
    }

    /// Gives memory back once most of it is free.
    fn give_back(&mut self) {
        let held = self.pairs.len() - self.free.len();
        if self.pairs.len() > 1024 && held < self.pairs.len() / 4 {
            let pairs: Vec<Pair> = self.iter().collect();
            *self = Self::default();
            self.by_name.reserve(held, |_| 0);
            self.by_sequence.reserve(held, |_| 0);
            for (name, sequence) in pairs {
                self.insert(name, sequence);
            }
        }
    }

    /// All pairs, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Pair> + '_ {
        let places = self.by_name.iter();
        places.map(|place| self.pairs[*place as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_both_ways(steps in prop::collection::vec((any::<bool>(), 0..60_u64), 1..400), spread in any::<u64>()) {
            let mut plain = Plain::default();
            let mut map = BTreeMap::new();
            for (step, (insert, number)) in steps.into_iter().enumerate() {
                // Neighbours, multiples of anything, and 0 in any case.
                let name = EngineHash(number.wrapping_mul(spread | 1));
                let sequence = SequenceHash(step as u64);
                prop_assert_eq!(plain.sequence(name), map.get(&name).copied());
                if insert && !map.contains_key(&name) {
                    prop_assert!(plain.insert(name, sequence));
                    map.insert(name, sequence);
                    prop_assert_eq!(plain.name(sequence), Some(name));
                } else if !insert {
                    let removed = plain.remove(name);
                    prop_assert_eq!(removed, map.remove(&name));
                    prop_assert_eq!(removed.and_then(|sequence| plain.name(sequence)), None);
                }
            }
            prop_assert_eq!(plain.iter().collect::<BTreeMap<_, _>>(), map);
        }
    }

    #[test]
    fn it_gives_memory_back() {
        let mut plain = Plain::default();
        for number in 0..10_000 {
            assert!(plain.insert(EngineHash(number), SequenceHash(number + 7)));
        }
        for number in 0..9_990 {
            assert_eq!(
                plain.remove(EngineHash(number)),
                Some(SequenceHash(number + 7))
            );
        }
        assert!(plain.pairs.capacity() + plain.by_name.capacity() < 4 * 1024);
        assert_eq!(plain.name(SequenceHash(9_999 + 7)), Some(EngineHash(9_999)));
        assert_eq!(plain.iter().count(), 10);
    }
}

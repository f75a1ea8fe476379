//! Which blocks are in a view, and whether those before each of them are, too.
//!
//! Whoever looks for the longest prefix that a rank holds may skip blocks if they are, and must look at each if not. They
//! are as a rule: engines evict the end of a sequence first. After a loss they are not until they have been told anew.

use baton_proto::hash::SequenceHash;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// What a block stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parent {
    /// The beginning of its sequence.
    Root,
    /// This block.
    Block(SequenceHash),
    /// Nobody told.
    Untold,
}

#[derive(Debug)]
struct Link {
    parent: Parent,
    /// One bit for each tier that holds the block.
    tiers: u8,
    /// How many blocks of the view stand behind this one.
    children: u32,
}

/// How the blocks of a view, of all tiers together, hang together.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    links: HashMap<SequenceHash, Link>,
    /// How many blocks of the view stand behind each block that is not in it.
    missing: HashMap<SequenceHash, u32>,
    /// How many blocks of the view do not stand behind another one of it, though they should.
    orphans: u64,
}

impl Lineage {
    /// Whether a tier holds this block.
    pub(super) fn has(&self, block: SequenceHash) -> bool {
        self.links.contains_key(&block)
    }

    /// A tier holds a block that it did not hold.
    pub(super) fn enter(&mut self, block: SequenceHash, slot: usize, parent: Parent) {
        let bit = 1 << slot;
        match self.links.entry(block) {
            Entry::Occupied(mut held) => return held.get_mut().tiers |= bit,
            Entry::Vacant(new) => {
                let children = self.missing.remove(&block).unwrap_or_default();
                self.orphans -= u64::from(children);
                new.insert(Link {
                    parent,
                    tiers: bit,
                    children,
                });
            }
        }
        match parent {
            Parent::Root => {}
            Parent::Untold => self.orphans += 1,
            Parent::Block(parent) => match self.links.get_mut(&parent) {
                Some(link) => link.children += 1,
                None => {
                    self.orphans += 1;
                    *self.missing.entry(parent).or_default() += 1;
                }
            },
        }
    }

    /// A tier holds a block no longer.
    pub(super) fn leave(&mut self, block: SequenceHash, slot: usize) {
        let Entry::Occupied(mut held) = self.links.entry(block) else {
            debug_assert!(false, "a block that leaves was there");
            return;
        };
        held.get_mut().tiers &= !(1 << slot);
        if held.get().tiers != 0 {
            return;
        }
        let link = held.remove();
        if link.children > 0 {
            self.orphans += u64::from(link.children);
            self.missing.insert(block, link.children);
        }
        match link.parent {
            Parent::Root => {}
            Parent::Untold => self.orphans -= 1,
            Parent::Block(parent) => self.leave_parent(parent),
        }
    }

    fn leave_parent(&mut self, parent: SequenceHash) {
        if let Some(link) = self.links.get_mut(&parent) {
            link.children -= 1;
            return;
        }
        self.orphans -= 1;
        if let Entry::Occupied(mut missing) = self.missing.entry(parent) {
            *missing.get_mut() -= 1;
            if *missing.get() == 0 {
                missing.remove();
            }
        }
    }

    /// A tier, or every tier, holds nothing any more.
    pub(super) fn clear(&mut self, slot: Option<usize>) {
        // Emptying the tables would keep their memory.
        let links = std::mem::take(self).links;
        let Some(slot) = slot else { return };
        for (block, link) in links {
            for kept in (0..u8::BITS as usize).filter(|kept| *kept != slot) {
                if link.tiers & 1 << kept != 0 {
                    self.enter(block, kept, link.parent);
                }
            }
        }
    }

    /// Whether the blocks before each block are there, too.
    pub(super) fn is_whole(&self) -> bool {
        self.orphans == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// Blocks 1 to 9 in two branches behind 3: `1 2 3 4 5 6` and `1 2 3 7 8 9`.
    fn parent_of(block: u64) -> Parent {
        match block {
            1 => Parent::Root,
            7 => Parent::Block(SequenceHash(3)),
            _ => Parent::Block(SequenceHash(block - 1)),
        }
    }

    fn is_whole(held: &BTreeMap<u64, BTreeSet<usize>>) -> bool {
        held.keys().all(|block| match parent_of(*block) {
            Parent::Block(parent) => held.contains_key(&parent.0),
            Parent::Root | Parent::Untold => true,
        })
    }

    #[test]
    fn a_block_that_nobody_placed_breaks_a_view_while_it_is_there() {
        let mut lineage = Lineage::default();
        lineage.enter(SequenceHash(5), 1, Parent::Untold);
        assert!(!lineage.is_whole());
        lineage.enter(SequenceHash(6), 0, Parent::Block(SequenceHash(5)));
        lineage.leave(SequenceHash(5), 1);
        assert!(!lineage.is_whole());
        lineage.leave(SequenceHash(6), 0);
        assert!(lineage.is_whole());
    }

    proptest! {
        #[test]
        fn it_is_whole_exactly_if_no_block_lacks_the_one_before(
            steps in prop::collection::vec((1u64..=9, 0usize..4, 0u8..20), 1..200),
        ) {
            let mut lineage = Lineage::default();
            let mut held: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            for (block, slot, what) in steps {
                if what == 0 {
                    lineage.clear(Some(slot));
                    for tiers in held.values_mut() {
                        tiers.remove(&slot);
                    }
                    held.retain(|_, tiers| !tiers.is_empty());
                } else if !held.get(&block).is_some_and(|tiers| tiers.contains(&slot)) {
                    lineage.enter(SequenceHash(block), slot, parent_of(block));
                    held.entry(block).or_default().insert(slot);
                } else {
                    lineage.leave(SequenceHash(block), slot);
                    let tiers = held.get_mut(&block).unwrap();
                    tiers.remove(&slot);
                    if tiers.is_empty() {
                        held.remove(&block);
                    }
                }
                prop_assert_eq!(lineage.is_whole(), is_whole(&held));
            }
            lineage.clear(None);
            prop_assert!(lineage.is_whole());
        }
    }
}

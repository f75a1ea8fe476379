use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Salts as they are, and one such that all names meet in one bucket.
fn salts() -> [Salt; 2] {
    [Salt::new(), Salt::weak()]
}

/// As many as there is room for even if all meet.
const MOST: u64 = (SLOTS * (FURTHEST + 1)) as u64;

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u64),
    Remove(u64),
    Ask(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let few = 0..MOST;
    let step = prop_oneof![
        5 => (few.clone(), few.clone()).prop_map(|(name, block)| Step::Insert(name, block)),
        2 => few.clone().prop_map(|both| Step::Insert(both, both + 1)),
        4 => few.clone().prop_map(Step::Remove),
        1 => few.prop_map(Step::Ask),
    ];
    prop::collection::vec(step, 1..600)
}

/// What `Plain` should be.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u64, u64>,
    names: BTreeMap<u64, u64>,
}

impl Model {
    fn insert(&mut self, name: u64, block: u64) -> bool {
        let new = !self.blocks.contains_key(&name);
        if new {
            self.blocks.insert(name, block);
            self.names.insert(block, name);
        }
        new
    }

    fn remove(&mut self, name: u64) -> Option<u64> {
        let block = self.blocks.remove(&name)?;
        self.names.remove(&block);
        Some(block)
    }
}

proptest! {
    #[test]
    fn it_is_a_map_both_ways(steps in steps(), weak in 0..2_usize, spread in any::<u64>()) {
        let salt = salts()[weak];
        // Neighbours; but where all are to meet they must be small.
        let spread = if weak == 0 { spread | 1 } else { 1 };
        let name = |number: u64| EngineHash(number.wrapping_mul(spread));
        let mut plain = Plain::new(0, salt);
        let mut model = Model::default();
        for step in steps {
            match step {
                // Nobody puts a block in twice.
                Step::Insert(_, block) if model.names.contains_key(&block) => {}
                Step::Insert(number, block) => {
                    let inserted = plain.insert(name(number), SequenceHash(block));
                    prop_assert_eq!(inserted, model.insert(number, block));
                }
                Step::Remove(number) => {
                    let removed = plain.remove(name(number)).map(|block| block.0);
                    prop_assert_eq!(removed, model.remove(number));
                }
                Step::Ask(block) => {
                    let known = plain.name(SequenceHash(block));
                    prop_assert_eq!(known, model.names.get(&block).copied().map(name));
                }
            }
        }
        for number in 0..MOST {
            let block = plain.sequence(name(number)).map(|block| block.0);
            prop_assert_eq!(block, model.blocks.get(&number).copied());
            let known = plain.name(SequenceHash(number));
            prop_assert_eq!(known, model.names.get(&number).copied().map(name));
        }
        let pairs: BTreeMap<_, _> = plain.iter().collect();
        let blocks = model.blocks.iter();
        let expected = blocks.map(|(number, block)| (name(*number), SequenceHash(*block)));
        prop_assert_eq!(pairs, expected.collect());
    }
}

#[test]
fn what_finds_no_room_is_refused() {
    for salt in salts() {
        let mut plain = Plain::new(0, salt);
        let put: Vec<u64> = (0..3000)
            .filter(|number| plain.insert(EngineHash(*number), SequenceHash(number + 5000)))
            .collect();
        assert!(put.len() as u64 >= MOST);
        assert_eq!(plain.iter().count(), put.len());
        for number in put {
            let removed = plain.remove(EngineHash(number));
            assert_eq!(removed, Some(SequenceHash(number + 5000)));
        }
    }
}

#[test]
fn names_are_found_by_block_for_as_long_as_they_are_asked_for() {
    let mut plain = Plain::default();
    for number in 0..100 {
        assert!(plain.insert(EngineHash(number), SequenceHash(number + 7)));
    }
    assert!(plain.names.is_none());
    assert_eq!(plain.name(SequenceHash(50 + 7)), Some(EngineHash(50)));
    assert_eq!(plain.name(SequenceHash(500)), None);
    assert!(plain.names.is_some());
    assert_eq!(plain.remove(EngineHash(50)), Some(SequenceHash(50 + 7)));
    assert!(plain.insert(EngineHash(500), SequenceHash(50 + 7)));
    assert_eq!(plain.name(SequenceHash(50 + 7)), Some(EngineHash(500)));
    for number in 1000..1400 {
        assert!(plain.insert(EngineHash(number), SequenceHash(number + 7)));
    }
    assert!(plain.names.is_none());
    assert_eq!(plain.name(SequenceHash(50 + 7)), Some(EngineHash(500)));
}

#[test]
fn it_gives_memory_back() {
    let mut plain = Plain::default();
    for number in 0..10_000 {
        assert!(plain.insert(EngineHash(number), SequenceHash(number + 7)));
    }
    assert!(plain.homes * SLOTS <= 10_000 * 100 / RELAXED + SLOTS);
    for number in 0..9_990 {
        assert_eq!(
            plain.remove(EngineHash(number)),
            Some(SequenceHash(number + 7))
        );
    }
    assert!(plain.homes * SLOTS <= 10 * 100 / SPARSE);
    assert_eq!(plain.name(SequenceHash(9_999 + 7)), Some(EngineHash(9_999)));
    assert_eq!(plain.iter().count(), 10);
}

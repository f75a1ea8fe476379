//! The index against a naive one, over whatever may be done to them.
#![cfg(not(loom))]
#![allow(
    clippy::cast_possible_truncation,
    reason = "random numbers are cut to what is needed"
)]

mod naive;

use baton_index::{Found, Index, Target, Tier};
use proptest::prelude::*;

use naive::{Naive, TIERS, chains, mix};

const CHAINS: u64 = 7;
const LENGTH: usize = 50;

/// What is done. Numbers stand for whatever is there at that time.
#[derive(Debug, Clone)]
enum Step {
    Join,
    Leave(usize),
    Store(Blocks),
    Remove(Blocks),
    Clear(usize, Option<u8>),
    /// Whether somebody will vouch for that target whenever that is true.
    Vouch(usize, bool),
}

/// Blocks of a chain, of a target's tier. Prefixes and suffixes keep a target whole; others make holes.
#[derive(Debug, Clone)]
struct Blocks {
    target: usize,
    tier: u8,
    chain: usize,
    from: usize,
    to: usize,
    clean: bool,
    backwards: bool,
}

fn blocks() -> impl Strategy<Value = Blocks> {
    let numbers = (any::<usize>(), 0..16_u8, 0..CHAINS as usize);
    let range = (0..LENGTH, 0..=LENGTH);
    (numbers, range, prop::bool::weighted(0.8), any::<bool>()).prop_map(
        |((target, tier, chain), (from, to), clean, backwards)| Blocks {
            target,
            // Most blocks are in the lowest tier.
            tier: if tier < 4 { tier } else { 0 },
            chain,
            from: from.min(to),
            to,
            clean,
            backwards,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Join),
        1 => any::<usize>().prop_map(Step::Leave),
        16 => blocks().prop_map(Step::Store),
        12 => blocks().prop_map(Step::Remove),
        1 => (any::<usize>(), prop::option::of(0..4_u8)).prop_map(|(target, tier)| Step::Clear(target, tier)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(target, vouch)| Step::Vouch(target, vouch)),
    ]
}

struct Pair {
    index: Index,
    naive: Naive,
    unvouched: Vec<Target>,
    chains: Vec<Vec<u64>>,
    found: Found,
}

impl Pair {
    fn new(targets: usize) -> Self {
        let mut pair = Self {
            index: Index::new(),
            naive: Naive::default(),
            unvouched: Vec::new(),
            chains: chains(CHAINS, LENGTH),
            found: Found::new(),
        };
        (0..targets).for_each(|_| pair.join());
        pair
    }

    fn join(&mut self) {
        let target = self.index.add_target();
        let before = self.naive.0.insert(target, Default::default());
        assert!(before.is_none(), "{target:?} is given twice");
    }

    fn target(&self, number: usize) -> Option<Target> {
        let targets = self.naive.0.len().max(1);
        self.naive.0.keys().nth(number % targets).copied()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Join => self.join(),
            Step::Leave(number) => self.target(*number).into_iter().for_each(|target| {
                self.index.remove_target(target);
                self.naive.0.remove(&target);
                self.unvouched.retain(|other| *other != target);
            }),
            Step::Store(blocks) => self.change(blocks, true),
            Step::Remove(blocks) => self.change(blocks, false),
            Step::Clear(number, tier) => {
                let tier = tier.and_then(Tier::new);
                self.target(*number).into_iter().for_each(|target| {
                    self.index.clear(target, tier);
                    for each in TIERS
                        .into_iter()
                        .filter(|each| tier.is_none_or(|tier| tier == *each))
                    {
                        self.naive.tier(target, each).clear();
                    }
                });
            }
            Step::Vouch(number, vouch) => self.target(*number).into_iter().for_each(|target| {
                self.unvouched.retain(|other| *other != target);
                if !vouch {
                    self.unvouched.push(target);
                }
            }),
        }
        for target in self.naive.0.keys() {
            let whole =
                !self.unvouched.contains(target) && self.naive.is_whole(*target, &self.chains);
            self.index.set_whole(*target, whole);
        }
    }

    fn change(&mut self, blocks: &Blocks, store: bool) {
        let (Some(target), Some(tier)) = (self.target(blocks.target), Tier::new(blocks.tier))
        else {
            return;
        };
        let chain = &self.chains[blocks.chain];
        let range = match (blocks.clean, store) {
            (false, _) => blocks.from..blocks.to,
            (true, true) => 0..blocks.to,
            (true, false) => blocks.from..LENGTH,
        };
        let mut blocks_of = chain[range].to_vec();
        if blocks.backwards {
            blocks_of.reverse();
        }
        let held = self.naive.tier(target, tier);
        if store {
            held.extend(&blocks_of);
            self.index.store(target, tier, &blocks_of);
        } else {
            for hash in &blocks_of {
                held.remove(hash);
            }
            self.index.remove(target, tier, &blocks_of);
        }
    }

    fn assert_equal(&mut self) {
        for chain in &self.chains {
            for sequence in [&chain[..], &chain[..1], &chain[..17], &chain[3..], &[]] {
                self.index.find(sequence, &mut self.found);
                let vouched =
                    sequence.first() == chain.first() || self.unvouched.len() == self.naive.0.len();
                if vouched || sequence.is_empty() {
                    assert_eq!(self.found.matches(), self.naive.find(sequence));
                }
            }
        }
        for target in self.naive.0.keys().copied().collect::<Vec<_>>() {
            for tier in TIERS {
                let held = self.naive.tier(target, tier).len() as u64;
                assert_eq!(self.index.blocks(target, tier), held, "{target:?} {tier:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn it_finds_what_a_naive_index_finds(
        targets in prop_oneof![0..6_usize, 60..140_usize],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut pair = Pair::new(targets);
        for step in &steps {
            pair.take(step);
            pair.assert_equal();
        }
    }
}

#[test]
fn a_fleet_of_thousands_with_every_tier() {
    let index = Index::new();
    let mut naive = Naive::default();
    let sequence: Vec<u64> = (0..30).map(mix).collect();
    let targets: Vec<Target> = (0..4500).map(|_| index.add_target()).collect();
    for target in targets.iter().step_by(4) {
        naive.0.insert(*target, Default::default());
        for tier in TIERS {
            let blocks =
                mix(u64::from(target.number()) << 2 | naive::place(tier) as u64) as usize % 30;
            let stored = &sequence[..blocks * usize::from(blocks.is_multiple_of(5))];
            index.store(*target, tier, stored);
            naive.tier(*target, tier).extend(stored);
        }
    }
    let mut found = Found::new();
    index.find(&sequence, &mut found);
    assert_eq!(found.matches(), naive.find(&sequence));
    for target in targets.iter().step_by(20) {
        index.remove_target(*target);
        naive.0.remove(target);
    }
    index.find(&sequence, &mut found);
    assert_eq!(found.matches(), naive.find(&sequence));
    assert_eq!(index.add_target(), targets[0], "the lowest free number");
    index.find(&sequence, &mut found);
    assert_eq!(
        found.matches(),
        naive.find(&sequence),
        "nothing is inherited"
    );
}

#[test]
fn numbers_high_or_low_are_alone_in_no_set() {
    let index = Index::new();
    let targets: Vec<Target> = (0..5000).map(|_| index.add_target()).collect();
    let last = targets[4999];
    index.store(last, Tier::EXTERNAL, &[1, 2]);
    let mut found = Found::new();
    index.find(&[1, 2, 3], &mut found);
    assert_eq!(found.matches().len(), 1);
    assert_eq!(found.matches()[0].by_tier, [0, 0, 0, 2]);
    index.remove(last, Tier::EXTERNAL, &[1]);
    index.find(&[1, 2, 3], &mut found);
    assert_eq!(found.matches(), []);
    assert_eq!(index.blocks(last, Tier::EXTERNAL), 1);
}

#[test]
fn what_left_takes_no_blocks() {
    let index = Index::new();
    let target = index.add_target();
    index.remove_target(target);
    index.remove_target(target);
    index.store(target, Tier::DEVICE, &[1]);
    assert_eq!(index.blocks(target, Tier::DEVICE), 0);
    assert_eq!(index.add_target(), target);
    assert_ne!(index.add_target(), target, "given once");
    let mut found = Found::new();
    index.find(&[1], &mut found);
    assert_eq!(found.matches(), []);
}

#[test]
fn memory_follows_what_is_held() {
    let index = Index::new();
    let empty = index.memory_bytes();
    let targets: Vec<Target> = (0..8).map(|_| index.add_target()).collect();
    let blocks: Vec<u64> = (0..50_000).map(mix).collect();
    // Eight holders for some, and as many sets as may be.
    for (number, target) in targets.iter().enumerate() {
        let held: Vec<u64> = blocks
            .iter()
            .copied()
            .filter(|hash| number == 0 || (hash >> number).is_multiple_of(4))
            .collect();
        index.store(*target, Tier::DEVICE, &held);
    }
    let full = index.memory_bytes();
    assert!(full > empty + 50_000 * 16, "{full} of {empty}");
    assert!(full < empty + 50_000 * 16 * 2, "{full} of {empty}");
    for target in &targets[1..] {
        index.clear(*target, None);
    }
    index.remove(targets[0], Tier::DEVICE, &blocks[1000..]);
    let sparse = index.memory_bytes();
    assert!(
        sparse < empty + 1000 * 16 * 3 + 64 * 1024,
        "{sparse} of {empty}"
    );
    let mut found = Found::new();
    for hash in &blocks[..1000] {
        index.find(&[*hash], &mut found);
        assert_eq!(found.matches().len(), 1);
    }
    index.remove_target(targets[0]);
    assert!(index.memory_bytes() < empty + 64 * 1024);
}

/// Sets of holders come and go, far more than there ever are at one time.
#[test]
fn memory_of_sets_is_given_back() {
    let index = Index::new();
    let mut naive = Naive::default();
    let targets: Vec<Target> = (0..40).map(|_| index.add_target()).collect();
    let blocks: Vec<u64> = (0..5_000).map(mix).collect();
    for target in &targets {
        naive.0.insert(*target, Default::default());
        let held = blocks.iter().copied();
        let held: Vec<u64> = held
            .filter(|hash| hash >> target.number() & 1 == 0)
            .collect();
        index.store(*target, Tier::DEVICE, &held);
        naive.tier(*target, Tier::DEVICE).extend(&held);
    }
    let full = index.memory_bytes();
    for target in &targets[5..] {
        index.clear(*target, Some(Tier::DEVICE));
        naive.tier(*target, Tier::DEVICE).clear();
    }
    let sparse = index.memory_bytes();
    assert!(sparse < full / 3, "{sparse} of {full}");
    let mut found = Found::new();
    for hash in blocks.into_iter().step_by(20) {
        index.find(&[hash], &mut found);
        assert_eq!(found.matches(), naive.find(&[hash]));
    }
}

//! Readers beside a writer who never rests. A few seconds; what the writer does is the same each time.
#![cfg(not(loom))]
#![allow(
    clippy::cast_possible_truncation,
    reason = "random numbers are cut to what is needed"
)]

mod naive;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use baton_index::{Found, Index, Match, Target, Tier};

use naive::{Naive, TIERS, chains, mix};

/// Targets of one class hold blocks of that class and no others.
const CLASSES: usize = 4;
const TARGETS: usize = 9;
const CHAINS: usize = 12;
const LENGTH: usize = 40;
const STEPS: u64 = 30_000;

struct Class {
    /// Never changes. One whose blocks are whole, and one of which nobody vouches for that.
    rocks: [Target; 2],
    /// Come and go, with their blocks.
    others: Vec<Target>,
    chains: Vec<Vec<u64>>,
}

fn class(index: &Index, number: usize, naive: &mut Naive) -> Class {
    let chains: Vec<Vec<u64>> = chains(CHAINS as u64, LENGTH)
        .iter()
        .map(|chain| {
            let own = |hash: &u64| mix(hash ^ (number as u64) << 56);
            chain.iter().map(own).collect()
        })
        .collect();
    let rocks = [index.add_target(), index.add_target()];
    index.set_whole(rocks[1], false);
    let others = (0..TARGETS).map(|_| index.add_target()).collect();
    for rock in rocks {
        naive.0.insert(rock, Default::default());
        for (chain, tier) in chains
            .iter()
            .zip([Tier::DEVICE, Tier::HOST].into_iter().cycle())
        {
            let tier = if rock == rocks[0] { Tier::DEVICE } else { tier };
            index.store(rock, tier, chain);
            naive.tier(rock, tier).extend(chain);
        }
    }
    let class = Class {
        rocks,
        others,
        chains,
    };
    for target in &class.others {
        naive.0.insert(*target, Default::default());
    }
    class
}

/// One step of churn: mostly prefixes that come and suffixes that go, now and then holes, clears and whole targets.
fn churn(index: &Index, class: &mut Class, naive: &mut Naive, random: u64) {
    let digit = |shift: u32, below: usize| (random >> shift) as usize % below;
    let place = digit(0, TARGETS);
    let target = class.others[place];
    let tier = TIERS[if digit(4, 5) == 0 { digit(8, 4) } else { 0 }];
    let chain = &class.chains[digit(12, CHAINS)];
    let cut = digit(20, LENGTH);
    match digit(32, 100) {
        0 => {
            index.remove_target(target);
            naive.0.remove(&target);
            class.others[place] = index.add_target();
            let new = naive.0.insert(class.others[place], Default::default());
            assert_eq!(new, None);
        }
        1..3 => {
            index.clear(target, None);
            for tier in TIERS {
                naive.tier(target, tier).clear();
            }
        }
        3..10 => {
            let part: Vec<u64> = chain
                .iter()
                .skip(digit(40, 7))
                .step_by(3)
                .copied()
                .collect();
            index.remove(target, tier, &part);
            for hash in &part {
                naive.tier(target, tier).remove(hash);
            }
        }
        10..50 => {
            let part: Vec<u64> = chain[cut..].iter().rev().copied().collect();
            index.remove(target, tier, &part);
            for hash in &part {
                naive.tier(target, tier).remove(hash);
            }
        }
        _ => {
            index.store(target, tier, &chain[..cut]);
            naive.tier(target, tier).extend(&chain[..cut]);
        }
    }
    index.set_whole(
        target,
        naive
            .0
            .get(&target)
            .is_some_and(|_| naive.is_whole(target, &class.chains)),
    );
}

fn check(found: &[Match], class: &Class, length: usize) {
    for rock in class.rocks {
        let found = found.iter().find(|found| found.target == rock);
        assert_eq!(found.map(Match::blocks), Some(length as u32), "{rock:?}");
    }
    assert!(found.iter().all(|found| found.blocks() as usize <= length));
}

/// Numbers of targets that were given to each class, at any time: only those may ever be found for its blocks.
type Given = [AtomicU64; CLASSES];

fn allow(given: &Given, class: usize, targets: &[Target]) {
    for target in targets {
        given[class].fetch_or(1 << target.number(), Ordering::SeqCst);
    }
}

#[test]
fn readers_see_what_was_or_what_is_and_nothing_else() {
    let index = Index::new();
    let mut naive = Naive::default();
    let mut classes: Vec<Class> = (0..CLASSES)
        .map(|number| class(&index, number, &mut naive))
        .collect();
    let sequences: Vec<Class> = classes
        .iter()
        .map(|class| Class {
            rocks: class.rocks,
            others: Vec::new(),
            chains: class.chains.clone(),
        })
        .collect();
    // A number that is released goes to the same class again, for nobody else asks meanwhile.
    let given = Given::default();
    for (number, class) in classes.iter().enumerate() {
        allow(&given, number, &class.rocks);
        allow(&given, number, &class.others);
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (index, sequences, given, done) = (&index, &sequences, &given, &done);
            scope.spawn(move || {
                let mut found = Found::new();
                let mut random = mix(reader);
                while !done.load(Ordering::Relaxed) {
                    random = mix(random);
                    let number = random as usize % CLASSES;
                    let chain = &sequences[number].chains[(random >> 8) as usize % CHAINS];
                    let length = (random >> 16) as usize % LENGTH + 1;
                    index.find(&chain[..length], &mut found);
                    check(found.matches(), &sequences[number], length);
                    let allowed = given[number].load(Ordering::SeqCst);
                    let foreign = found
                        .matches()
                        .iter()
                        .find(|found| allowed >> found.target.number() & 1 == 0);
                    assert_eq!(foreign, None, "class {number} is not theirs");
                }
            });
        }
        let end = End(&done);
        let mut passing = Vec::new();
        for step in 0..STEPS {
            let random = mix(step | 1 << 40);
            churn(
                &index,
                &mut classes[random as usize >> 3 & (CLASSES - 1)],
                &mut naive,
                mix(random),
            );
            // Tables grow and shrink under the readers.
            match step % 3000 {
                0 => {
                    passing = (0..20_000)
                        .map(|block| mix(step << 32 | block | 1 << 63))
                        .collect();
                    index.store(classes[0].rocks[0], Tier::DEVICE, &passing);
                }
                1500 => index.remove(classes[0].rocks[0], Tier::DEVICE, &passing),
                _ => {}
            }
        }
        drop(end);
    });
    let mut found = Found::new();
    for class in &classes {
        for chain in &class.chains {
            index.find(chain, &mut found);
            assert_eq!(found.matches(), naive.find(chain));
        }
    }
}

/// Ends the readers, however the writer ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! The lock-free parts under loom's model checker: all orders in which a writer and a reader can meet, within bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p baton-index --release --test loom`. Tables have one shard here, and begin with one
//! bucket of four slots, so slots and numbers of sets are used again at once.
//!
//! The reader is the thread that is spawned, so that it comes second in the first order that is tried: loom 0.7 sees that a
//! load could have come before a store, but not that a store could have come before the load of another thread if its own
//! thread has loaded the same since. That orders are tried at all is asserted.
#![cfg(loom)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_index::{Found, Index, Target, Tier};
use loom::thread;

const TIER: Tier = Tier::DEVICE;

/// The index, its targets, and what a thread does with them.
type Part = fn(&Index, &[Target]);

/// Tries all orders of what a writer does and what a reader sees, after something was stored.
fn model(targets: usize, before: Part, write: Part, read: Part, after: Part) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let index = Arc::new(Index::new());
        let targets: Vec<Target> = (0..targets).map(|_| index.add_target()).collect();
        before(&index, &targets);
        let reader = thread::spawn({
            let (index, targets) = (index.clone(), targets.clone());
            move || read(&index, &targets)
        });
        write(&index, &targets);
        reader.join().unwrap();
        after(&index, &targets);
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{orders} orders");
    assert!(orders > 20, "{orders} orders are not all");
}

fn holders(index: &Index, sequence: &[u64]) -> Vec<(u32, u32)> {
    let mut found = Found::new();
    index.find(sequence, &mut found);
    let matches = found.matches().iter();
    matches
        .map(|found| (found.target.number(), found.blocks()))
        .collect()
}

#[test]
fn a_slot_that_changes_hands_is_not_misread() {
    model(
        2,
        |index, targets| index.store(targets[0], TIER, &[1]),
        |index, targets| {
            index.remove(targets[0], TIER, &[1]);
            index.store(targets[1], TIER, &[2]);
        },
        |index, _| {
            let one = holders(index, &[1]);
            assert!(one == [] || one == [(0, 1)], "{one:?}");
            let two = holders(index, &[2]);
            assert!(two == [] || two == [(1, 1)], "{two:?}");
        },
        |index, _| {
            assert_eq!(holders(index, &[1]), []);
            assert_eq!(holders(index, &[2]), [(1, 1)]);
        },
    );
}

#[test]
fn a_slot_that_comes_back_is_not_misread() {
    model(
        2,
        |index, targets| index.store(targets[0], TIER, &[1]),
        |index, targets| {
            index.remove(targets[0], TIER, &[1]);
            index.store(targets[1], TIER, &[2]);
            index.remove(targets[1], TIER, &[2]);
            index.store(targets[0], TIER, &[1]);
        },
        |index, _| {
            let one = holders(index, &[1]);
            assert!(one == [] || one == [(0, 1)], "{one:?}");
        },
        |index, _| assert_eq!(holders(index, &[1]), [(0, 1)]),
    );
}

#[test]
fn a_set_whose_number_is_used_again_is_not_misread() {
    model(
        8,
        |index, targets| {
            for (place, target) in targets[..7].iter().enumerate() {
                index.store(*target, TIER, &[if place < 4 { 1 } else { 2 }]);
            }
        },
        |index, targets| {
            index.remove(targets[0], TIER, &[1]);
            index.store(targets[7], TIER, &[2]);
        },
        |index, _| {
            let one = holders(index, &[1]);
            let (all, rest) = ([(0, 1), (1, 1), (2, 1), (3, 1)], [(1, 1), (2, 1), (3, 1)]);
            assert!(one == all || one == rest, "{one:?}");
        },
        |index, _| {
            assert_eq!(holders(index, &[1]), [(1, 1), (2, 1), (3, 1)]);
            assert_eq!(holders(index, &[2]).len(), 4);
        },
    );
}

#[test]
fn a_table_that_grows_loses_nothing() {
    model(
        2,
        |index, targets| index.store(targets[0], TIER, &[1, 2, 3]),
        |index, targets| {
            index.store(targets[1], TIER, &[4, 1]);
            index.remove(targets[1], TIER, &[4]);
        },
        |index, _| {
            let found = holders(index, &[1, 2]);
            assert!(found == [(0, 2)] || found == [(0, 2), (1, 1)], "{found:?}");
        },
        |index, _| assert_eq!(holders(index, &[1, 2]), [(0, 2), (1, 1)]),
    );
}

#[test]
fn a_number_that_is_given_again_inherits_nothing() {
    model(
        1,
        |index, targets| index.store(targets[0], TIER, &[1, 2]),
        |index, targets| {
            index.remove_target(targets[0]);
            assert_eq!(index.add_target(), targets[0]);
            index.store(targets[0], TIER, &[3]);
        },
        |index, _| {
            let found = holders(index, &[1, 2]);
            assert!(
                found == [] || found == [(0, 1)] || found == [(0, 2)],
                "{found:?}"
            );
        },
        |index, _| {
            assert_eq!(holders(index, &[1, 2]), []);
            assert_eq!(holders(index, &[3]), [(0, 1)]);
        },
    );
}

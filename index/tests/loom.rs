//! The lock-free parts under loom's model checker: all orders in which a writer and a reader can meet, within bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p baton-index --release --test loom`. Tables have one shard here, and begin with one
//! bucket of four slots, so slots and numbers of sets are used again at once.
#![cfg(loom)]

use std::sync::Arc;

use baton_index::{Found, Index, Target, Tier};
use loom::thread;

const TIER: Tier = Tier::DEVICE;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(run);
}

fn fleet(size: usize) -> (Arc<Index>, Vec<Target>) {
    let index = Arc::new(Index::new());
    let targets = (0..size).map(|_| index.add_target()).collect();
    (index, targets)
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
    model(|| {
        let (index, targets) = fleet(2);
        index.store(targets[0], TIER, &[1]);
        let writer = thread::spawn({
            let (index, targets) = (index.clone(), targets.clone());
            move || {
                index.remove(targets[0], TIER, &[1]);
                index.store(targets[1], TIER, &[2]);
            }
        });
        let one = holders(&index, &[1]);
        assert!(one == [] || one == [(0, 1)], "{one:?}");
        let two = holders(&index, &[2]);
        assert!(two == [] || two == [(1, 1)], "{two:?}");
        writer.join().unwrap();
        assert_eq!(holders(&index, &[1]), []);
        assert_eq!(holders(&index, &[2]), [(1, 1)]);
    });
}

#[test]
fn a_slot_that_comes_back_is_not_misread() {
    model(|| {
        let (index, targets) = fleet(2);
        index.store(targets[0], TIER, &[1]);
        let writer = thread::spawn({
            let (index, targets) = (index.clone(), targets.clone());
            move || {
                index.remove(targets[0], TIER, &[1]);
                index.store(targets[1], TIER, &[2]);
                index.remove(targets[1], TIER, &[2]);
                index.store(targets[0], TIER, &[1]);
            }
        });
        let one = holders(&index, &[1]);
        assert!(one == [] || one == [(0, 1)], "{one:?}");
        writer.join().unwrap();
        assert_eq!(holders(&index, &[1]), [(0, 1)]);
    });
}

#[test]
fn a_set_whose_number_is_used_again_is_not_misread() {
    model(|| {
        let (index, targets) = fleet(8);
        for target in &targets[..4] {
            index.store(*target, TIER, &[1]);
        }
        for target in &targets[4..7] {
            index.store(*target, TIER, &[2]);
        }
        let writer = thread::spawn({
            let (index, targets) = (index.clone(), targets.clone());
            move || {
                index.remove(targets[0], TIER, &[1]);
                index.store(targets[7], TIER, &[2]);
            }
        });
        let one = holders(&index, &[1]);
        let rest = [(1, 1), (2, 1), (3, 1)];
        assert!(
            one[one.len() - 3..] == rest && one.len() <= 4 && one[0].0 < 2,
            "{one:?}"
        );
        writer.join().unwrap();
        assert_eq!(holders(&index, &[1]), rest);
        assert_eq!(holders(&index, &[2]).len(), 4);
    });
}

#[test]
fn a_table_that_grows_loses_nothing() {
    model(|| {
        let (index, targets) = fleet(2);
        index.store(targets[0], TIER, &[1, 2, 3]);
        let writer = thread::spawn({
            let (index, targets) = (index.clone(), targets.clone());
            move || {
                index.store(targets[1], TIER, &[4, 1]);
                index.remove(targets[1], TIER, &[4]);
            }
        });
        let found = holders(&index, &[1, 2]);
        assert!(found == [(0, 2)] || found == [(0, 2), (1, 1)], "{found:?}");
        writer.join().unwrap();
        assert_eq!(holders(&index, &[1, 2]), [(0, 2), (1, 1)]);
    });
}

#[test]
fn a_number_that_is_given_again_inherits_nothing() {
    model(|| {
        let (index, targets) = fleet(1);
        index.store(targets[0], TIER, &[1, 2]);
        let writer = thread::spawn({
            let (index, target) = (index.clone(), targets[0]);
            move || {
                index.remove_target(target);
                assert_eq!(index.add_target(), target);
                index.store(target, TIER, &[3]);
            }
        });
        let found = holders(&index, &[1, 2]);
        assert!(
            found == [] || found == [(0, 1)] || found == [(0, 2)],
            "{found:?}"
        );
        writer.join().unwrap();
        assert_eq!(holders(&index, &[1, 2]), []);
        assert_eq!(holders(&index, &[3]), [(0, 1)]);
    });
}

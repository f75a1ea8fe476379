//! Whole runs: every request ends once, nothing is left behind, and equal seeds give equal outcomes.

use super::outcome::Outcome;
use super::policies::RoundRobin;
use super::setting::{Delays, Flaw, FleetKind};
use super::simulation;
use super::trace::Trace;

fn run(split: bool, seed: u64, requests: usize) -> Outcome {
    let trace = Trace::load("conversation", None).unwrap().cut(requests);
    let fleet = FleetKind {
        workers: 8,
        split,
        flaw: Flaw::None,
    };
    let workers = fleet.workers(seed);
    let mut policy = RoundRobin::default();
    simulation::run(&trace, 1.0, &workers, Delays::default(), &mut policy).unwrap()
}

#[test]
fn equal_seeds_give_equal_outcomes() {
    for split in [true, false] {
        let outcome = run(split, 1, 150);
        assert_eq!(outcome, run(split, 1, 150));
        assert_ne!(outcome, run(split, 2, 150));
        assert_eq!(outcome.ttft.len(), 150);
    }
}

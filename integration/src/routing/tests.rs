//! Whole runs: every request ends once, nothing is left behind, and equal seeds give equal outcomes.

use super::matrix::{CONTENDERS, Extent};
use super::outcome::Outcome;
use super::policies::RoundRobin;
use super::policy::{Arrival, Choice, News, Policy, Seen};
use super::setting::{Delays, Flaw, FleetKind};
use super::summary::figures;
use super::trace::Trace;
use super::{matrix, simulation};

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
    }
}

/// That every request ended and no block is left in use is checked at the end of each run; here, that it is counted once.
#[test]
fn every_policy_serves_every_request_once() {
    let trace = Trace::load("synthetic", None).unwrap().cut(80);
    for contender in CONTENDERS {
        for (split, flaw) in [
            (true, Flaw::None),
            (false, Flaw::None),
            (true, Flaw::SlowWorker),
            (true, Flaw::SlowLink),
            (true, Flaw::SilentWorker),
        ] {
            let fleet = FleetKind {
                workers: 8,
                split,
                flaw,
            };
            let mut policy = (contender.make)(1);
            let workers = fleet.workers(1);
            let delays = Delays::default();
            let outcome = simulation::run(&trace, 2.0, &workers, delays, policy.as_mut()).unwrap();
            let tokens: usize = trace.requests.iter().map(|of| of.answer as usize).sum();
            assert_eq!(outcome.split + outcome.local + outcome.refused, 80);
            assert_eq!(outcome.ttft.len() + outcome.refused, 80);
            assert!(outcome.refused > 0 || outcome.gaps.len() + 80 == tokens);
            assert!(split || outcome.split == 0 || contender.name == "baton");
        }
    }
}

/// Takes turns, and notes whose caches it got to know.
#[derive(Default)]
struct Watch {
    turns: RoundRobin,
    seen: [u32; 8],
    told: [usize; 8],
}

impl Policy for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn choose(&mut self, now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice {
        for (seen, cached) in self.seen.iter_mut().zip(fleet.cached) {
            assert!(cached.known || cached.blocks == 0);
            *seen += cached.blocks;
        }
        self.turns.choose(now, request, fleet)
    }

    fn told(&mut self, _now: f64, news: &News<'_>) {
        if let News::Kv { worker, changes } = news {
            self.told[*worker] += changes.len();
        }
    }
}

#[test]
fn what_a_worker_does_not_tell_nobody_knows() {
    let trace = Trace::load("synthetic", None).unwrap().cut(200);
    let knows = |flaw| {
        let fleet = FleetKind {
            workers: 8,
            split: true,
            flaw,
        };
        let mut watch = Watch::default();
        simulation::run(
            &trace,
            1.0,
            &fleet.workers(1),
            Delays::default(),
            &mut watch,
        )
        .unwrap();
        (
            watch.seen[0] > 0,
            watch.told[0] > 0,
            watch.seen[1] > 0,
            watch.told[1] > 0,
        )
    };
    assert_eq!(knows(Flaw::None), (true, true, true, true));
    assert_eq!(knows(Flaw::SilentWorker), (false, false, true, true));
}

#[test]
fn figures_are_named_and_compared() {
    let extent = Extent {
        smoke: true,
        fleet: Some("split8".to_owned()),
        policies: vec!["round_robin".to_owned(), "dynamo_conditional".to_owned()],
        ..Extent::default()
    };
    let mut done = Vec::new();
    let compared = matrix::run(&extent, |at, of, _| done.push((at, of))).unwrap();
    assert_eq!(done, [(1, 2), (2, 2)]);
    let figures = figures(&compared);
    let mean = &figures[0];
    assert_eq!(mean.name, "routing.ttft_mean_ms.conversation.split8.x1");
    assert_eq!(mean.subject, "dynamo_conditional");
    assert_eq!(mean.reference, mean.peers.get("round_robin").copied());
    assert!(mean.spread[0] <= mean.value && mean.value <= mean.spread[1]);
    let none = Extent {
        fleet: Some("nothing".to_owned()),
        ..extent
    };
    assert!(matrix::run(&none, |_, _, _| ()).is_err());
}

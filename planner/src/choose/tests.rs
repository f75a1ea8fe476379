use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::StdRng;

use std::sync::Arc;

use super::*;
use crate::best::EQUAL;
use crate::{Cached, Level, Limits};

const ANY: Duty = Duty {
    prefill: true,
    decode: true,
    local: true,
};

struct Fleet {
    workers: Vec<Arc<Worker>>,
    place: Place,
}

impl Fleet {
    fn new(size: usize) -> Self {
        Self {
            workers: (0..size).map(|_| Worker::new()).collect(),
            place: Topology::default().place(&BTreeMap::new()),
        }
    }

    fn standing(&self, duty: impl Fn(usize) -> Duty, cached: &[u64]) -> Vec<Standing<'_>> {
        let workers = self.workers.iter().enumerate();
        let standing = workers.map(|(at, worker)| Standing {
            worker,
            duty: duty(at),
            limits: Limits::default(),
            cached: Cached {
                known: cached.get(at).copied().unwrap_or(0),
                ..Cached::default()
            },
            place: &self.place,
            ahead: 0,
            guarded: false,
            penalty: 0.0,
        });
        standing.collect()
    }
}

/// The first half computes prompts, the other decodes.
fn halves(size: usize) -> impl Fn(usize) -> Duty {
    move |at| Duty {
        prefill: at < size / 2,
        decode: at >= size / 2,
        local: false,
    }
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

const ASK: Ask = of(8000);

/// One prompt.
const fn of(tokens: u64) -> Ask {
    Ask {
        tokens,
        longest: tokens,
    }
}

const fn uncached(tokens: u64) -> Work {
    Work { tokens, cached: 0 }
}

#[test]
fn the_cheapest_is_the_first_of_all_plans() {
    let fleet = Fleet::new(8);
    let (mut bookings, mut promises) = (Vec::new(), Vec::new());
    for (at, worker) in fleet.workers.iter().enumerate() {
        for turn in 0..(at * 5) % 7 {
            let tokens = 1000 * turn as u64;
            bookings.push(worker.book(uncached(tokens), tokens, 0.0));
            promises.push(worker.promise(tokens, to_f64(tokens) * 1e-4));
        }
    }
    let planner = Planner::default();
    for cached in [[0, 7000, 0, 500, 0, 0, 4000, 1], [8000; 8], [0; 8]] {
        let workers = fleet.standing(|_| ANY, &cached);
        let pairing = |prefill: usize, decode: usize| !(prefill + decode).is_multiple_of(3);
        let all = planner.plans(ASK, &workers, &pairing, 0.0);
        let best = planner
            .cheapest(ASK, &workers, &pairing, 0.0, &mut rng())
            .unwrap()
            .candidate;
        assert!(best.cost.total() <= all[0].cost.total() * (1.0 + EQUAL));
        assert!(all.contains(&best));
        assert_eq!(
            all.len(),
            8 + (0..64_usize)
                .filter(|at| at / 8 != at % 8 && !(at / 8 + at % 8).is_multiple_of(3))
                .count()
        );
    }
}

#[test]
fn a_short_idle_prompt_stays_local_and_a_long_one_leaves_a_busy_decoder() {
    let fleet = Fleet::new(2);
    let decoder = |at: usize| Duty {
        prefill: at == 0,
        decode: at == 1,
        local: at == 1,
    };
    let planner = Planner::default();
    let choose = |tokens| {
        let workers = fleet.standing(decoder, &[]);

        let chosen = planner.cheapest(of(tokens), &workers, &|_, _| true, 0.0, &mut rng());
        chosen.unwrap().candidate.plan
    };
    assert_eq!(choose(20), Plan::Local { worker: 1 });
    let decoding: Vec<_> = (0..64_usize)
        .map(|_| fleet.workers[1].book(Work::default(), 1000, 0.0))
        .collect();
    assert_eq!(
        choose(8000),
        Plan::Split {
            prefill: 0,
            decode: 1
        }
    );
    drop(decoding);
}

#[test]
fn a_busy_holder_of_the_prompt_is_left_when_waiting_costs_more() {
    let fleet = Fleet::new(2);
    let planner = Planner::default();
    let choose = || {
        let workers = fleet.standing(
            |_| Duty {
                local: true,
                ..Duty::default()
            },
            &[7900, 0],
        );
        let chosen = planner.cheapest(ASK, &workers, &|_, _| false, 0.0, &mut rng());
        chosen.unwrap().candidate.plan
    };
    assert_eq!(choose(), Plan::Local { worker: 0 });
    let work = Work {
        tokens: 4000,
        cached: 0,
    };
    let _short = fleet.workers[0].book(work, 0, 0.0);
    assert_eq!(choose(), Plan::Local { worker: 0 });
    let _more = [0; 5].map(|_| fleet.workers[0].book(work, 0, 0.0));
    assert_eq!(choose(), Plan::Local { worker: 1 });
}

/// One computes prompts, two decode; the first of those has much to compute as well.
#[test]
fn decode_begins_behind_the_prompts_that_are_computed_there() {
    let fleet = Fleet::new(3);
    let planner = Planner::default();
    let workers = fleet.standing(
        |at| Duty {
            prefill: at == 0,
            decode: at > 0,
            local: false,
        },
        &[],
    );
    let _busy = fleet.workers[1].book(uncached(30_000), 30_000, 0.0);
    let decode = |tokens, decode| {
        let plans = planner.plans(of(tokens), &workers, &|_, _| true, 0.0);
        let plan = Plan::Split { prefill: 0, decode };
        let of = plans.iter().find(|candidate| candidate.plan == plan);
        of.unwrap().cost.decode
    };
    let busy = fleet.workers[1].figures(0.0).waiting;
    let ready = fleet.workers[0].figures(0.0).prefill(uncached(8000));
    let late = decode(8000, 1) - decode(8000, 2);
    assert!((late - (busy - ready)).abs() < 0.01, "{late}");
    let late = decode(60_000, 1) - decode(60_000, 2);
    assert!(late < 0.01, "they are done by then: {late}");
}

/// Of two decode workers that are equal but for that, a long prompt is computed where nobody is about to come.
#[test]
fn a_prompt_is_not_computed_in_the_way_of_a_sequence_that_is_coming() {
    let fleet = Fleet::new(2);
    let planner = Planner::default();
    let local = |_| Duty {
        local: true,
        ..Duty::default()
    };
    let others = |tokens| {
        let workers = fleet.standing(local, &[]);
        let plans = planner.plans(of(tokens), &workers, &|_, _| false, 0.0);
        let cost = |worker| {
            let plan = Plan::Local { worker };
            let of = plans.iter().find(|candidate| candidate.plan == plan);
            of.unwrap().cost.others
        };
        cost(0) - cost(1)
    };
    let takes = fleet.workers[0].figures(0.0).prefill(uncached(8000));
    let promise = fleet.workers[0].promise(100, 0.1);
    assert!((others(8000) - (takes - 0.1)).abs() < 1e-9);
    let _late = fleet.workers[0].promise(100, 0.1 + takes);
    assert!((others(8000) - (takes - 0.1)).abs() < 1e-9);
    drop(promise);
    assert!(others(8000).abs() < 1e-9);
}

/// A near pair under load against a far and idle one: seconds decide.
#[test]
fn nearness_is_weighed_against_load() {
    let fleet = Fleet::new(3);
    let topology = Topology::new(vec![
        Level::new("rack", 25e9, 0.001),
        Level::new("zone", 1e9, 0.01),
    ]);
    let place = |rack: &str| {
        let labels = [("rack", rack), ("zone", "z")];
        topology.place(
            &labels
                .iter()
                .map(|(name, label)| ((*name).to_owned(), (*label).to_owned()))
                .collect(),
        )
    };
    let places = [place("1"), place("2"), place("1")];
    let planner = Planner {
        topology: topology.clone(),
        ..Planner::default()
    };
    let choose = || {
        let mut workers = fleet.standing(halves(4), &[]);
        for (standing, place) in workers.iter_mut().zip(&places) {
            standing.place = place;
        }
        let chosen = planner.cheapest(ASK, &workers, &|_, _| true, 0.0, &mut rng());
        chosen.unwrap().candidate.plan
    };
    // Workers 0 and 1 compute, 2 decodes in the rack of 0.
    assert_eq!(
        choose(),
        Plan::Split {
            prefill: 0,
            decode: 2
        }
    );
    let little = fleet.workers[0].book(
        Work {
            tokens: 5000,
            cached: 0,
        },
        0,
        0.0,
    );
    assert_eq!(
        choose(),
        Plan::Split {
            prefill: 0,
            decode: 2
        },
        "0.8 s of transfer cost more than 0.3 s of waiting"
    );
    let _much = fleet.workers[0].book(
        Work {
            tokens: 20_000,
            cached: 0,
        },
        0,
        0.0,
    );
    assert_eq!(
        choose(),
        Plan::Split {
            prefill: 1,
            decode: 2
        }
    );
    drop(little);
}

#[test]
fn rules_are_kept_though_it_costs_everything() {
    let fleet = Fleet::new(2);
    let planner = Planner {
        topology: Topology::default().require("zone"),
        ..Planner::default()
    };
    let workers = fleet.standing(halves(2), &[]);
    let refused = planner.cheapest(ASK, &workers, &|_, _| true, 0.0, &mut rng());
    assert_eq!(refused, Err(Refusal::Nobody));
    assert_eq!(planner.plans(ASK, &workers, &|_, _| true, 0.0), []);
}

#[test]
fn who_cannot_hold_a_prompt_is_not_asked() {
    let fleet = Fleet::new(2);
    let planner = Planner::default();
    let mut workers = fleet.standing(|_| ANY, &[]);
    workers[0].limits.kv_tokens = Some(7999);
    let chosen = planner
        .cheapest(ASK, &workers, &|_, _| true, 0.0, &mut rng())
        .unwrap();
    assert_eq!(chosen.candidate.plan, Plan::Local { worker: 1 });
    workers[1].limits.context = Some(4096);
    let refused = planner.cheapest(ASK, &workers, &|_, _| true, 0.0, &mut rng());
    assert_eq!(refused, Err(Refusal::TooLong));
}

#[test]
fn a_full_decoder_is_waited_for() {
    let fleet = Fleet::new(2);
    let planner = Planner::default();
    let mut workers = fleet.standing(
        |_| Duty {
            local: true,
            ..Duty::default()
        },
        &[],
    );
    for standing in &mut workers {
        standing.limits.sequences = Some(2);
        standing.limits.kv_tokens = Some(20_000);
    }
    let waiting = |workers: &[Standing<'_>], at| {
        let plans = planner.plans(ASK, workers, &|_, _| false, 0.0);
        let of = plans
            .iter()
            .find(|candidate| candidate.plan == Plan::Local { worker: at });
        of.unwrap().cost.waiting
    };
    let _one = fleet.workers[0].book(Work::default(), 10_000, 0.0);
    assert!(
        waiting(&workers, 0).abs() < 1e-9,
        "there is room for one more"
    );
    let _two = fleet.workers[0].book(Work::default(), 1000, 0.0);
    assert!(waiting(&workers, 0) > 0.5, "an answer must end first");
    let _long = fleet.workers[1].book(Work::default(), 19_000, 0.0);
    assert!(waiting(&workers, 1) > 0.5, "KV must be freed first");
}

#[test]
fn a_session_stays_where_it_is_for_its_price() {
    let fleet = Fleet::new(2);
    let planner = Planner::default();
    let local = |_| Duty {
        local: true,
        ..Duty::default()
    };
    let choose = || {
        let mut workers = fleet.standing(local, &[]);
        workers[1].penalty = 0.5;
        let chosen = planner.cheapest(ASK, &workers, &|_, _| false, 0.0, &mut rng());
        chosen.unwrap().candidate.plan
    };
    assert_eq!(choose(), Plan::Local { worker: 0 });
    let little = Work {
        tokens: 4000,
        cached: 0,
    };
    let _little = fleet.workers[0].book(little, 0, 0.0);
    assert_eq!(choose(), Plan::Local { worker: 0 }, "0.3 s are not 0.5");
    let _more = [0; 2].map(|_| fleet.workers[0].book(little, 0, 0.0));
    assert_eq!(choose(), Plan::Local { worker: 1 });
}

#[test]
fn with_temperature_the_cheapest_is_the_most_frequent() {
    let fleet = Fleet::new(3);
    let planner = Planner::default();
    let local = |_| Duty {
        local: true,
        ..Duty::default()
    };
    let workers = fleet.standing(local, &[4000, 2000, 0]);
    let mut rng = rng();
    let mut counts = [0; 3];
    for _ in 0..3000 {
        let chosen = planner.sampled(ASK, &workers, &|_, _| false, 0.0, 0.5, &mut rng);
        let Plan::Local { worker } = chosen.unwrap().candidate.plan else {
            panic!("nobody can hand over");
        };
        counts[worker] += 1;
    }
    assert!(counts[0] > counts[1] && counts[1] > counts[2], "{counts:?}");
    assert!(counts[2] > 50, "{counts:?}");
}

proptest::proptest! {
    /// What is not looked at could not have won.
    #[test]
    fn no_cheaper_plan_is_missed(
        loads in proptest::collection::vec((0..20_000_u64, 0..8000_u64, 0..3_u8), 2..14),
        tokens in 1..30_000_u64,
        crossed in 1..5_usize,
    ) {
        let fleet = Fleet::new(loads.len());
        let workers = fleet.workers.iter().zip(&loads);
        let booked = workers.map(|(worker, (tokens, ..))| {
            worker.book(Work { tokens: *tokens, cached: 0 }, *tokens, 0.0)
        });
        let _booked: Vec<_> = booked.collect();
        let duty = |at: usize| Duty {
            prefill: loads[at].2 != 1,
            decode: loads[at].2 != 0,
            local: loads[at].2 == 2,
        };
        let cached: Vec<u64> = loads.iter().map(|(_, cached, _)| *cached).collect();
        let workers = fleet.standing(duty, &cached);
        let pairing = |prefill: usize, decode: usize| !(prefill + decode).is_multiple_of(crossed + 1);
        let planner = Planner::default();
        let ask = of(tokens);
        let all = planner.plans(ask, &workers, &pairing, 0.0);
        let chosen = planner.cheapest(ask, &workers, &pairing, 0.0, &mut rng());
        match (all.first(), chosen) {
            (Some(least), Ok(chosen)) => proptest::prop_assert!(
                chosen.candidate.cost.total() <= least.cost.total() * (1.0 + 3.0 * EQUAL)
            ),
            (None, Err(_)) => {}
            (least, chosen) => proptest::prop_assert!(false, "{least:?} {chosen:?}"),
        }
    }
}

#[test]
fn those_who_wait_for_room_elsewhere_count_as_waiting() {
    let (planner, fleet) = (Planner::default(), Fleet::new(2));
    let mut workers = fleet.standing(|_| ANY, &[7000]);
    for worker in &mut workers {
        worker.duty.prefill = false;
    }
    let cheapest = |workers: &[Standing<'_>]| {
        let chosen = planner.cheapest(ASK, workers, &|_, _| true, 0.0, &mut rng());
        chosen.unwrap().candidate
    };
    let warm = cheapest(&workers);
    assert_eq!(warm.plan, Plan::Local { worker: 0 });
    assert!(warm.cost.waiting.abs() < 1e-9);
    workers[0].ahead = 100;
    assert_eq!(cheapest(&workers).plan, Plan::Local { worker: 1 });
    workers[1].ahead = 200;
    let waited = cheapest(&workers);
    assert_eq!(waited.plan, Plan::Local { worker: 0 });
    // An answer of 256 tokens each, before any was seen.
    assert!(
        waited.cost.waiting > 100.0 * 256.0 * 0.005,
        "{:?}",
        waited.cost
    );
}

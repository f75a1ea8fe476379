//! How long one choice takes: hashing a prompt, finding who holds how much of it, and the cheapest of all plans.
//!
//! The only part of this benchmark that is about time that passes.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use baton_index::{Found, Index, Tier};
use baton_planner::{
    Ask, Booked, Cached, Duty, Limits, Place, Planner, Promise, Standing, Topology, Work, Worker,
};
use baton_proto::hash::{Namespace, SequenceHash, sequence_hashes};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::summary::Figure;

/// Workers of each of the two roles.
const WORKERS: usize = 64;

/// Blocks of the prompt, and tokens of a block.
const BLOCKS: usize = 512;
const BLOCK: usize = 16;

/// Choices that are timed.
const CHOICES: usize = 2000;

/// Microseconds of a choice.
#[derive(Debug, Clone, Copy)]
pub struct ChoiceTime {
    /// Median.
    pub p50_us: f64,
    /// Of a hundred one takes longer.
    pub p99_us: f64,
}

struct Scene {
    index: Index,
    tokens: Vec<u32>,
    root: SequenceHash,
    workers: Vec<Arc<Worker>>,
    places: Vec<Place>,
    planner: Planner,
    _booked: Vec<Booked>,
    _promised: Vec<Promise>,
}

impl Scene {
    /// 64 prefill and 64 decode workers in eight racks, all of them busy and about to get more, each with another part of the prompt.
    fn new(random: &mut StdRng) -> Self {
        let index = Index::new();
        let tokens: Vec<u32> = (0..BLOCKS * BLOCK + 7)
            .map(|_| random.random_range(0..100_000))
            .collect();
        let namespace = Namespace {
            model: "m",
            lora: "",
            salt: "",
        };
        let root = namespace.root().expect("a plain name");
        let blocks: Vec<u64> = hashes(root, &tokens);
        let workers: Vec<Arc<Worker>> = (0..2 * WORKERS).map(|_| Worker::new()).collect();
        let topology = Topology::default();
        let places = (0..2 * WORKERS).map(|at| {
            let rack = BTreeMap::from([("rack".to_owned(), (at % 8).to_string())]);
            topology.place(&rack)
        });
        let (mut booked, mut promised) = (Vec::new(), Vec::new());
        for worker in &workers {
            let target = index.add_target();
            index.store(
                target,
                Tier::DEVICE,
                &blocks[..random.random_range(0..BLOCKS)],
            );
            for _ in 0..random.random_range(0..6) {
                let tokens = random.random_range(0..8000);
                booked.push(worker.book(Work { tokens, cached: 0 }, tokens, 0.0));
                promised.push(worker.promise(tokens, 0.1));
            }
        }
        Self {
            index,
            tokens,
            root,
            workers,
            places: places.collect(),
            planner: Planner {
                topology: topology.clone(),
                ..Planner::default()
            },
            _booked: booked,
            _promised: promised,
        }
    }

    fn choose(&self, found: &mut Found, random: &mut StdRng) {
        let blocks = hashes(self.root, &self.tokens);
        self.index.find(&blocks, found);
        let mut held = vec![0_u64; self.workers.len()];
        for held_by in found.matches() {
            held[held_by.target.number() as usize] = u64::from(held_by.blocks()) * BLOCK as u64;
        }
        let standing = |(at, worker)| Standing {
            worker,
            duty: Duty {
                prefill: at < WORKERS,
                decode: at >= WORKERS,
                local: at >= WORKERS,
            },
            limits: Limits::default(),
            cached: Cached {
                known: held[at],
                ..Cached::default()
            },
            place: &self.places[at],
            ahead: 0,
            guarded: at >= WORKERS,
            penalty: 0.0,
        };
        let standings: Vec<Standing<'_>> = self.workers.iter().enumerate().map(standing).collect();
        let ask = Ask {
            tokens: self.tokens.len() as u64,
            longest: self.tokens.len() as u64,
        };
        let choice = self
            .planner
            .cheapest(ask, &standings, &|_, _| true, 1.0, random);
        black_box(choice.expect("everybody may serve"));
    }
}

fn hashes(root: SequenceHash, tokens: &[u32]) -> Vec<u64> {
    let hashes = sequence_hashes(root, tokens, BLOCK).into_iter();
    hashes.map(|hash| hash.0).collect()
}

impl ChoiceTime {
    /// As figures.
    pub fn figures(self) -> [Figure; 2] {
        [("p50", self.p50_us), ("p99", self.p99_us)].map(|(name, value)| Figure {
            name: format!("routing.choice_{name}_us.64x64"),
            value,
            unit: "us",
            spread: [value, value],
            reference: None,
            subject: "baton",
            peers: BTreeMap::new(),
        })
    }
}

/// Times choices for a prompt of 512 blocks among 64 prefill and 64 decode workers.
pub fn measure() -> ChoiceTime {
    let random = &mut StdRng::seed_from_u64(1);
    let scene = Scene::new(random);
    let mut found = Found::new();
    let mut times: Vec<f64> = (0..CHOICES)
        .map(|_| {
            let begun = Instant::now();
            scene.choose(&mut found, random);
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    ChoiceTime {
        p50_us: times[CHOICES / 2],
        p99_us: times[CHOICES * 99 / 100],
    }
}

//! What goes wrong, when and for how long: a pure function of the seed.
//!
//! A run is a row of phases. In each, four lanes run beside each other: one fault at a time befalls a prefill worker, one
//! a decode worker and one a router, so that the others can serve; and KV events of any worker are lost. A fault begins when so many requests of its phase have
//! begun, and no more begin before it has; it lasts for a time. Each lane draws its faults from a shuffled deck: in a
//! phase that is long enough every kind comes.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::subject::{self, Engines};

/// Routers.
pub const ROUTERS: usize = 2;

/// Before the last tenth of a phase workers lose KV events, so that what comes of it is there when the phase is looked at.
const LAST_LOSS: usize = 10;

/// Requests between two faults of a lane.
const SPACING: std::ops::Range<usize> = 20..80;

/// Whom a lane's faults befall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Prefill workers.
    Prefill,
    /// Decode workers.
    Decode,
    /// Routers.
    Router,
    /// KV events of all workers, the prefill workers' first.
    Events,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The engine is killed, and comes back under its old `engine_id` or a new one.
    KillEngine {
        /// Under the old one.
        same_id: bool,
    },
    /// The engine stands still, as after SIGSTOP, and goes on.
    PauseEngine,
    /// The engine stands still most of the time.
    SlowEngine,
    /// The engine's network carries no KV to other engines.
    StallLink,
    /// Nothing passes between the routers and the sidecar.
    MuteSidecar,
    /// All connections between the routers and the sidecar are reset.
    CutSidecar,
    /// Nothing passes between the sidecar and the engine.
    MuteEngine,
    /// All connections between the sidecar and the engine are reset.
    CutEngine,
    /// The sidecar is killed and started again.
    KillSidecar,
    /// The worker is drained by SIGTERM and started again.
    DrainWorker,
    /// KV events are lost on their way.
    LoseEvents,
    /// The engine is started anew, so that all that it holds is told.
    RenewEngine,
    /// A decode engine is new and stands still, with handoffs on their way to it, while the prefill engine that holds most
    /// of them restarts under its old `engine_id`.
    Swap,
    /// Somebody has the engine drop all that it works on, again and again.
    AbortAll,
    /// The router is killed and started again.
    KillRouter,
    /// The router is stopped by SIGTERM and started again.
    StopRouter,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// It begins when so many requests of its phase have begun.
    pub after: usize,
    /// Which worker of the lane's role, or which router.
    pub target: usize,
    /// What it is.
    pub kind: Kind,
    /// How long it lasts.
    pub lasts: Duration,
}

/// One phase's faults by lane.
pub type Phase = [(Lane, Vec<Fault>); 4];

impl Lane {
    const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Router, Self::Events];

    /// All that may befall it.
    fn deck(self) -> Vec<Kind> {
        let workers = [
            Kind::KillEngine { same_id: true },
            Kind::KillEngine { same_id: false },
            Kind::PauseEngine,
            Kind::SlowEngine,
            Kind::MuteSidecar,
            Kind::CutSidecar,
            Kind::MuteEngine,
            Kind::CutEngine,
            Kind::KillSidecar,
            Kind::DrainWorker,
        ];
        match self {
            Self::Prefill => [&workers[..], &[Kind::StallLink]].concat(),
            Self::Decode => workers.to_vec(),
            Self::Router => vec![Kind::KillRouter, Kind::StopRouter],
            Self::Events => vec![Kind::LoseEvents],
        }
    }

    fn targets(self, engines: Engines) -> usize {
        let workers = engines.cast().len();
        match self {
            Self::Prefill | Self::Decode => workers,
            Self::Router => ROUTERS,
            Self::Events => 2 * workers,
        }
    }
}

/// The faults of a phase of so many requests to these engines.
pub fn phase(engines: Engines, seed: u64, number: usize, requests: usize) -> Phase {
    Lane::ALL.map(|lane| {
        let mixed = seed.wrapping_mul(1_000_003) ^ ((number * 8 + lane as usize) as u64);
        let mut random = StdRng::seed_from_u64(mixed);
        (lane, faults(engines, lane, requests, &mut random))
    })
}

fn faults(engines: Engines, lane: Lane, requests: usize, random: &mut StdRng) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut deck = Vec::new();
    let rarer = match lane {
        Lane::Prefill | Lane::Decode => 1,
        Lane::Router | Lane::Events => 5,
    };
    let mut after = random.random_range(SPACING);
    let loss = requests - requests / LAST_LOSS;
    let end = if lane == Lane::Events { loss } else { requests };
    while after < end {
        if deck.is_empty() {
            deck = lane.deck();
            deck.shuffle(random);
            if lane == Lane::Decode {
                // The rarest of what a run must have seen: early, and once more.
                for rare in engines.rare() {
                    deck.insert(deck.len() / 2, rare);
                    deck.push(rare);
                }
            }
        }
        let kind = deck.pop().expect("it was filled");
        faults.push(Fault {
            after,
            target: random.random_range(0..lane.targets(engines)),
            kind,
            lasts: Duration::from_millis(milliseconds(kind, random)),
        });
        after += rarer * random.random_range(SPACING);
    }
    if lane == Lane::Events {
        faults.extend(last_losses(engines, loss));
    }
    faults
}

/// Every worker loses events. An engine that tells nothing again would leave nothing to be certain of: such ones are started
/// anew before, and every other one of them loses nothing.
fn last_losses(engines: Engines, after: usize) -> Vec<Fault> {
    let cast = engines.cast();
    let targets = 0..Lane::Events.targets(engines);
    let tells_again = |target: usize| subject::of(cast[target % cast.len()]).tells_again();
    let renewed = targets.clone().filter(|target| !tells_again(*target));
    let renewed = renewed.map(|target| (target, Kind::RenewEngine));
    let lose = targets.filter(|target| tells_again(*target) || target.is_multiple_of(2));
    let lose = lose.map(|target| (target, Kind::LoseEvents));
    let faults = renewed.chain(lose).map(|(target, kind)| Fault {
        after,
        target,
        kind,
        lasts: Duration::ZERO,
    });
    faults.collect()
}

/// Most faults are short; one in twelve of those that can be long outlasts what is waited for.
fn milliseconds(kind: Kind, random: &mut StdRng) -> u64 {
    let long = random.random_ratio(1, 12);
    match kind {
        Kind::CutSidecar | Kind::CutEngine => 50,
        Kind::LoseEvents | Kind::RenewEngine => 0,
        Kind::AbortAll => random.random_range(50..300),
        Kind::DrainWorker | Kind::StopRouter | Kind::KillRouter => random.random_range(20..300),
        Kind::Swap => random.random_range(100..400),
        Kind::KillEngine { .. } | Kind::KillSidecar | Kind::SlowEngine => {
            random.random_range(50..1_500)
        }
        _ if long => random.random_range(5_500..12_000),
        _ => random.random_range(30..1_200),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, target, .. } = self;
        let milliseconds = self.lasts.as_millis();
        write!(
            f,
            "after {after}: {:?} of {target} for {milliseconds} ms",
            self.kind
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::subject::Subject;
    use super::*;

    const ALL: [Engines; 4] = [
        Engines::Vllm,
        Engines::Sglang,
        Engines::Trtllm,
        Engines::Mixed,
    ];

    #[test]
    fn a_schedule_is_a_function_of_its_seed() {
        for engines in ALL {
            assert_eq!(phase(engines, 3, 1, 900), phase(engines, 3, 1, 900));
            assert_ne!(phase(engines, 3, 1, 900), phase(engines, 3, 2, 900));
            assert_ne!(phase(engines, 3, 1, 900), phase(engines, 4, 1, 900));
        }
    }

    #[test]
    fn every_kind_comes_in_a_phase_of_usual_length() {
        for engines in ALL {
            for (lane, faults) in phase(engines, 1, 0, 2500) {
                let name = |kind: &Kind| format!("{kind:?}");
                let came: BTreeSet<String> = faults.iter().map(|fault| name(&fault.kind)).collect();
                let rare = engines.rare().into_iter().filter(|_| lane == Lane::Decode);
                let mut all: BTreeSet<String> = lane.deck().iter().map(name).collect();
                all.extend(rare.map(|kind| name(&kind)));
                let mut kinds = engines.cast().iter().map(|kind| subject::of(*kind));
                if lane == Lane::Events && !kinds.all(Subject::tells_again) {
                    all.insert(name(&Kind::RenewEngine));
                }
                assert_eq!(came, all, "{engines:?}, {lane:?}");
                assert!(faults.is_sorted_by_key(|fault| fault.after));
            }
        }
    }
}

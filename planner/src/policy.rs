//! Ways to choose that do not predict seconds: for comparison, and for operators who want what they know.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::Rng;
use rand::seq::IteratorRandom;

use crate::plan::{Candidate, Plan, Standing};

/// How the plan is chosen among those that are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// By predicted seconds.
    #[default]
    Cost,
    /// Workers in turn.
    RoundRobin,
    /// Those with the fewest sequences.
    LeastLoaded,
    /// Those that have most of the prompt, and of these the ones with the fewest sequences.
    Prefix,
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct Turn(AtomicUsize);

impl Policy {
    /// One of these plans; none if there are none. Only [`Policy::Cost`] looks at what they cost.
    pub fn choose(
        self,
        plans: &[Candidate],
        workers: &[Standing<'_>],
        turn: &Turn,
        now: f64,
        rng: &mut impl Rng,
    ) -> Option<Candidate> {
        let load = |at: usize| workers[at].worker.figures(now).sequences;
        let cached = |at: usize| workers[at].cached.known;
        match self {
            Self::Cost => best(plans, rng, |candidate| candidate.cost.total()),
            Self::RoundRobin => {
                let turn = turn.0.fetch_add(1, Ordering::Relaxed);
                let mut ordered: Vec<&Candidate> = plans.iter().collect();
                ordered.sort_by_key(|candidate| candidate.plan);
                // A stride that is prime to most sizes meets both sides of all pairs.
                let at = turn.wrapping_mul(7919) % ordered.len().max(1);
                ordered.get(at).copied().copied()
            }
            Self::LeastLoaded => best(plans, rng, |candidate| match candidate.plan {
                Plan::Local { worker } => f64::from(load(worker)),
                Plan::Split { prefill, decode } => {
                    f64::from(load(prefill)) + f64::from(load(decode))
                }
            }),
            Self::Prefix => best(plans, rng, |candidate| {
                let (at, others) = match candidate.plan {
                    Plan::Local { worker } => (worker, 0),
                    Plan::Split { prefill, decode } => (prefill, load(decode)),
                };
                let hits = crate::book::to_f64(cached(at));
                f64::from(load(at).saturating_add(others)) * 1e-6 - hits
            }),
        }
    }
}

/// One of those that are least, by chance.
fn best(
    plans: &[Candidate],
    rng: &mut impl Rng,
    key: impl Fn(&Candidate) -> f64,
) -> Option<Candidate> {
    let least = plans.iter().map(&key).min_by(f64::total_cmp)?;
    let equals = plans.iter().filter(|plan| key(plan) <= least);
    equals.choose(rng).copied()
}

//! The planner: which worker prefills and which decodes, or which does both, by predicted seconds.
//!
//! All plans are enumerated, costed ([`cost`]) and compared; the cheapest wins, ties by chance. Split or local is nothing
//! but this comparison; operators and tests can force one kind.

mod cost;

use std::sync::Arc;

use baton_proto::worker::Role;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage, WorkerId};
use rand::Rng;
use rand::seq::IteratorRandom;
use serde_json::{Value, json};

use crate::args::Force;
use crate::fleet::{Snapshot, Worker, WorkerState, WorkerView};
use crate::prefill::bypass::Facts;
use crate::view::Prediction;

pub use cost::Cost;

/// Who serves a request.
#[derive(Debug, Clone)]
pub enum Plan {
    /// One worker does it all.
    Local {
        /// Who.
        worker: Arc<Worker>,
    },
    /// Prefill here, decode there.
    Split {
        /// Who prefills.
        prefill: Arc<Worker>,
        /// Who decodes.
        decode: Arc<Worker>,
    },
}

impl Plan {
    /// The word in metrics and headers.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Split { .. } => "split",
        }
    }

    fn shown(&self) -> Value {
        match self {
            Self::Local { worker } => json!({"plan": "local", "worker": worker.id()}),
            Self::Split { prefill, decode } => {
                json!({"plan": "split", "prefill": prefill.id(), "decode": decode.id()})
            }
        }
    }

    /// What is predicted to be cached where.
    fn cached(&self, prediction: &Prediction) -> Value {
        let shown = |worker: &Worker| prediction.cached(worker.id()).shown();
        match self {
            Self::Local { worker } => json!({"worker": shown(worker)}),
            Self::Split { prefill, decode } => {
                json!({"prefill": shown(prefill), "decode": shown(decode)})
            }
        }
    }

    fn uses(&self, id: &WorkerId) -> bool {
        match self {
            Self::Local { worker } => worker.id() == id,
            Self::Split { prefill, decode } => prefill.id() == id || decode.id() == id,
        }
    }

    fn avoided(&self) -> bool {
        match self {
            Self::Local { worker } => worker.avoided(),
            Self::Split { prefill, decode } => prefill.avoided() || decode.avoided(),
        }
    }
}

/// A plan and what it is predicted to cost.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Who would serve.
    pub plan: Plan,
    /// How long it would take to the first token.
    pub cost: Cost,
}

/// What earlier attempts of the same request have taught.
#[derive(Debug, Clone, Default)]
pub struct Lessons {
    /// Workers that failed it.
    pub failed: Vec<WorkerId>,
    /// Splitting is not to be tried again.
    pub local_only: bool,
    /// The one worker whose cache is warm for it.
    pub warm: Option<WorkerId>,
}

/// The cheapest plan.
pub fn plan(
    snapshot: &Snapshot,
    facts: &Facts,
    prediction: &Prediction,
    force: Force,
    lessons: &Lessons,
) -> Result<Candidate, Error> {
    let candidates = candidates(snapshot, facts, prediction, force, lessons);
    // Workers that failed this request, or failed others lately, are used only if there is nobody else.
    let failed = |candidate: &Candidate| lessons.failed.iter().any(|id| candidate.plan.uses(id));
    let fresh = |candidate: &&Candidate| !failed(candidate) && !candidate.plan.avoided();
    let pools: [Vec<&Candidate>; 3] = [
        candidates.iter().filter(fresh).collect(),
        candidates
            .iter()
            .filter(|candidate| !failed(candidate))
            .collect(),
        candidates.iter().collect(),
    ];
    let best = pools.iter().find_map(|pool| cheapest(pool));
    best.ok_or_else(|| nobody(snapshot, facts, force))
}

/// All plans that are possible now.
pub fn candidates(
    snapshot: &Snapshot,
    facts: &Facts,
    prediction: &Prediction,
    force: Force,
    lessons: &Lessons,
) -> Vec<Candidate> {
    let ready: Vec<&WorkerView> = snapshot
        .workers
        .iter()
        .filter(|worker| may_serve(worker, facts))
        .collect();
    if let Some(warm) = lessons
        .warm
        .as_ref()
        .and_then(|id| ready.iter().find(|worker| worker.id() == id))
    {
        return vec![local(warm, facts, prediction)];
    }
    let splits = facts.local.is_none() && force != Force::Local && !lessons.local_only;
    let mut candidates = Vec::new();
    if splits {
        let pairs = pairs(snapshot, &ready);
        candidates.extend(pairs.map(|(prefill, decode)| split(prefill, decode, facts, prediction)));
    }
    // A request whose split failed must not fail for want of another pair.
    let may_fall_back = candidates.is_empty() && !lessons.failed.is_empty();
    if force == Force::Split && splits && !may_fall_back {
        return candidates;
    }
    // A prefill worker serves whole requests only when nobody else can: that is what it was set apart for.
    let set_apart = |worker: &WorkerView| worker.role() == Role::Prefill;
    let others_exist = ready.iter().any(|worker| !set_apart(worker));
    let locals = ready
        .iter()
        .filter(|worker| !(others_exist && set_apart(worker)));
    candidates.extend(locals.map(|worker| local(worker, facts, prediction)));
    candidates
}

/// Another decode worker for KV that `prefill` holds.
pub fn another_decode(
    snapshot: &Snapshot,
    facts: &Facts,
    prediction: &Prediction,
    prefill: &WorkerId,
    tried: &[WorkerId],
) -> Option<Arc<Worker>> {
    let holder = snapshot
        .workers
        .iter()
        .find(|worker| worker.id() == prefill)?;
    let able = |worker: &&WorkerView| {
        may_serve(worker, facts)
            && worker.role().decodes()
            && worker.id() != prefill
            && !tried.contains(worker.id())
            && snapshot.obstacle(holder, worker).is_none()
    };
    let candidates: Vec<Candidate> = snapshot
        .workers
        .iter()
        .filter(able)
        .map(|decode| split(holder, decode, facts, prediction))
        .collect();
    match cheapest(&candidates.iter().collect::<Vec<_>>())?.plan {
        Plan::Split { decode, .. } => Some(decode),
        Plan::Local { .. } => None,
    }
}

fn may_serve(worker: &WorkerView, facts: &Facts) -> bool {
    let model = facts
        .model
        .as_deref()
        .is_none_or(|model| worker.serves(model));
    worker.state() == WorkerState::Ready && model && worker.role() != Role::Unknown
}

/// Pairs that can hand over.
pub fn pairs<'a>(
    snapshot: &'a Snapshot,
    ready: &'a [&'a WorkerView],
) -> impl Iterator<Item = (&'a WorkerView, &'a WorkerView)> {
    let of_role = |able: fn(Role) -> bool| {
        ready
            .iter()
            .copied()
            .filter(move |worker| able(worker.role()))
    };
    of_role(Role::prefills)
        .flat_map(move |prefill| of_role(Role::decodes).map(move |decode| (prefill, decode)))
        .filter(|(prefill, decode)| {
            prefill.id() != decode.id() && snapshot.obstacle(prefill, decode).is_none()
        })
}

fn local(worker: &WorkerView, facts: &Facts, prediction: &Prediction) -> Candidate {
    Candidate {
        cost: cost::local(worker, facts, prediction),
        plan: Plan::Local {
            worker: Arc::clone(&worker.worker),
        },
    }
}

fn split(
    prefill: &WorkerView,
    decode: &WorkerView,
    facts: &Facts,
    prediction: &Prediction,
) -> Candidate {
    let plan = Plan::Split {
        prefill: Arc::clone(&prefill.worker),
        decode: Arc::clone(&decode.worker),
    };
    Candidate {
        cost: cost::split(prefill, decode, facts, prediction),
        plan,
    }
}

/// The cheapest, by chance among equals: always taking the first would pile work on one worker.
fn cheapest(candidates: &[&Candidate]) -> Option<Candidate> {
    let best = candidates
        .iter()
        .map(|candidate| candidate.cost.total())
        .min_by(f64::total_cmp)?;
    let equals = candidates
        .iter()
        .filter(|candidate| candidate.cost.total() <= best * 1.001);
    equals
        .choose(&mut rand::rng())
        .map(|candidate| (*candidate).clone())
}

fn nobody(snapshot: &Snapshot, facts: &Facts, force: Force) -> Error {
    if let Some(model) = facts
        .model
        .as_deref()
        .filter(|model| !snapshot.serves(model))
    {
        let known = snapshot
            .workers
            .iter()
            .any(|worker| worker.info().is_some());
        if known {
            let shown: String = model.chars().take(100).collect();
            let message = format!("the model {shown:?} does not exist here");
            return Error::new(ErrorKind::NotFound, Source::Client, Stage::Plan, message);
        }
    }
    let ready = snapshot
        .workers
        .iter()
        .filter(|worker| worker.state() == WorkerState::Ready)
        .count();
    let message = if ready == 0 {
        "no worker is ready".to_owned()
    } else if force == Force::Split {
        format!("{ready} workers are ready, but no two of them can hand over (see /fleet)")
    } else {
        format!("none of the {ready} ready workers can serve this request")
    };
    Error::new(ErrorKind::NoWorker, Source::Router, Stage::Plan, message).retry(Retry::Safe)
}

/// A dry run: all candidates with their costs, the cheapest first. Nothing is reserved.
pub fn explain(snapshot: &Snapshot, facts: &Facts, prediction: &Prediction, force: Force) -> Value {
    let lessons = Lessons::default();
    let chosen = plan(snapshot, facts, prediction, force, &lessons);
    let mut all = candidates(snapshot, facts, prediction, force, &lessons);
    all.sort_by(|one, other| one.cost.total().total_cmp(&other.cost.total()));
    let shown = |candidate: &Candidate| {
        let mut value = candidate.plan.shown();
        value["seconds"] = candidate.cost.shown();
        value["cached"] = candidate.plan.cached(prediction);
        value
    };
    json!({
        "request": crate::prefill::bypass::shown(facts),
        "chosen": chosen.as_ref().map_or(Value::Null, shown),
        "refused": chosen.err().map(|error| error.message),
        "candidates": all.iter().map(shown).collect::<Vec<_>>(),
    })
}

/// Prompt tokens that a worker would have to compute.
pub fn uncached(facts: &Facts, prediction: &Prediction, worker: &WorkerId) -> u64 {
    cost::uncached(facts, prediction.cached(worker))
}

/// A pause that grows with each attempt, never the same for two requests.
pub fn back_off(attempt: u32) -> std::time::Duration {
    let longest = 0.02 * 2f64.powi(i32::try_from(attempt.min(6)).unwrap_or(6));
    std::time::Duration::from_secs_f64(rand::rng().random_range(0.0..longest))
}

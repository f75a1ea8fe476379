//! Why a plan was chosen: what it was predicted to cost, part by part, and what the others would have.

use baton_planner::{Candidate, Cost};
use serde_json::{Map, Value, json};

use super::Planning;
use super::question::{Question, Spare, may_serve};
use crate::fleet::{WorkerState, WorkerView};
use crate::placing::without_room;
use crate::prefill::bypass;

/// Most candidates that are shown, and most pairs whose obstacle is.
const MOST_SHOWN: usize = 100;

/// A cost in JSON, in seconds.
pub(super) fn shown_cost(cost: &Cost) -> Value {
    json!({
        "total": cost.total(),
        "first_token": cost.to_first_token(),
        "waiting": cost.waiting,
        "prefill": cost.prefill,
        "transfer": cost.transfer,
        "decode": cost.decode,
        "others": cost.others,
        "preference": cost.preference,
    })
}

/// By which part of its cost a plan lost most against the one that was chosen.
pub(super) fn lost_by(lost: &Cost, chosen: &Cost) -> Value {
    let parts = [
        ("waiting", lost.waiting - chosen.waiting),
        ("prefill", lost.prefill - chosen.prefill),
        ("transfer", lost.transfer - chosen.transfer),
        ("decode", lost.decode - chosen.decode),
        ("others", lost.others - chosen.others),
        ("preference", lost.preference - chosen.preference),
    ];
    let most = parts.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    json!({
        "seconds": lost.total() - chosen.total(),
        "mostly": most.map(|(part, _)| part),
    })
}

impl Question<'_> {
    /// A plan's workers in JSON.
    pub(super) fn shown_plan(&self, plan: baton_planner::Plan) -> Value {
        let id = |at: usize| self.snapshot.workers[at].id();
        match plan {
            baton_planner::Plan::Local { worker } => json!({"plan": "local", "worker": id(worker)}),
            baton_planner::Plan::Split { prefill, decode } => {
                json!({"plan": "split", "prefill": id(prefill), "decode": id(decode)})
            }
        }
    }

    fn shown(&self, candidate: &Candidate, chosen: Option<&Cost>) -> Value {
        let cached = |at: usize| {
            self.prediction
                .cached(self.snapshot.workers[at].id())
                .shown()
        };
        let mut value = self.shown_plan(candidate.plan);
        value["seconds"] = shown_cost(&candidate.cost);
        value["cached"] = match candidate.plan {
            baton_planner::Plan::Local { worker } => json!({"worker": cached(worker)}),
            baton_planner::Plan::Split { prefill, decode } => {
                json!({"prefill": cached(prefill), "decode": cached(decode)})
            }
        };
        if let Some(chosen) = chosen {
            value["lost_by"] = lost_by(&candidate.cost, chosen);
        }
        value
    }

    /// Why a worker is in no plan.
    fn excluded(&self, view: &WorkerView) -> Option<String> {
        if view.state() != WorkerState::Ready {
            return Some(format!("it is {}", view.state().word()));
        }
        if !view.role().serves() {
            return Some("it is observed only: no request reaches its engine".to_owned());
        }
        if !may_serve(view, self.facts) {
            return Some("it does not serve this model".to_owned());
        }
        let limits = view.limits();
        let most = limits.context.into_iter().chain(limits.kv_tokens).min();
        let short = most.filter(|most| self.facts.longest_prompt > *most);
        short.map(|most| format!("it can hold {most} tokens"))
    }
}

/// A dry run: all candidates with their costs, the cheapest first, and who is no candidate. Nothing is reserved.
pub fn explain(planning: &Planning, question: &Question<'_>) -> Value {
    let chosen = planning.plan(question);
    let duties = question.duties(planning.force);
    let workers = question.standings(&duties, Spare::Nobody);
    let pairing = |prefill, decode| question.snapshot.fits(prefill, decode);
    let now = planning.clock.now();
    let all = planning
        .planner
        .plans(question.ask(), &workers, &pairing, now);
    let best = chosen.as_ref().ok();
    let candidates = all.iter().take(MOST_SHOWN);
    let candidates =
        candidates.map(|candidate| question.shown(candidate, best.map(|best| &best.cost)));
    let excluded = question.snapshot.workers.iter().filter_map(|view| {
        let why = question.excluded(view)?;
        Some((view.id().to_string(), Value::String(why)))
    });
    json!({
        "request": bypass::shown(question.facts),
        "chosen": best.map(|best| question.shown(&best.candidate, None)),
        "waits_for_room_in": best.map(|best| {
            let full = without_room(question, best).into_iter();
            full.map(|worker| json!(worker.id())).collect::<Vec<_>>()
        }),
        "refused": chosen.as_ref().err().map(|error| &error.message),
        "candidates": candidates.collect::<Vec<_>>(),
        "candidates_count": all.len(),
        "excluded": excluded.collect::<Map<_, _>>(),
        "forbidden": forbidden(planning, question),
    })
}

/// Pairs that could hand over and may not.
fn forbidden(planning: &Planning, question: &Question<'_>) -> Vec<Value> {
    let workers = &question.snapshot.workers;
    let pairs = super::pairs(question.snapshot).filter_map(|(prefill, decode)| {
        let (from, to) = (&workers[prefill], &workers[decode]);
        let why = planning
            .planner
            .topology
            .forbids(from.place(), to.place())?;
        Some(json!({"prefill": from.id(), "decode": to.id(), "why": why.to_string()}))
    });
    pairs.take(MOST_SHOWN).collect()
}

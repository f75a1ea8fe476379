//! A request before the fleet: who may serve it, and how each worker stands.

use std::sync::Arc;

use baton_planner::{Ask, Choice, Duty, Standing};
use baton_proto::WorkerId;
use baton_proto::worker::Role;

use super::{Chosen, Plan, Preset};
use crate::args::Force;
use crate::fleet::{Snapshot, WorkerView};
use crate::prefill::bypass::Facts;
use crate::queue::Ahead;
use crate::view::Prediction;

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

/// A request before the fleet: all that plans for it depend on.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The fleet.
    pub snapshot: &'a Snapshot,
    /// The request.
    pub facts: &'a Facts,
    /// What is cached where.
    pub prediction: &'a Prediction,
    /// What earlier attempts have taught.
    pub lessons: &'a Lessons,
    /// What others want of the plan.
    pub wish: &'a Wish,
    /// Who waits for room before it.
    pub ahead: &'a Ahead,
}

/// What others want of a plan.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// A gateway has chosen already.
    pub route: Option<Preset>,
    /// Who computed the session's last prompt, and the seconds that staying there is worth.
    pub keep: Option<(WorkerId, f64)>,
}

/// Whom to do without, if there are others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spare {
    /// Who failed this request, or whose breaker is open.
    Avoided,
    /// Who failed this request, and in each role all but the least bad.
    Worse,
    /// Who failed this request.
    Failed,
    Nobody,
}

impl Spare {
    /// From choosy to content with anybody: no role's pool is ever emptied.
    pub(super) const ALL: [Self; 4] = [Self::Avoided, Self::Worse, Self::Failed, Self::Nobody];
}

/// What a duty is for.
const DUTIES: [fn(&mut Duty) -> &mut bool; 3] = [
    |duty| &mut duty.prefill,
    |duty| &mut duty.decode,
    |duty| &mut duty.local,
];

impl Question<'_> {
    pub(super) fn ask(&self) -> Ask {
        Ask {
            tokens: self.facts.prompt_tokens,
            longest: self.facts.longest_prompt,
        }
    }

    /// Every worker as a plan sees it, used for nothing.
    pub(super) fn standing<'a>(&'a self, view: &'a WorkerView) -> Standing<'a> {
        Standing {
            worker: view.worker.books(),
            duty: Duty::default(),
            limits: view.limits(),
            cached: self.prediction.cached(view.id()).planned(),
            place: view.place(),
            ahead: self.ahead.of(view.worker.books().number()),
            guarded: view.role() == Role::Decode,
            penalty: match &self.wish.keep {
                Some((kept, seconds)) if kept != view.id() => *seconds,
                _ => 0.0,
            },
        }
    }

    /// What each worker may do for the request.
    pub(super) fn duties(&self, force: Force) -> Vec<Duty> {
        if let Some(preset) = &self.wish.route {
            let workers = self.snapshot.workers.iter();
            let able = |view: &WorkerView| may_serve(view, self.facts);
            return workers
                .map(|view| {
                    if able(view) {
                        let duty = preset.duty(view.id(), view.role());
                        Duty {
                            local: duty.local && !view.legs_only(),
                            ..duty
                        }
                    } else {
                        Duty::default()
                    }
                })
                .collect();
        }
        let workers = &self.snapshot.workers;
        let may_serve = |view: &WorkerView| may_serve(view, self.facts);
        let warm = self
            .lessons
            .warm
            .as_ref()
            .and_then(|id| self.snapshot.place_of(id));
        if let Some(warm) = warm.filter(|at| may_serve(&workers[*at])) {
            let local = |at| Duty {
                local: at == warm,
                ..Duty::default()
            };
            return (0..workers.len()).map(local).collect();
        }
        let alone = |view: &WorkerView| may_serve(view) && !view.legs_only();
        let pays = self.facts.local.is_none() && force != Force::Local && !self.lessons.local_only;
        // Where no engine could serve it alone, there is no choice.
        let splits = pays || (!self.facts.whole && !workers.iter().any(alone));
        // A prefill worker serves whole requests only when nobody else can: that is what it was set apart for.
        let set_apart = |view: &WorkerView| view.role() == Role::Prefill;
        let others = workers.iter().any(|view| alone(view) && !set_apart(view));
        let duty = |view: &WorkerView| Duty {
            prefill: splits && view.role().prefills(),
            decode: splits && view.role().decodes(),
            local: !(view.legs_only() || others && set_apart(view)),
        };
        let duties = workers.iter();
        duties
            .map(|view| {
                if may_serve(view) {
                    duty(view)
                } else {
                    Duty::default()
                }
            })
            .collect()
    }

    /// These duties, without those of workers that are to be spared.
    fn spared(&self, duties: &[Duty], spare: Spare) -> Vec<Duty> {
        let workers = &self.snapshot.workers;
        let mut spared = duties.to_vec();
        for (view, duty) in workers.iter().zip(&mut spared) {
            let failed = self.lessons.failed.contains(view.id());
            let out = match spare {
                Spare::Avoided => failed || view.worker.breaker().avoids(),
                Spare::Worse | Spare::Failed => failed,
                Spare::Nobody => false,
            };
            if out {
                *duty = Duty::default();
            }
        }
        if spare == Spare::Worse {
            for of in DUTIES {
                self.keep_least_bad(&mut spared, of);
            }
        }
        spared
    }

    fn keep_least_bad(&self, duties: &mut [Duty], of: fn(&mut Duty) -> &mut bool) {
        let badness = |view: &WorkerView| view.worker.breaker().badness();
        let badness: Vec<u32> = self.snapshot.workers.iter().map(badness).collect();
        let able = duties.iter_mut().zip(&badness);
        let least = able
            .filter_map(|(duty, bad)| of(duty).then_some(*bad))
            .min();
        for (duty, bad) in duties.iter_mut().zip(badness) {
            *of(duty) &= Some(bad) == least;
        }
    }

    pub(super) fn standings(&self, duties: &[Duty], spare: Spare) -> Vec<Standing<'_>> {
        let duties = self.spared(duties, spare);
        let workers = self.snapshot.workers.iter().zip(duties);
        let standings = workers.map(|(view, duty)| Standing {
            duty,
            ..self.standing(view)
        });
        standings.collect()
    }

    pub(super) fn plan(&self, choice: Choice) -> Chosen {
        let Choice { candidate, others } = choice;
        let worker = |at: usize| Arc::clone(&self.snapshot.workers[at].worker);
        let plan = match candidate.plan {
            baton_planner::Plan::Local { worker: at } => Plan::Local { worker: worker(at) },
            baton_planner::Plan::Split { prefill, decode } => Plan::Split {
                prefill: worker(prefill),
                decode: worker(decode),
            },
        };
        Chosen {
            plan,
            cost: candidate.cost,
            candidate,
            others,
        }
    }
}

pub(super) fn may_serve(worker: &WorkerView, facts: &Facts) -> bool {
    let model = facts
        .model
        .as_deref()
        .is_none_or(|model| worker.serves(model));
    worker.takes_work() && model
}

//! Plans for the fleet: who may serve a request is said here, what that costs and who is chosen by `baton-planner`.
//!
//! Split or local is nothing but the comparison of costs; operators and tests can force one kind, or choose by another
//! policy.

mod clock;
mod decisions;
mod explain;
mod preset;
mod question;
mod sessions;

use std::sync::Arc;

use baton_planner::{
    Booked, Candidate, Choice, Cost, Duty, Limits, Planner, Policy, Refusal, Standing, Transit,
    Turn, Work,
};
use baton_proto::worker::Role;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage, WorkerId};
use rand::Rng;

use crate::args::{Force, RouterArgs};
use crate::fleet::breaker::Phase;
use crate::fleet::{Snapshot, Worker, WorkerView};

pub use clock::Clock;
pub use decisions::{Decision, Decisions};
pub use explain::explain;
pub use preset::Preset;
pub use question::{Lessons, Question, Wish};
use question::{Spare, may_serve};
pub use sessions::Sessions;

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

/// A plan, and what it is predicted to cost.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Who serves.
    pub plan: Plan,
    /// How long it will take.
    pub cost: Cost,
    /// The same, by places in the fleet's snapshot.
    candidate: Candidate,
    /// The next best.
    others: Vec<Candidate>,
}

/// What all plans of a router share.
#[derive(Debug)]
pub struct Planning {
    /// Costs, links, topology.
    pub planner: Arc<Planner>,
    /// The time by which books are kept.
    pub clock: Clock,
    /// The last decisions.
    pub decisions: Decisions,
    /// Where sessions are.
    pub sessions: Sessions,
    policy: Policy,
    temperature: f64,
    force: Force,
    turn: Turn,
}

impl Plan {
    /// All that take part.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        let (first, second) = match self {
            Self::Local { worker } => (worker, None),
            Self::Split { prefill, decode } => (prefill, Some(decode)),
        };
        std::iter::once(first).chain(second)
    }

    /// The word in metrics and headers.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Split { .. } => "split",
        }
    }
}

impl Planning {
    /// As the flags say.
    pub fn new(args: &RouterArgs) -> Self {
        Self {
            planner: Arc::new(Planner {
                topology: args.topology.topology(),
                ..Planner::default()
            }),
            clock: Clock::default(),
            policy: args.policy.into(),
            temperature: args.temperature,
            sessions: Sessions::new(args.session_worth_s),
            force: args.force,
            turn: Turn::default(),
            decisions: Decisions::default(),
        }
    }

    /// The plan for a request.
    pub fn plan(&self, question: &Question<'_>) -> Result<Chosen, Error> {
        if let Some(preset) = &question.wish.route {
            let chosen = self.of_duties(question, &question.duties(self.force));
            return chosen.map_err(|error| preset.refused(error));
        }
        // Where splitting is forced, a request whose split failed must not fail for want of another pair.
        let forced = self.force == Force::Split && question.facts.local.is_none();
        if forced && !question.lessons.local_only && question.lessons.warm.is_none() {
            let mut duties = question.duties(self.force);
            for duty in &mut duties {
                duty.local = false;
            }
            let chosen = self.of_duties(question, &duties);
            if chosen.is_ok() || question.lessons.failed.is_empty() {
                return chosen;
            }
        }
        self.of_duties(question, &question.duties(self.force))
    }

    /// Whether the request could be served without anybody who failed it or whose breaker is open. Whoever is being tried
    /// counts: it may be this very request that does.
    pub fn has_good_plan(&self, question: &Question<'_>) -> bool {
        let mut duties = question.duties(self.force);
        for (view, duty) in question.snapshot.workers.iter().zip(&mut duties) {
            if view.worker.breaker().phase() == Phase::Open {
                *duty = Duty::default();
            }
        }
        let workers = question.standings(&duties, Spare::Failed);
        self.choose(question, &workers, Spare::Failed).is_ok()
    }

    fn of_duties(&self, question: &Question<'_>, duties: &[Duty]) -> Result<Chosen, Error> {
        let mut too_long = false;
        for spare in Spare::ALL {
            let workers = question.standings(duties, spare);
            match self.choose(question, &workers, spare) {
                Ok(choice) => return Ok(question.plan(choice)),
                Err(refusal) => too_long = refusal == Refusal::TooLong,
            }
        }
        if too_long {
            // It is for an engine to say so, in its own words.
            let mut workers = question.standings(duties, Spare::Nobody);
            for worker in &mut workers {
                worker.limits = Limits::default();
            }
            if let Ok(choice) = self.choose(question, &workers, Spare::Nobody) {
                return Ok(question.plan(choice));
            }
        }
        Err(nobody(question, self.force))
    }

    fn choose(
        &self,
        question: &Question<'_>,
        workers: &[Standing<'_>],
        spare: Spare,
    ) -> Result<Choice, Refusal> {
        let (ask, now) = (question.ask(), self.clock.now());
        let choosy = spare == Spare::Avoided;
        let snapshot = question.snapshot;
        let pairing = |prefill, decode| {
            snapshot.fits(prefill, decode) && !(choosy && snapshot.avoids(prefill, decode))
        };
        let rng = &mut rand::rng();
        if self.policy == Policy::Cost && self.temperature > 0.0 {
            let temperature = self.temperature;
            return self
                .planner
                .sampled(ask, workers, &pairing, now, temperature, rng);
        }
        if self.policy == Policy::Cost {
            return self.planner.cheapest(ask, workers, &pairing, now, rng);
        }
        let mut plans = self.planner.plans(ask, workers, &pairing, now);
        // These policies know no reason to serve on one worker what two can serve.
        let splits =
            |candidate: &Candidate| matches!(candidate.plan, baton_planner::Plan::Split { .. });
        if plans.iter().any(splits) {
            plans.retain(splits);
        }
        let chosen = self.policy.choose(&plans, workers, &self.turn, now, rng);
        let others = Vec::new();
        chosen
            .map(|candidate| Choice { candidate, others })
            .ok_or(Refusal::Nobody)
    }

    /// Another decode worker for KV that `prefill` holds.
    pub fn another_decode(
        &self,
        question: &Question<'_>,
        prefill: &WorkerId,
        tried: &[WorkerId],
    ) -> Option<Arc<Worker>> {
        let holder = question.snapshot.place_of(prefill)?;
        let duty = |(at, view): (usize, &WorkerView)| {
            let decodes = view.role().decodes() && !tried.contains(view.id());
            Duty {
                prefill: at == holder,
                decode: at != holder && decodes && may_serve(view, question.facts),
                local: false,
            }
        };
        let workers = question.snapshot.workers.iter().enumerate();
        let duties: Vec<Duty> = workers.map(duty).collect();
        let choice = Spare::ALL.into_iter().find_map(|spare| {
            let mut standings = question.standings(&duties, spare);
            // Whoever holds the KV is past being spared.
            standings[holder].duty = duties[holder];
            self.choose(question, &standings, spare).ok()
        });
        match question.plan(choice?).plan {
            Plan::Split { decode, .. } => Some(decode),
            Plan::Local { .. } => None,
        }
    }

    /// Decode is about to fetch what it lacks of the prompt's KV.
    pub fn begin_transfer(
        &self,
        question: &Question<'_>,
        booked: &mut Booked,
        from: &WorkerId,
        to: &WorkerId,
    ) -> Option<Transit> {
        let standing = |id| {
            let at = question.snapshot.place_of(id)?;
            Some(question.standing(&question.snapshot.workers[at]))
        };
        let (from, to) = (standing(from)?, standing(to)?);
        let bytes = Planner::moved_bytes(question.ask(), &to);
        let now = self.clock.now();
        Some(self.planner.begin_transfer(booked, &from, &to, bytes, now))
    }

    /// What of a request a worker has to compute.
    pub fn work(&self, question: &Question<'_>, worker: &WorkerId) -> Work {
        let tokens = question.facts.prompt_tokens;
        match question.snapshot.place_of(worker) {
            Some(at) => {
                let standing = question.standing(&question.snapshot.workers[at]);
                self.planner.work(question.ask(), &standing)
            }
            None => Work { tokens, cached: 0 },
        }
    }
}

/// Places of ready workers that can hand over, prefill first.
pub fn pairs(snapshot: &Snapshot) -> impl Iterator<Item = (usize, usize)> {
    let ready = |able: fn(Role) -> bool| {
        let workers = snapshot.workers.iter().enumerate();
        workers.filter_map(move |(at, worker)| {
            (worker.takes_work() && able(worker.role())).then_some(at)
        })
    };
    ready(Role::prefills)
        .flat_map(move |prefill| ready(Role::decodes).map(move |decode| (prefill, decode)))
        .filter(|(prefill, decode)| prefill != decode && snapshot.fits(*prefill, *decode))
}

fn nobody(question: &Question<'_>, force: Force) -> Error {
    let (snapshot, facts) = (question.snapshot, question.facts);
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
        .filter(|worker| worker.takes_work())
        .count();
    let message = if ready == 0 {
        "no worker is ready".to_owned()
    } else if force == Force::Split {
        format!("{ready} workers are ready, but no two of them can hand over (see /fleet)")
    } else if let Some(why) = facts.local.filter(|_| facts.whole) {
        format!("none of the {ready} ready workers can serve this request alone, and {why}")
    } else {
        format!("none of the {ready} ready workers can serve this request")
    };
    Error::new(ErrorKind::NoWorker, Source::Router, Stage::Plan, message).retry(Retry::Safe)
}

/// A pause that grows with each attempt, never the same for two requests.
pub fn back_off(attempt: u32) -> std::time::Duration {
    let longest = 0.02 * 2f64.powi(i32::try_from(attempt.min(6)).unwrap_or(6));
    std::time::Duration::from_secs_f64(rand::rng().random_range(0.0..longest))
}

#[cfg(test)]
mod tests;

//! A plan for an attempt: the cheapest there is, as soon as there is room for it.

use std::sync::{Arc, Mutex, PoisonError};

use baton_planner::Promise;
use baton_proto::Error;
use tokio::time::Instant;

use crate::fleet::{Admission, Worker};
use crate::planner::{Chosen, Decision, Lessons, Plan, Planning, Question};
use crate::queue::{Place, overloaded};
use crate::serve::Attempt;
use crate::view::Prediction;

/// Plans that may lose the race for trying a worker before one is followed all the same.
const MOST_RACES: u32 = 3;

/// Prefills from which a worker's speed is known well enough to refuse a request by it.
const LEARNT: u32 = 8;

/// A plan that was made, and what it was made by. The fleet's snapshot is not kept: an attempt may last long.
pub struct Planned {
    /// Who serves.
    pub plan: Plan,
    /// What was predicted to be cached where.
    pub prediction: Prediction,
    /// As it is written down.
    pub decision: Arc<Decision>,
    /// The right to use its workers.
    _admissions: Vec<Admission>,
    /// Room where it is to be decoded, until it is booked there.
    promise: Mutex<Option<Promise>>,
}

impl Planned {
    /// The decode leg is booked by itself from now on.
    pub fn fulfil(&self) {
        self.promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

/// The cheapest plan, once its workers have room. One that was tried before and failed has had its turn: it does not wait again.
pub async fn planned(
    attempt: &Attempt<'_>,
    lessons: &Lessons,
    is_first: bool,
) -> Result<Planned, Error> {
    let queue = &attempt.router.queue;
    let waits = is_first && queue.is_open() && attempt.wish.route.is_none();
    let end = (Instant::now() + attempt.router.args.max_wait()).min(attempt.deadline);
    let mut place: Option<Place> = None;
    loop {
        let (full, after_s) = match once(attempt, lessons, waits, place.as_ref())? {
            Found::Plan(planned) => return Ok(*planned),
            Found::NoRoom { full, waiting } => (full, seconds(waiting)),
        };
        match &place {
            // Room that came before it was in the queue would have told nobody: it looks once more.
            None => {
                let entered = queue.enter(attempt.facts.model.as_deref(), after_s)?;
                entered.wants(&full);
                place = Some(entered);
            }
            Some(place) => {
                place.wants(&full);
                place.woken(end, after_s).await?;
            }
        }
    }
}

enum Found {
    Plan(Box<Planned>),
    /// Its workers have none.
    NoRoom {
        /// The numbers of those that have none.
        full: Vec<u32>,
        /// Predicted seconds until they will.
        waiting: f64,
    },
}

/// Plans once. `waits` if there is a queue for the attempt; `place` is its place there, if it has one already.
fn once(
    attempt: &Attempt<'_>,
    lessons: &Lessons,
    waits: bool,
    place: Option<&Place>,
) -> Result<Found, Error> {
    let router = attempt.router;
    let planning = &router.planning;
    let snapshot = router.fleet.snapshot();
    let prediction = router.predict(&snapshot, attempt.facts);
    let ahead = router.queue.ahead(place);
    let question = Question {
        ahead: &ahead,
        ..attempt.question(&snapshot, &prediction, lessons)
    };
    let (chosen, admissions) = admitted(planning, &question)?;
    check_waiting(attempt, &chosen)?;
    if waits {
        let full = without_room(&question, &chosen);
        let full: Vec<u32> = full.iter().map(|worker| worker.books().number()).collect();
        if !full.is_empty() {
            if place.is_none() {
                check_queue(attempt, &chosen)?;
            }
            let waiting = chosen.cost.waiting;
            return Ok(Found::NoRoom { full, waiting });
        }
    }
    let trace = attempt.trace.trace_id();
    let decision = planning
        .decisions
        .note(&question, &chosen, trace, planning.clock.now());
    let due = planning.clock.now() + chosen.cost.until_decode();
    let promise = promise(&question, &chosen.plan, due);
    Ok(Found::Plan(Box::new(Planned {
        plan: chosen.plan,
        prediction,
        decision,
        _admissions: admissions,
        promise: Mutex::new(promise),
    })))
}

/// A plan, and the right to use its workers. Where another request was quicker to try a worker, the next plan avoids that
/// one, if there are others.
fn admitted(
    planning: &Planning,
    question: &Question<'_>,
) -> Result<(Chosen, Vec<Admission>), Error> {
    for _ in 0..MOST_RACES {
        let chosen = planning.plan(question)?;
        let all: Option<Vec<Admission>> = chosen.plan.workers().map(Admission::ask).collect();
        if let Some(admissions) = all {
            return Ok((chosen, admissions));
        }
    }
    planning.plan(question).map(|chosen| (chosen, Vec::new()))
}

/// A request that would have to wait for too long is better told so now.
fn check_waiting(attempt: &Attempt<'_>, chosen: &Chosen) -> Result<(), Error> {
    // Of an engine whose speed is not known yet, nearly nothing is certain.
    let waiting = chosen.cost.waiting_at_least;
    let over = waiting - patience(attempt);
    if over <= 0.0 {
        return Ok(());
    }
    attempt.router.metrics.refused("too_long");
    let message = format!("all workers are busy: it would have to wait for {waiting:.0} s or more");
    Err(overloaded(message, seconds(over)))
}

/// The same, of a request that waits for room. How long sequences take is a guess at first: it is not held against anybody.
fn check_queue(attempt: &Attempt<'_>, chosen: &Chosen) -> Result<(), Error> {
    let planning = &attempt.router.planning;
    let learnt =
        |worker: &Arc<Worker>| worker.books().figures(planning.clock.now()).learnt_from() >= LEARNT;
    let waiting = chosen.cost.waiting;
    let over = waiting - patience(attempt);
    if over <= 0.0 || !chosen.plan.workers().take(1).all(learnt) {
        return Ok(());
    }
    attempt.router.metrics.refused("too_long");
    let message = format!("all workers are full: it would have to wait for about {waiting:.0} s");
    Err(overloaded(message, seconds(over)))
}

/// How long a request may have to wait, in seconds.
fn patience(attempt: &Attempt<'_>) -> f64 {
    let most = attempt.router.args.max_wait();
    most.min(attempt.time_left()).as_secs_f64()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to seconds of a minute"
)]
fn seconds(over: f64) -> u32 {
    over.ceil().clamp(1.0, 60.0) as u32
}

/// A plan's workers that have no room for it, or none that somebody before does not wait for.
pub fn without_room<'a>(question: &Question<'_>, chosen: &'a Chosen) -> Vec<&'a Arc<Worker>> {
    let full = |worker: &&Arc<Worker>| {
        let books = worker.books();
        let Some(at) = question.snapshot.place_of(worker.id()) else {
            return false;
        };
        let limits = question.snapshot.workers[at].limits();
        question.ahead.of(books.number()) > 0
            || !books.has_room(&limits, new_tokens(question, worker))
    };
    chosen.plan.workers().filter(full).collect()
}

/// Tokens of the prompt that a worker would have to hold beside what it has.
fn new_tokens(question: &Question<'_>, worker: &Worker) -> u64 {
    let cached = question.prediction.cached(worker.id()).known;
    question.facts.prompt_tokens.saturating_sub(cached)
}

/// Room for the decode leg, which will come at `due`.
fn promise(question: &Question<'_>, plan: &Plan, due: f64) -> Option<Promise> {
    match plan {
        Plan::Local { .. } => None,
        Plan::Split { decode, .. } => {
            let tokens = new_tokens(question, decode);
            Some(decode.books().promise(tokens, due))
        }
    }
}

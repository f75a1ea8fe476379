//! One request, from plan to answer, with what is done when an attempt fails.
//!
//! Nothing is retried past the commit point. Before it: what no engine has seen goes elsewhere at once; what an engine may
//! have seen is cancelled there first and tried once more under new ids, for a request that ends engines must not end
//! them all; a split that failed twice becomes local.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_daemon::trace::TraceContext;
use baton_planner::Work;
use baton_proto::call::{EngineAnswer, GenerateCall, path};
use baton_proto::request::ClientRequest;
use baton_proto::{Error, ErrorKind, Source, Stage, WorkerId};
use tokio::time::Instant;

use crate::calls::LegAnswer;
use crate::fleet::{Reservation, Snapshot, Worker};
use crate::placing::planned;
use crate::planner::{Decision, Lessons, Plan, Question, Wish};
use crate::prefill::bypass::Facts;
use crate::prefill::execution::{Prefill, prefill};
use crate::prefill::handoff::{self, Lost};
use crate::queue::Ahead;
use crate::recovery::{Recovery, is_its_fault};
use crate::stall::unless_stalled;
use crate::state::Router;
use crate::view::{Cached, Prediction, Proof};

pub use crate::placing::Planned;

/// What an attempt works with.
pub struct Attempt<'a> {
    /// What all requests share.
    pub router: &'a Router,
    /// The client's request.
    pub request: &'a ClientRequest,
    /// What a plan needs to know of it.
    pub facts: &'a Facts,
    /// Where it stands in its trace.
    pub trace: &'a TraceContext,
    /// When its first token must be there.
    pub deadline: Instant,
    /// What others want of its plan.
    pub wish: &'a Wish,
    /// Its next retry is paid.
    pub paid: AtomicBool,
}

impl Attempt<'_> {
    /// Pays for a retry in advance: whoever leaves a worker must not find that it may go nowhere.
    pub fn pay(&self) -> bool {
        let paid = self.paid.load(Ordering::Relaxed) || self.router.retries.spend();
        self.paid.store(paid, Ordering::Relaxed);
        paid
    }

    /// Whether it may be tried again.
    pub fn may_retry(&self) -> bool {
        let granted = self.pay();
        self.paid.store(false, Ordering::Relaxed);
        self.router.metrics.retry(granted);
        granted
    }

    /// Time left until the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The same in milliseconds.
    pub fn time_left_ms(&self) -> u64 {
        u64::try_from(self.time_left().as_millis()).unwrap_or(u64::MAX)
    }

    /// What is to be compared with what the engine of `worker` reports.
    pub fn proof(&self, planned: &Planned, worker: &Arc<Worker>) -> Proof {
        let proofs = &self.router.metrics.proofs;
        let foretold = planned.prediction.foretold(worker.id());
        Proof::new(proofs, foretold, worker, Arc::clone(&planned.decision))
    }

    /// What of the prompt a worker has to compute.
    pub fn work(&self, planned: &Planned, worker: &Worker) -> Work {
        let snapshot = self.router.fleet.snapshot();
        let question = self.question(&snapshot, &planned.prediction, &NO_LESSONS);
        self.router.planning.work(&question, worker.id())
    }

    /// Whether the answer begins with its first token, and not with its last.
    pub fn streams(&self) -> bool {
        self.request.object().get_set("stream") == Some("true")
    }

    /// Books a worker for the request.
    pub fn reserve(&self, planned: &Planned, worker: &Arc<Worker>, work: Work) -> Reservation {
        let planning = &self.router.planning;
        let prediction = &planned.prediction;
        let tokens = self.facts.prompt_tokens;
        if work == Work::default() {
            planned.fulfil();
        }
        Reservation::new(worker, work, tokens, prediction, planning.clock)
    }

    /// The request before the fleet.
    pub fn question<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        prediction: &'a Prediction,
        lessons: &'a Lessons,
    ) -> Question<'a> {
        Question {
            snapshot,
            facts: self.facts,
            prediction,
            lessons,
            wish: self.wish,
            ahead: &NOBODY,
        }
    }
}

/// For questions that are asked of whoever has room, or by who has had his turn.
static NOBODY: Ahead = Ahead::nobody();

/// For questions that do not ask who may serve.
pub static NO_LESSONS: Lessons = Lessons {
    failed: Vec::new(),
    local_only: false,
    warm: None,
};

/// A request at its commit point.
pub struct Served {
    /// What the client gets.
    pub answer: Answer,
    /// How it was served, for the curious.
    pub how: How,
    /// Keeps its place in the books while the answer flows.
    pub reservation: Option<Reservation>,
    /// What the engine's answer has to be compared with. That of a split request was compared when its prefill ended.
    pub proof: Option<Proof>,
    /// What was predicted to be cached where the prompt was computed.
    pub cached: Cached,
    /// Who computed the prompt.
    pub worker: Arc<Worker>,
    /// The decision that led here.
    pub decision: Arc<Decision>,
}

/// What the client gets.
pub enum Answer {
    /// An engine's answer, as it flows.
    Flowing(LegAnswer),
    /// An engine's judgement on the request, whole.
    Whole(EngineAnswer),
}

/// How a request was served.
#[derive(Debug, Clone)]
pub enum How {
    /// By one worker.
    Local(WorkerId),
    /// By two.
    Split {
        /// Who prefilled.
        prefill: WorkerId,
        /// Who decodes.
        decode: WorkerId,
        /// KV bytes that moved, if that is known.
        bytes: Option<u64>,
    },
}

impl How {
    /// The word in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Split { .. } => "split",
        }
    }
}

impl How {
    /// Who computed the prompt.
    pub fn computed_by(&self) -> &WorkerId {
        match self {
            Self::Local(worker)
            | Self::Split {
                prefill: worker, ..
            } => worker,
        }
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(worker) => write!(f, "local worker={worker}"),
            Self::Split {
                prefill,
                decode,
                bytes,
            } => {
                write!(f, "split prefill={prefill} decode={decode}")?;
                match bytes {
                    Some(bytes) => write!(f, " kv_bytes={bytes}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// An id that was never used before.
///
/// # Panics
/// Never: 32 hexadecimal digits are a valid id of every kind.
pub fn fresh_id<T: std::str::FromStr<Err: std::fmt::Debug>>() -> T {
    baton_daemon::fresh::hex_id()
        .parse()
        .expect("hexadecimal digits are a valid id")
}

/// Serves a request up to its commit point.
pub async fn serve(attempt: &Attempt<'_>) -> Result<Served, Error> {
    attempts(attempt).await.map_err(for_client)
}

/// What went wrong between workers is no conflict of the client's: for it, nobody could serve the request.
fn for_client(mut error: Error) -> Error {
    let between_workers = matches!(
        error.kind,
        ErrorKind::TicketRefused
            | ErrorKind::LeaseExpired
            | ErrorKind::IncarnationChanged
            | ErrorKind::Incompatible
            | ErrorKind::Conflict
            | ErrorKind::Cancelled
    );
    if between_workers {
        error.kind = ErrorKind::NoWorker;
    }
    error
}

async fn attempts(attempt: &Attempt<'_>) -> Result<Served, Error> {
    attempt.router.retries.earn();
    let mut recovery = Recovery::default();
    loop {
        if attempt.time_left().is_zero() {
            return Err(recovery.last.unwrap_or_else(too_late));
        }
        // Whoever had its turn goes on where it is.
        let is_first = recovery.last.is_none() && recovery.lessons.warm.is_none();
        let planned = match planned(attempt, &recovery.lessons, is_first).await {
            Ok(planned) => planned,
            // The reason why nobody is left says more than that nobody is.
            Err(error) => return Err(recovery.last.unwrap_or(error)),
        };
        let outcome = match &planned.plan {
            Plan::Local { worker } => local(attempt, worker, &planned).await,
            Plan::Split { prefill, decode } => split(attempt, prefill, decode, &planned).await,
        };
        match outcome {
            Ok(Outcome::Served(served)) => return Ok(*served),
            Ok(Outcome::GenerateAt(worker)) => recovery.lessons.warm = Some(worker),
            Err(Failed { error, worker }) => {
                attempt.router.metrics.attempt_failed(&error);
                planned
                    .decision
                    .came(|outcome| outcome.failed = Some(error.to_string()));
                if attempt.wish.route.is_some() {
                    // Whoever chose is to choose again.
                    return Err(error);
                }
                let pause = recovery.after(attempt, &planned.plan, error, worker)?;
                tokio::time::sleep(pause.min(attempt.time_left())).await;
            }
        }
    }
}

enum Outcome {
    Served(Box<Served>),
    /// The prompt ended by itself: the worker that computed it serves it whole.
    GenerateAt(WorkerId),
}

struct Failed {
    error: Error,
    worker: WorkerId,
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::Timeout,
        Source::Router,
        Stage::Plan,
        "the request's time is over",
    )
}

async fn local(
    attempt: &Attempt<'_>,
    worker: &Arc<Worker>,
    planned: &Planned,
) -> Result<Outcome, Failed> {
    let work = attempt.work(planned, worker);
    let mut reservation = attempt.reserve(planned, worker, work);
    if !attempt.streams() {
        reservation.booked().unseen();
    }
    let proof = attempt.proof(planned, worker);
    let call = GenerateCall {
        request: fresh_id(),
        route: attempt.request.route(),
        deadline_ms: attempt.time_left_ms(),
        uncached_tokens: Some(work.tokens),
    };
    let time = attempt.time_left();
    let leg = pin!(attempt.router.calls.leg(
        worker,
        path::GENERATE,
        call,
        attempt.request,
        attempt.trace,
        time,
        Stage::Generate,
    ));
    match unless_stalled(attempt, planned, worker, Stage::Generate, leg).await {
        Ok(answer) => {
            worker.served();
            Ok(Outcome::Served(Box::new(Served {
                reservation: Some(computed(&answer, reservation)),
                answer: Answer::Flowing(answer),
                how: How::Local(worker.id().clone()),
                proof: Some(proof),
                cached: planned.prediction.cached(worker.id()),
                worker: Arc::clone(worker),
                decision: Arc::clone(&planned.decision),
            })))
        }
        Err(error) => Err(failed(worker, error)),
    }
}

async fn split(
    attempt: &Attempt<'_>,
    prefill_at: &Arc<Worker>,
    decode_at: &Arc<Worker>,
    planned: &Planned,
) -> Result<Outcome, Failed> {
    let held = match prefill(attempt, prefill_at, decode_at, planned).await {
        Ok(Prefill::Ticket(held)) => held,
        Ok(Prefill::GenerateHere) => return Ok(Outcome::GenerateAt(prefill_at.id().clone())),
        Ok(Prefill::Answer(answer)) => {
            prefill_at.served();
            return Ok(judged(answer, prefill_at, planned));
        }
        Err(error) => return Err(failed(prefill_at, error)),
    };
    match handoff::decode(attempt, held, Arc::clone(decode_at), planned).await {
        Ok(decoded) => {
            decoded.worker.served();
            let (prefill, decode) = (prefill_at.id().clone(), decoded.worker.id().clone());
            let how = How::Split {
                prefill,
                decode,
                bytes: decoded.bytes,
            };
            Ok(Outcome::Served(Box::new(Served {
                reservation: Some(computed(&decoded.answer, decoded.reservation)),
                answer: Answer::Flowing(decoded.answer),
                how,
                proof: None,
                cached: planned.prediction.cached(prefill_at.id()),
                worker: Arc::clone(prefill_at),
                decision: Arc::clone(&planned.decision),
            })))
        }
        Err(Lost::Judged(answer)) => Ok(judged(answer, prefill_at, planned)),
        Err(Lost::Prefill(error)) => Err(failed(prefill_at, error)),
        // What the failure says of the decode worker was noted where it happened.
        Err(Lost::Decode(error)) => Err(Failed {
            error,
            worker: decode_at.id().clone(),
        }),
    }
}

/// The prefill engine judged the request, and is the only one that has seen it.
fn judged(answer: EngineAnswer, prefill_at: &Arc<Worker>, planned: &Planned) -> Outcome {
    Outcome::Served(Box::new(Served {
        answer: Answer::Whole(answer),
        how: How::Local(prefill_at.id().clone()),
        reservation: None,
        proof: None,
        cached: planned.prediction.cached(prefill_at.id()),
        worker: Arc::clone(prefill_at),
        decision: Arc::clone(&planned.decision),
    }))
}

/// The prompt was computed, or the engine judged the request instead.
fn computed(answer: &LegAnswer, mut reservation: Reservation) -> Reservation {
    if answer.status().is_success() {
        reservation.prefilled();
    } else {
        reservation.refused();
    }
    reservation
}

fn failed(worker: &Arc<Worker>, error: Error) -> Failed {
    if is_its_fault(&error) {
        worker.failed();
    }
    Failed {
        error,
        worker: worker.id().clone(),
    }
}

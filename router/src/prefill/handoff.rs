//! A ticket's way through a decode worker, up to the commit point.
//!
//! The decode sidecar answers when its engine has shown a token and the prefill sidecar has confirmed that the KV was
//! still the right one: settle. If it cannot, the answer is withheld, the decode worker's cache is quarantined, for it may
//! hold foreign KV now, and the request is computed anew.

use std::pin::pin;
use std::sync::Arc;

use baton_planner::Work;
use baton_proto::call::{DecodeCall, PrefillFrame, PrefillUsage, path};
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use futures_util::future::{Either, select};

use super::Waste;
use super::execution::Held;
use crate::calls::{FrameStream, LegAnswer};
use crate::fleet::{Reservation, Worker};
use crate::recovery::is_its_fault;
use crate::serve::{Attempt, NO_LESSONS, Planned, fresh_id};
use crate::stall::unless_stalled;

/// Decode workers that one ticket may be claimed for, the first included.
const MOST_CLAIMS: usize = 3;

/// A split request at its commit point.
pub struct Decoded {
    /// The engine's answer.
    pub answer: LegAnswer,
    /// Who decodes.
    pub worker: Arc<Worker>,
    /// Its place in the books.
    pub reservation: Reservation,
    /// KV bytes that were handed over; 0 if the engine judged the request instead.
    pub bytes: u64,
}

/// Has `held` decoded by `decode`, or by another worker that can if that one refuses it unseen.
pub async fn decode(
    attempt: &Attempt<'_>,
    mut held: Box<Held>,
    decode: Arc<Worker>,
    planned: &Planned,
) -> Result<Decoded, Error> {
    let mut decode = decode;
    let mut tried = vec![decode.id().clone()];
    loop {
        renew(attempt, &mut held, &decode).await;
        let mut reservation = attempt.reserve(planned, &decode, Work::default());
        let rest = held.rest.take();
        let fetched = fetch(attempt, &held, &decode, planned, &mut reservation);
        let (answer, usage) = beside(fetched, rest).await;
        if let Some(usage) = usage {
            held.proof.used(&usage);
        }
        let error = match answer {
            Ok(answer) => return Ok(commit(attempt, *held, answer, decode, reservation)),
            Err(error) => error,
        };
        attempt.router.metrics.attempt_failed(&error);
        if error.stage == Stage::Handoff {
            return not_confirmed(attempt, *held, &decode, error).await;
        }
        note_failure(attempt, &held, &decode, &error);
        if error.retry != Retry::Safe || tried.len() >= MOST_CLAIMS || held.lease_left_ms() == 0 {
            return give_up(*held, Waste::NotDecoded, error).await;
        }
        // The engine has not seen the ticket: another decode worker may have it.
        let snapshot = attempt.router.fleet.snapshot();
        let question = attempt.question(&snapshot, &planned.prediction, &NO_LESSONS);
        let planning = &attempt.router.planning;
        let Some(other) = planning.another_decode(&question, held.worker.id(), &tried) else {
            return give_up(*held, Waste::NotDecoded, error).await;
        };
        match attempt
            .router
            .calls
            .claim(&held.worker, &held.ticket.id, &other)
            .await
        {
            Ok(ticket) => held.renewed(ticket, &other),
            Err(refused) => return give_up(*held, Waste::NotDecoded, refused).await,
        }
        tried.push(other.id().clone());
        decode = other;
    }
}

/// A lease that is nearly over is asked for anew: its prefill worker may have extended it meanwhile. If it has not, decode
/// refuses what it cannot use in time.
async fn renew(attempt: &Attempt<'_>, held: &mut Held, decode: &Worker) {
    if held.lease_left_ms() > held.ticket.lease_ms / 2 {
        return;
    }
    let calls = &attempt.router.calls;
    if let Ok(ticket) = calls.claim(&held.worker, &held.ticket.id, decode).await {
        held.renewed(ticket, decode);
    }
}

/// Waits for `asked`, and takes what is left of the prefill's frames meanwhile: what it cost, if it says so in time.
async fn beside<T>(
    asked: impl Future<Output = T>,
    rest: Option<FrameStream>,
) -> (T, Option<PrefillUsage>) {
    let Some(rest) = rest else {
        return (asked.await, None);
    };
    match select(pin!(asked), pin!(rest.finish())).await {
        Either::Left((answer, _)) => (answer, None),
        Either::Right((Some(PrefillFrame::Done { usage, .. }), asked)) => {
            (asked.await, Some(usage))
        }
        Either::Right((_, asked)) => (asked.await, None),
    }
}

/// Has the prompt's KV fetched and decoded, and learns of the link between the two workers how long that took.
async fn fetch(
    attempt: &Attempt<'_>,
    held: &Held,
    decode: &Arc<Worker>,
    planned: &Planned,
    reservation: &mut Reservation,
) -> Result<LegAnswer, Error> {
    // Of an answer that comes whole it is not seen when its KV had come.
    if !attempt.streams() {
        return ask(attempt, held, decode, planned).await;
    }
    let planning = &attempt.router.planning;
    let transit = {
        let snapshot = attempt.router.fleet.snapshot();
        let question = attempt.question(&snapshot, &planned.prediction, &NO_LESSONS);
        let booked = reservation.booked();
        planning.begin_transfer(&question, booked, held.worker.id(), decode.id())
    };
    let answer = ask(attempt, held, decode, planned).await;
    reservation.booked().arrived();
    if let (Ok(answer), Some(transit)) = (&answer, transit)
        && answer.status().is_success()
    {
        planning
            .planner
            .end_transfer(&transit, planning.clock.now());
    }
    answer
}

async fn ask(
    attempt: &Attempt<'_>,
    held: &Held,
    decode: &Arc<Worker>,
    planned: &Planned,
) -> Result<LegAnswer, Error> {
    let mut ticket = held.ticket.clone();
    ticket.lease_remaining_ms = held.lease_left_ms();
    if ticket.lease_remaining_ms == 0 {
        let message = "the lease ended before decode could begin";
        return Err(Error::new(
            ErrorKind::LeaseExpired,
            Source::Router,
            Stage::Decode,
            message,
        ));
    }
    let call = DecodeCall {
        request: fresh_id(),
        ticket,
        prefill_at: Some(held.worker.url("")),
        route: attempt.request.route(),
        deadline_ms: attempt.time_left_ms(),
    };
    let time = attempt.time_left();
    let leg = pin!(attempt.router.calls.leg(
        decode,
        path::DECODE,
        call,
        attempt.request,
        attempt.trace,
        time,
        Stage::Decode,
    ));
    unless_stalled(attempt, planned, decode, Stage::Decode, leg).await
}

/// What is learnt from a failure of the decode leg.
fn note_failure(attempt: &Attempt<'_>, held: &Held, decode: &Worker, error: &Error) {
    let fleet = &attempt.router.fleet;
    let prefilled_in = &held.ticket.incarnation;
    match (error.kind, decode.incarnation()) {
        (ErrorKind::Incompatible, Some(life)) => fleet.pair_broken(prefilled_in, &life),
        // The engine has failed the leg: it, or the one that holds the KV, or the way between them.
        (ErrorKind::EngineFailed, Some(life)) => {
            let blame = fleet.pair_suspected(prefilled_in, &life);
            if blame.prefill {
                held.worker.failed();
            }
            if blame.decode {
                decode.failed();
            }
        }
        _ if is_its_fault(error) => decode.failed(),
        _ => {}
    }
}

/// The prefill side does not confirm the KV. If decode had an answer by then, that was withheld, and its cache quarantined.
async fn not_confirmed(
    attempt: &Attempt<'_>,
    held: Held,
    decode: &Worker,
    error: Error,
) -> Result<Decoded, Error> {
    let mut cause = Waste::NotDecoded;
    if error.retry != Retry::Safe {
        cause = Waste::Withheld;
        attempt.router.metrics.unsettled.inc();
        attempt.router.fleet.quarantined(decode);
    }
    give_up(held, cause, error).await
}

async fn give_up(mut held: Held, cause: Waste, error: Error) -> Result<Decoded, Error> {
    held.spent.wasted(cause);
    held.release.now().await;
    // The handoff is over; whatever comes next starts from nothing.
    let retry = if error.source_of_blame == Source::Client {
        Retry::No
    } else {
        Retry::AfterCancel
    };
    Err(error.retry(retry))
}

fn commit(
    attempt: &Attempt<'_>,
    mut held: Held,
    answer: LegAnswer,
    decode: Arc<Worker>,
    reservation: Reservation,
) -> Decoded {
    if !answer.status().is_success() {
        // The engine judged the request and did not fetch the KV: the guard gives it up.
        held.spent.wasted(Waste::NotDecoded);
        return Decoded {
            answer,
            worker: decode,
            reservation,
            bytes: 0,
        };
    }
    let router = attempt.router;
    if let Some(life) = decode.incarnation() {
        router.fleet.pair_proven(&held.ticket.incarnation, &life);
    }
    let bytes = held.ticket.bytes;
    held.release.disarm();
    held.spent.used();
    router.metrics.handoff_bytes.inc_by(bytes);
    Decoded {
        answer,
        worker: decode,
        reservation,
        bytes,
    }
}

//! A ticket's way through a decode worker, up to the commit point.
//!
//! The decode sidecar answers when its engine has shown a token and the prefill sidecar has confirmed that the KV was
//! still the right one: settle. If it cannot, the answer is withheld, the decode worker's cache is quarantined, for it may
//! hold foreign KV now, and the request is computed anew.
//!
//! A prefill that runs beside its decode is watched until then. If it fails, decode is ended at once, and the request goes on
//! by what the prefill said: decode only knows that nothing came.

use std::pin::pin;
use std::sync::Arc;

use baton_planner::Work;
use baton_proto::call::{DecodeCall, EngineAnswer, path};
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use futures_util::FutureExt;

use super::Waste;
use super::execution::{Handoff, Held};
use super::rest::Fault;
use crate::calls::LegAnswer;
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
    /// KV bytes that were handed over, if that is known; 0 if the engine judged the request instead.
    pub bytes: Option<u64>,
}

/// Why a handoff came to nothing.
#[derive(Debug)]
pub enum Lost {
    /// Nobody decoded it.
    Decode(Error),
    /// Its prefill failed beside it.
    Prefill(Error),
    /// The prefill engine judged the request: the client is to have its answer.
    Judged(EngineAnswer),
}

impl From<Fault> for Lost {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Failed(error) => Self::Prefill(error),
            Fault::Judged(answer) => Self::Judged(answer),
        }
    }
}

/// Has `held` decoded by `decode`, or by another worker that can if that one refuses it unseen.
pub async fn decode(
    attempt: &Attempt<'_>,
    mut held: Box<Held>,
    decode: Arc<Worker>,
    planned: &Planned,
) -> Result<Decoded, Lost> {
    let mut decode = decode;
    let mut tried = vec![decode.id().clone()];
    loop {
        renew(attempt, &mut held, &decode).await;
        let mut reservation = attempt.reserve(planned, &decode, Work::default());
        let Held { handoff, leg, .. } = &mut *held;
        let computed = leg.is_computed();
        let fetched = fetch(
            attempt,
            handoff,
            computed,
            &decode,
            planned,
            &mut reservation,
        );
        let answer = beside(fetched, leg.fault(attempt, planned)).await;
        let error = match answer {
            Ok(answer) => return Ok(commit(attempt, *held, answer, decode, reservation)),
            Err(Lost::Decode(error)) => error,
            Err(lost) => return Err(failed_beside(*held, lost).await),
        };
        attempt.router.metrics.attempt_failed(&error);
        if error.stage == Stage::Handoff {
            return not_confirmed(attempt, *held, &decode, error).await;
        }
        note_failure(attempt, &held.handoff, &decode, &error);
        let lapsed = held.handoff.lease_left_ms() == 0;
        if error.retry != Retry::Safe || tried.len() >= MOST_CLAIMS || lapsed {
            return give_up(*held, Waste::NotDecoded, error).await;
        }
        // The engine has not seen the ticket: another decode worker may have it.
        let snapshot = attempt.router.fleet.snapshot();
        let question = attempt.question(&snapshot, &planned.prediction, &NO_LESSONS);
        let planning = &attempt.router.planning;
        let Some(other) = planning.another_decode(&question, held.handoff.worker.id(), &tried)
        else {
            return give_up(*held, Waste::NotDecoded, error).await;
        };
        let Handoff { worker, ticket, .. } = &held.handoff;
        match attempt.router.calls.claim(worker, &ticket.id, &other).await {
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
    let Handoff { worker, ticket, .. } = &held.handoff;
    if held.handoff.lease_left_ms() > ticket.lease_ms / 2 {
        return;
    }
    if let Ok(ticket) = attempt.router.calls.claim(worker, &ticket.id, decode).await {
        held.renewed(ticket, decode);
    }
}

/// Waits for what decode answers, as long as its prefill does not fail.
async fn beside<T>(
    asked: impl Future<Output = Result<T, Error>>,
    fault: impl Future<Output = Fault>,
) -> Result<T, Lost> {
    let (mut asked, mut fault) = (pin!(asked), pin!(fault));
    tokio::select! {
        biased;
        // Past decode's first token a prefill that fails hurts nobody; before it, its word says more than decode's.
        answer = &mut asked => answer.map_err(|error| {
            let fault = fault.as_mut().now_or_never();
            fault.map_or(Lost::Decode(error), Lost::from)
        }),
        fault = &mut fault => Err(fault.into()),
    }
}

/// The prefill has failed, and with the call to decode that was ended.
async fn failed_beside(held: Held, lost: Lost) -> Lost {
    match lost {
        Lost::Judged(answer) => {
            held.release.disarm();
            held.leg.judged();
            Lost::Judged(answer)
        }
        Lost::Prefill(error) => Lost::Prefill(over(held, Waste::Failed, error).await),
        Lost::Decode(error) => Lost::Decode(over(held, Waste::NotDecoded, error).await),
    }
}

/// Has the prompt's KV fetched and decoded, and learns of the link between the two workers how long that took.
async fn fetch(
    attempt: &Attempt<'_>,
    held: &Handoff,
    computed: bool,
    decode: &Arc<Worker>,
    planned: &Planned,
    reservation: &mut Reservation,
) -> Result<LegAnswer, Error> {
    // Of an answer that comes whole it is not seen when its KV had come, and of a prefill that still runs not when it began to.
    if !attempt.streams() || !computed {
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
    held: &Handoff,
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
fn note_failure(attempt: &Attempt<'_>, held: &Handoff, decode: &Worker, error: &Error) {
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
) -> Result<Decoded, Lost> {
    let mut cause = Waste::NotDecoded;
    if error.retry != Retry::Safe {
        cause = Waste::Withheld;
        attempt.router.metrics.unsettled.inc();
        attempt.router.fleet.quarantined(decode);
    }
    give_up(held, cause, error).await
}

async fn give_up(held: Held, cause: Waste, error: Error) -> Result<Decoded, Lost> {
    Err(Lost::Decode(over(held, cause, error).await))
}

/// Gives a handoff up. What that means for the request.
async fn over(mut held: Held, cause: Waste, error: Error) -> Error {
    held.leg.wasted(cause);
    held.release.now().await;
    // The handoff is over; whatever comes next starts from nothing.
    let retry = if error.source_of_blame == Source::Client {
        Retry::No
    } else {
        Retry::AfterCancel
    };
    error.retry(retry)
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
        held.leg.wasted(Waste::NotDecoded);
        return Decoded {
            answer,
            worker: decode,
            reservation,
            bytes: Some(0),
        };
    }
    let router = attempt.router;
    if let Some(life) = decode.incarnation() {
        let prefilled_in = &held.handoff.ticket.incarnation;
        router.fleet.pair_proven(prefilled_in, &life);
    }
    let bytes = held.handoff.ticket.bytes;
    held.release.disarm();
    held.leg.used();
    router.metrics.handoff_bytes.inc_by(bytes.unwrap_or(0));
    Decoded {
        answer,
        worker: decode,
        reservation,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn error(message: &str) -> Error {
        Error::new(
            ErrorKind::EngineFailed,
            Source::Engine,
            Stage::Decode,
            message,
        )
    }

    fn judged() -> Fault {
        Fault::Judged(EngineAnswer {
            status: 400,
            content_type: None,
            body: bytes::Bytes::from_static(b"too long"),
        })
    }

    #[tokio::test]
    async fn decodes_first_token_goes_before_a_prefill_that_fails() {
        let failed = Fault::Failed(error("prefill"));
        let got = beside(ready(Ok("token")), ready(failed)).await;
        assert_eq!(got.unwrap(), "token");
        let got = beside(ready(Ok("token")), pending()).await;
        assert_eq!(got.unwrap(), "token");
    }

    #[tokio::test]
    async fn a_prefill_that_fails_ends_decode() {
        let decode = pending::<Result<(), Error>>();
        let Err(Lost::Judged(answer)) = beside(decode, ready(judged())).await else {
            panic!("the client is to have the engine's judgement");
        };
        assert_eq!(answer.status, 400);
    }

    #[tokio::test]
    async fn what_prefill_says_goes_before_what_decode_says() {
        let failed = || ready(Err::<(), Error>(error("decode: aborted")));
        let got = beside(failed(), ready(judged())).await;
        assert!(matches!(got, Err(Lost::Judged(_))), "{got:?}");
        let got = beside(failed(), ready(Fault::Failed(error("prefill")))).await;
        assert!(matches!(got, Err(Lost::Prefill(_))), "{got:?}");
        let got = beside(failed(), pending()).await;
        assert!(matches!(got, Err(Lost::Decode(_))), "{got:?}");
    }
}

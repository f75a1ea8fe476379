//! A prefill leg: sent, followed frame by frame, up to a ticket.

use std::pin::pin;
use std::sync::Arc;

use baton_proto::call::{EngineAnswer, PrefillCall, PrefillFrame, PrefillUsage};
use baton_proto::ticket::Ticket;
use baton_proto::{Error, Retry, Stage};
use tokio::time::Instant;

use super::machine::{Decision, Machine};
use super::{Spent, Waste};
use crate::calls::{FrameStream, ReleaseOnDrop};
use crate::fleet::{Reservation, Worker};
use crate::serve::{Attempt, Planned, fresh_id};
use crate::stall::unless_stalled;
use crate::view::Proof;

/// What a prefill leg came to.
pub enum Prefill {
    /// A handoff.
    Ticket(Box<Held>),
    /// The prompt ended by itself.
    GenerateHere,
    /// The engine judged the request: the client is to have its answer.
    Answer(EngineAnswer),
}

/// A handoff in our hands, with all that must end when it ends.
pub struct Held {
    /// The handoff.
    pub ticket: Ticket,
    /// When it arrived; its lease runs since then.
    pub since: Instant,
    /// Who holds the KV.
    pub worker: Arc<Worker>,
    /// Gives it up unless it is settled.
    pub release: ReleaseOnDrop,
    /// What it cost; for nothing unless it is settled.
    pub spent: Spent,
    /// The prefill's place in the plan's books.
    pub reservation: Reservation,
    /// What the prefill's sidecar still says; nothing waits for it.
    pub rest: Option<FrameStream>,
    /// What the engine's report of its cache has to be compared with.
    pub proof: Proof,
}

impl Held {
    /// Its prefill worker has given it anew.
    pub fn renewed(&mut self, ticket: Ticket, decode: &Worker) {
        self.release.exists(&ticket, decode);
        self.ticket = ticket;
        self.since = Instant::now();
    }

    /// What is left of the lease, in milliseconds.
    pub fn lease_left_ms(&self) -> u64 {
        let spent = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.ticket.lease_remaining_ms.saturating_sub(spent)
    }
}

/// Runs a prefill leg on `prefill` for `decode`.
pub async fn prefill(
    attempt: &Attempt<'_>,
    prefill: &Arc<Worker>,
    decode: &Worker,
    planned: &Planned,
) -> Result<Prefill, Error> {
    let router = attempt.router;
    let work = attempt.work(planned, prefill);
    let mut reservation = attempt.reserve(planned, prefill, work);
    let mut proof = attempt.proof(planned, prefill);
    let ticket = fresh_id();
    let mut release = ReleaseOnDrop::new(&router.calls, prefill, &ticket);
    let mut spent = Spent::begin(&router.metrics);
    let call = PrefillCall {
        request: fresh_id(),
        ticket,
        decode: decode.id().clone(),
        decode_at: Some(decode.url("")),
        router: Some(router.calls.router().clone()),
        route: attempt.request.route(),
        deadline_ms: attempt.time_left_ms(),
        uncached_tokens: Some(work.tokens),
    };
    let leg = pin!(async {
        let time = attempt.time_left();
        let calls = &router.calls;
        let frames = calls.prefill(prefill, call, attempt.request, attempt.trace, time);
        follow(attempt, frames.await?).await
    });
    let followed = unless_stalled(attempt, planned, prefill, Stage::Prefill, leg).await;
    match followed {
        Ok(Followed::Ticket(ticket, rest)) => {
            release.exists(&ticket, decode);
            reservation.prefilled();
            reservation.held();
            spent.computed();
            let held = Held {
                ticket: *ticket,
                since: Instant::now(),
                worker: Arc::clone(prefill),
                release,
                spent,
                reservation,
                rest: Some(rest),
                proof,
            };
            Ok(Prefill::Ticket(Box::new(held)))
        }
        Ok(Followed::GenerateHere(usage)) => {
            // The sidecar has booked what the engine still holds.
            release.disarm();
            spent.used();
            reservation.prefilled();
            proof.used(&usage);
            Ok(Prefill::GenerateHere)
        }
        Ok(Followed::Answer(answer)) => {
            release.disarm();
            spent.used();
            Ok(Prefill::Answer(answer))
        }
        Err(error) => {
            if error.retry == Retry::Safe {
                // Refused before the engine saw it: there is nothing to give up.
                release.disarm();
                spent.used();
            } else {
                spent.computed();
                spent.wasted(Waste::Failed);
                release.now().await;
            }
            Err(error)
        }
    }
}

enum Followed {
    Ticket(Box<Ticket>, FrameStream),
    GenerateHere(PrefillUsage),
    Answer(EngineAnswer),
}

/// Follows the frames up to a decision. The frames after a ticket carry nothing that decode waits for: an engine that
/// hands over while it computes shows its failure on the decode leg.
async fn follow(attempt: &Attempt<'_>, mut frames: FrameStream) -> Result<Followed, Error> {
    let mut machine = Machine::default();
    loop {
        let frame: Option<PrefillFrame> = frames.next(attempt.time_left()).await?;
        match machine.on(frame) {
            Decision::Wait => {}
            Decision::Decode(ticket) => return Ok(Followed::Ticket(ticket, frames)),
            Decision::GenerateHere(usage) | Decision::Finished(usage) => {
                return Ok(Followed::GenerateHere(usage));
            }
            Decision::Fail(_, Some(answer)) => return Ok(Followed::Answer(answer)),
            Decision::Fail(error, None) => return Err(error),
        }
    }
}

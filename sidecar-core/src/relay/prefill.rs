//! The prefill leg: it answers frames, and it belongs to the sidecar.
//!
//! The leg runs in a task of its own. While the engine has not answered, a router that goes away or releases the leg ends
//! it, and the engine drops the request with nothing held. Once the answer has begun the KV is held, so the answer is
//! read to its end and booked, whoever still listens.
//!
//! An engine that hands over while it computes has its ticket booked before it is asked. That leg ends in the order in which
//! its ticket is given up: when the ledger says that nobody fetches any more.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{BadBody, Body, read_limited};
use baton_proto::call::{EngineAnswer, Outcome, PrefillCall, PrefillFrame};
use baton_proto::ticket::{Draft, Ticket, TransferMetadata};
use baton_proto::{Error, ErrorKind, Incarnation, Retry, Source, Stage};
use bytes::Bytes;
use futures_util::TryFutureExt;
use http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::abort::{Unanswered, abort};
use super::frames::{answer, listener, ticket_in};
use super::leg::{
    ActiveLeg, Arrived, LONGEST_LEG, answers_another, engine_broke_off, engine_failed, send,
};
use crate::core::Core;
use crate::engine::{Attached, Engine, Offer, Prefilled};
use crate::ledger::{OpenLeg, Unread, Wanted};

/// Largest answer to a prefill. It may echo the prompt and its token ids.
const MAX_ANSWER: usize = 64 << 20;

/// Largest judgement of an engine on a request that is passed on; it must fit a frame.
const MAX_JUDGEMENT: usize = 1 << 20;

/// How long an engine may take to end a request that it was told to drop.
const DROPPED: Duration = Duration::from_secs(2);

/// Longest time for the rest of an answer once it has begun: a prefill's answer is written in one go.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Starts a prefill leg. What can be refused before the engine sees it is refused with a plain error answer.
pub async fn prefill<E: Engine>(
    core: Arc<Core<E>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let arrived: Arrived<PrefillCall> = Arrived::read(request, core.args.max_body()).await?;
    let attached = core.ready(Stage::Prefill)?;
    if !attached.info.role.prefills() {
        let message = "this worker takes no prefill legs";
        return Err(Error::new(
            ErrorKind::Incompatible,
            Source::Router,
            Stage::Prefill,
            message,
        )
        .retry(Retry::Safe));
    }
    if let Some(router) = &arrived.call.router {
        core.routers.asks(router);
    }
    let leg = ActiveLeg::enter(&core, &arrived).await?;
    let open = core.ledger.open(&arrived.call.ticket)?;
    let (offered, ticket) = offer(&core, &arrived, &attached, &open).unzip();
    let admitted = PrefillFrame::Admitted {
        id: arrived.call.ticket.clone(),
        ticket,
    };
    let (rest, listener) = listener(&core.ledger);
    let span = tracing::info_span!("prefill", request = %arrived.call.request, trace = %arrived.trace.trace_id());
    let running = Running {
        core,
        arrived,
        incarnation: attached.incarnation.clone(),
        step_tokens: attached.info.max_batched_tokens.map(u64::from),
        leg,
        offered,
        rest,
    };
    let is_offered = running.offered.is_some();
    let farewells = running.core.farewells.clone();
    let run = running.run(open).instrument(span);
    if is_offered {
        // The leg itself is what holds the KV: its engine is told when it ends with its sidecar.
        farewells.spawn(run);
    } else {
        tokio::spawn(run);
    }
    Ok(answer(&admitted, listener))
}

struct Running<E> {
    core: Arc<Core<E>>,
    arrived: Arrived<PrefillCall>,
    incarnation: Incarnation,
    /// Most tokens that the engine computes at once.
    step_tokens: Option<u64>,
    leg: ActiveLeg,
    /// What was offered before the engine was asked.
    offered: Option<TransferMetadata>,
    rest: oneshot::Sender<Vec<PrefillFrame>>,
}

/// What the engine offers before it is asked, and the ticket for it.
fn offer<E: Engine>(
    core: &Core<E>,
    arrived: &Arrived<PrefillCall>,
    attached: &Attached,
    open: &OpenLeg,
) -> Option<(TransferMetadata, Box<Ticket>)> {
    let Offer { metadata, lease } = core.engine.offer()?;
    let draft = draft(
        core,
        arrived,
        &attached.incarnation,
        metadata.clone(),
        lease,
    );
    Some((
        metadata,
        Box::new(open.offer(draft, lease, wanted(arrived))),
    ))
}

/// A ticket's facts, as far as they are known before its prefill.
fn draft<E: Engine>(
    core: &Core<E>,
    arrived: &Arrived<PrefillCall>,
    incarnation: &Incarnation,
    metadata: TransferMetadata,
    lease: Duration,
) -> Draft {
    Draft {
        id: arrived.call.ticket.clone(),
        prefill: core.worker.clone(),
        incarnation: incarnation.clone(),
        decode: arrived.call.decode.clone(),
        request_digest: arrived.request.digest(),
        prompt_tokens: None,
        bytes: None,
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        metadata,
    }
}

fn wanted(arrived: &Arrived<PrefillCall>) -> Wanted {
    let call = &arrived.call;
    Wanted {
        decode_at: call.decode_at.clone(),
        router: call.router.clone(),
        until: arrived.deadline,
    }
}

/// Why a leg has no handoff to offer.
struct Failure {
    error: Error,
    answer: Option<EngineAnswer>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            answer: None,
        }
    }
}

impl<E: Engine> Running<E> {
    async fn run(mut self, open: OpenLeg) {
        let frames = match self.ask_engine(open).await {
            Ok((ticket, usage, outcome)) => {
                self.leg.first_token();
                self.leg.end(None);
                self.core
                    .metrics
                    .handoff_bytes
                    .inc_by(ticket.as_ref().and_then(|ticket| ticket.bytes).unwrap_or(0));
                let ready = ticket.map(|ticket| PrefillFrame::Ready {
                    ticket: Box::new(ticket),
                });
                let done = PrefillFrame::Done { usage, outcome };
                ready.into_iter().chain([done]).collect()
            }
            Err(Failure { error, answer }) => {
                tracing::info!(kind = %error.kind, %error, "prefill failed");
                self.leg.end(Some(error.kind));
                vec![PrefillFrame::Failed { error, answer }]
            }
        };
        // A ticket that nobody takes is given up at once.
        if let Err(untold) = self.rest.send(frames)
            && let Some(id) = ticket_in(&untold)
        {
            self.core.ledger.withdraw(id);
        }
    }

    async fn ask_engine(
        &mut self,
        mut open: OpenLeg,
    ) -> Result<(Option<Ticket>, baton_proto::call::PrefillUsage, Outcome), Failure> {
        let terms = self.leg.terms(&self.core, &self.arrived.call.request);
        let engine = &self.core.engine;
        let body = engine.prefill_body(&self.arrived.request, self.offered.as_ref(), terms);
        let asked = if self.offered.is_some() {
            self.offered_head(&open, body).await
        } else {
            open.asked(self.unread());
            self.head(&open, body).await
        };
        let response = asked.inspect_err(|error| {
            if error.retry == Retry::Safe {
                open.holds_nothing();
            }
        })?;
        let (head, body) = response.into_parts();
        let content_type = head
            .headers
            .get(CONTENT_TYPE_HEADER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let bytes = read_limited(body, MAX_ANSWER, ANSWER_TIME)
            .await
            .map_err(|bad| self.unreadable(&open, &bad))?;
        if head.status == StatusCode::OK {
            return self.book(open, &bytes);
        }
        open.holds_nothing();
        match head.status.as_u16() {
            status if self.is_judgement(status, &bytes) => {
                let message = baton_proto::error::openai_message(&bytes)
                    .unwrap_or_else(|| "no reason given".to_owned());
                let error = Error::new(
                    ErrorKind::EngineRejected,
                    Source::Client,
                    Stage::Prefill,
                    message,
                );
                Err(Failure {
                    error,
                    answer: Some(EngineAnswer {
                        status,
                        content_type,
                        body: bytes,
                    }),
                })
            }
            status => Err(engine_failed(Stage::Prefill, status, &bytes).into()),
        }
    }

    /// Waits for the head of the engine's answer, as long as somebody wants it.
    async fn head(&mut self, open: &OpenLeg, body: String) -> Result<Response<Incoming>, Error> {
        let mut sent = std::pin::pin!(send(&self.core, &self.arrived, body, LONGEST_LEG));
        let deadline = self.arrived.deadline;
        let gives_up = tokio::select! {
            biased;
            response = &mut sent => return response,
            () = open.released() => cancelled("it was released"),
            () = self.rest.closed() => cancelled("its router went away"),
            () = tokio::time::sleep_until(deadline) => out_of_time(),
        };
        let rest = tokio::time::timeout(self.patience(), sent);
        rest.await.unwrap_or(Err(gives_up))
    }

    /// The same for a leg whose ticket is out already: a decode engine may be fetching, so it goes on until the ledger has seen
    /// to that.
    async fn offered_head(
        &mut self,
        open: &OpenLeg,
        body: String,
    ) -> Result<Response<Incoming>, Error> {
        let mut unanswered = Unanswered::new(&self.core, &self.arrived.call.request);
        let sent = send(&self.core, &self.arrived, body, LONGEST_LEG)
            .inspect_ok(|_| unanswered.answered());
        let mut sent = std::pin::pin!(sent);
        let unwanted = tokio::select! {
            biased;
            response = &mut sent => return response,
            () = open.released() => cancelled("it was released"),
            () = self.rest.closed() => cancelled("its router went away"),
            () = tokio::time::sleep_until(self.arrived.deadline) => out_of_time(),
            () = self.core.closing.cancelled() => return Err(cancelled("its sidecar ends")),
        };
        self.core.ledger.release(&self.arrived.call.ticket);
        tokio::select! {
            biased;
            response = &mut sent => return response,
            () = open.released() => {}
            () = self.core.closing.cancelled() => return Err(unwanted),
        }
        abort(&self.core, &self.arrived.call.request).await;
        match tokio::time::timeout(DROPPED, sent).await {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(answer),
            _ => Err(unwanted),
        }
    }

    /// How long to wait for an answer that nobody wants any more, to learn what is held.
    fn patience(&self) -> Duration {
        let tokens = self.arrived.call.uncached_tokens.unwrap_or(0);
        self.core
            .pace
            .patience(tokens, self.step_tokens, self.leg.elapsed())
    }

    /// What the engine holds if its answer is not read.
    fn unread(&self) -> Option<Unread> {
        let PrefillCall { request, route, .. } = &self.arrived.call;
        self.core.unread(request, *route, &self.incarnation)
    }

    /// An answer that began and cannot be read.
    fn unreadable(&self, open: &OpenLeg, bad: &BadBody) -> Failure {
        self.not_read(open);
        engine_broke_off(Stage::Prefill, &bad.to_string()).into()
    }

    /// The leg ends, and KV may stay held until its lease ends, unless it is known by its name, or the leg itself holds it.
    fn not_read(&self, open: &OpenLeg) {
        if self.offered.is_none() && !open.is_known() {
            self.core.metrics.tickets.stranded.inc();
        }
    }

    fn is_judgement(&self, status: u16, answer: &[u8]) -> bool {
        answer.len() <= MAX_JUDGEMENT && self.core.engine.is_judgement(status, answer)
    }

    /// Books what the engine holds now.
    fn book(
        &self,
        open: OpenLeg,
        answer: &Bytes,
    ) -> Result<(Option<Ticket>, baton_proto::call::PrefillUsage, Outcome), Failure> {
        let engine = &self.core.engine;
        let read = engine.read_prefill(answer).and_then(|read| {
            let ours = engine.is_answer_to(answer, &self.arrived.call.request);
            ours.then_some(read)
                .ok_or_else(|| answers_another(Stage::Prefill))
        });
        // An answer that makes no sense may still mean KV that is held.
        match read.inspect_err(|_| self.not_read(&open))? {
            Prefilled::Handoff { usage, kv } => {
                let cached = usage.cached_tokens.unwrap_or(0);
                let computed = usage.prompt_tokens.saturating_sub(cached);
                self.core.pace.learn(computed.into(), self.leg.elapsed());
                let known = draft(
                    &self.core,
                    &self.arrived,
                    &self.incarnation,
                    kv.metadata,
                    kv.lease,
                );
                let draft = Draft {
                    prompt_tokens: Some(usage.prompt_tokens),
                    bytes: kv.bytes,
                    ..known
                };
                let ticket = open.hold(draft, kv.lease, wanted(&self.arrived));
                Ok((Some(ticket), usage, Outcome::Length))
            }
            Prefilled::HandedOver { usage } => {
                open.handed_over();
                Ok((None, usage, Outcome::Length))
            }
            Prefilled::Ended { usage, kv } => {
                if let Some(kv) = kv {
                    open.leave(kv.metadata, self.incarnation.clone(), kv.lease);
                }
                Ok((None, usage, Outcome::Ended))
            }
        }
    }
}

fn out_of_time() -> Error {
    let message = "the engine did not finish the prefill in time";
    Error::new(ErrorKind::Timeout, Source::Engine, Stage::Prefill, message)
        .retry(Retry::AfterCancel)
}

fn cancelled(why: &str) -> Error {
    Error::new(
        ErrorKind::Cancelled,
        Source::Router,
        Stage::Prefill,
        format!("the prefill was cancelled: {why}"),
    )
}

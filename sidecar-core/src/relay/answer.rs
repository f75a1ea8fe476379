//! Decode and local legs: checked, sent, and answered with the engine's own response.
//!
//! The head of the answer leaves only when the engine has shown that it has one: the first token of a stream, the whole
//! of a unary answer. Until then every failure is a clear error that the router can recover from.

use std::sync::Arc;

use baton_daemon::http::{BadBody, Body, full, is_event_stream, read_limited};
use baton_proto::call::{DecodeCall, GenerateCall};
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;
use tracing::Instrument;

use super::abort::Unanswered;
use super::leg::{
    ActiveLeg, Arrived, Call, answers_another, engine_broke_off, engine_failed, send, too_late,
};
use super::stream;
use super::vigil::Vigil;
use crate::core::Core;
use crate::engine::Engine;

/// Largest unary answer.
const MAX_ANSWER: usize = 256 << 20;

/// A decode leg: the ticket is checked, used up, and then the engine is asked.
pub async fn decode<E: Engine>(
    core: Arc<Core<E>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let arrived: Arrived<DecodeCall> = Arrived::read(request, core.args.max_body()).await?;
    let received = Instant::now();
    let attached = core.ready(Stage::Decode)?;
    if !attached.info.role.decodes() {
        return Err(refused(
            ErrorKind::Incompatible,
            "this worker takes no decode legs",
        ));
    }
    check(&core, &arrived)?;
    let mut leg = ActiveLeg::enter(&core, &arrived).await?;
    let ticket = &arrived.call.ticket;
    let waited = u64::try_from(received.elapsed().as_millis()).unwrap_or(u64::MAX);
    if waited >= ticket.lease_remaining_ms {
        return Err(refused(
            ErrorKind::LeaseExpired,
            "the ticket's lease is over",
        ));
    }
    let terms = leg.terms(&core, &arrived.call.request);
    let body = core.engine.decode_body(&arrived.request, ticket, terms)?;
    let vigil = Vigil::begin(&core, &arrived.call).await?;
    let using = core.used.use_once(ticket)?;
    vigil.watch(&using);
    leg.uses(using);
    relay(core, arrived, leg, vigil, body).await
}

/// A local leg: one engine does it all.
pub async fn generate<E: Engine>(
    core: Arc<Core<E>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let arrived: Arrived<GenerateCall> = Arrived::read(request, core.args.max_body()).await?;
    core.ready(Stage::Generate)?;
    let mut leg = ActiveLeg::enter(&core, &arrived).await?;
    let terms = leg.terms(&core, &arrived.call.request);
    let body = core.engine.local_body(&arrived.request, terms);
    relay(core, arrived, leg, Vigil::none(), body).await
}

/// Whether a ticket may be used here for these bytes at all.
fn check<E: Engine>(core: &Core<E>, arrived: &Arrived<DecodeCall>) -> Result<(), Error> {
    let ticket: &Ticket = &arrived.call.ticket;
    let refuse = |message: &str| Err(refused(ErrorKind::TicketRefused, message));
    if !ticket.is_genuine(&core.token) {
        return refuse("the ticket's seal does not fit: it was altered, or it is of another fleet");
    }
    if ticket.decode != core.worker {
        return refuse("the ticket is claimed for another worker");
    }
    if ticket.request_digest != arrived.request.digest() {
        return refuse("the ticket is for another request");
    }
    Ok(())
}

/// The engine has not seen the ticket: it may be claimed for another worker.
fn refused(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, Source::Router, Stage::Decode, message).retry(Retry::Safe)
}

async fn relay<E: Engine, C: Call>(
    core: Arc<Core<E>>,
    arrived: Arrived<C>,
    mut leg: ActiveLeg,
    mut vigil: Vigil<E>,
    body: String,
) -> Result<Response<Body>, Error> {
    let span = tracing::info_span!("leg", stage = %C::STAGE, request = %arrived.call.request(), trace = %arrived.trace.trace_id());
    let revoked = leg.revocation();
    let answer = async {
        let unanswered = Unanswered::new(&core, arrived.call.request());
        let response = send(&core, &arrived, body, arrived.time_left()).await?;
        let answer = answer(&core, &arrived, response, &mut leg, unanswered).await;
        if leg.has_fetched() && !answer.as_ref().is_ok_and(Answer::has_tokens) {
            vigil.unfetched();
        }
        answer
    };
    let answer = revoked.run_until_cancelled(answer.instrument(span)).await;
    let answer = match answer.unwrap_or_else(|| Err(was_revoked(C::STAGE))) {
        Ok(answer) if answer.has_tokens() => vigil.settle().await.map(|()| answer),
        other => other,
    };
    match answer {
        Ok(Answer::Whole(response)) => {
            leg.end(None);
            Ok(response)
        }
        Ok(Answer::Stream(content_type, committed)) => {
            leg.first_token();
            let mut response = Response::new(committed.into_body(leg));
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            Ok(response)
        }
        Err(error) => {
            tracing::info!(stage = %C::STAGE, kind = %error.kind, %error, "leg failed");
            leg.end(Some(error.kind));
            Err(error)
        }
    }
}

enum Answer<E: Engine> {
    Whole(Response<Body>),
    Stream(HeaderValue, stream::Committed<E>),
}

impl<E: Engine> Answer<E> {
    /// It is no judgement on the request.
    fn has_tokens(&self) -> bool {
        match self {
            Self::Whole(response) => response.status().is_success(),
            Self::Stream(..) => true,
        }
    }
}

async fn answer<E: Engine, C: Call>(
    core: &Arc<Core<E>>,
    arrived: &Arrived<C>,
    response: Response<Incoming>,
    leg: &mut ActiveLeg,
    mut unanswered: Unanswered<E>,
) -> Result<Answer<E>, Error> {
    let (head, body) = response.into_parts();
    let status = head.status;
    let content_type = head.headers.get(CONTENT_TYPE).cloned();
    let stream = content_type
        .as_ref()
        .filter(|value| status == 200 && is_event_stream(value));
    if let Some(why) = unasked(&head, stream.is_some(), &arrived.request) {
        return Err(engine_broke_off(C::STAGE, why));
    }
    if let Some(content_type) = stream {
        let committed = stream::commit(core, arrived, body, leg, unanswered).await?;
        return Ok(Answer::Stream(content_type.clone(), committed));
    }
    let read = read_limited(body, MAX_ANSWER, arrived.time_left()).await;
    let bytes = read.map_err(|bad| {
        let error = engine_broke_off(C::STAGE, &bad.to_string());
        match bad {
            BadBody::TooSlow(_) => too_late(error),
            BadBody::TooLarge(_) | BadBody::Broken(_) => error,
        }
    })?;
    leg.fetched();
    unanswered.answered();
    judge(core, arrived, status.as_u16(), &bytes)?;
    if status.is_success() {
        leg.first_token();
    }
    let mut whole = Response::new(full(bytes));
    *whole.status_mut() = status;
    if let Some(content_type) = content_type {
        whole.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    Ok(Answer::Whole(whole))
}

/// Whether a whole answer is one to this request, or the engine's judgement on it.
fn judge<E: Engine, C: Call>(
    core: &Core<E>,
    arrived: &Arrived<C>,
    status: u16,
    bytes: &[u8],
) -> Result<(), Error> {
    let broke_off = |why: &str| Err(engine_broke_off(C::STAGE, why));
    match (status, arrived.request.route()) {
        (200..300, Route::PassThrough(_)) if bytes.is_empty() => broke_off("was empty"),
        (200..300, Route::PassThrough(_)) => Ok(()),
        (200, _) => match core.engine.judge_answer(bytes) {
            Err(why) => broke_off(&why),
            Ok(()) if !core.engine.names_answers(&arrived.request) => Ok(()),
            Ok(()) if core.engine.is_answer_to(bytes, arrived.call.request()) => Ok(()),
            Ok(()) => Err(answers_another(C::STAGE)),
        },
        (status, _) if core.engine.is_judgement(status, bytes) => Ok(()),
        (400.., _) => Err(engine_failed(C::STAGE, status, bytes)),
        _ => broke_off(&format!("had the status {status}")),
    }
}

/// Why an answer is not of the kind that was asked for, and a client could make nothing of it.
fn unasked(
    head: &http::response::Parts,
    stream: bool,
    request: &ClientRequest,
) -> Option<&'static str> {
    let coded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if head.headers.get_all(CONTENT_ENCODING).iter().any(coded) {
        return Some("has a content-encoding, and none was asked for");
    }
    if head.status != 200 || matches!(request.route(), Route::PassThrough(_)) {
        return None;
    }
    match (request.stream(), stream) {
        (Some(true), false) => Some("is no stream, and one was asked for"),
        (Some(false), true) => Some("is a stream, and none was asked for"),
        _ => None,
    }
}

fn was_revoked(stage: Stage) -> Error {
    let message = "the ticket was revoked while it was used";
    Error::new(ErrorKind::Cancelled, Source::Sidecar, stage, message).retry(Retry::AfterCancel)
}

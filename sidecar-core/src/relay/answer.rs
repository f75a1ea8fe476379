//! Decode and local legs: checked, sent, and answered with the engine's own response.
//!
//! The head of the answer leaves only when the engine has shown that it has one: the first token of a stream, the whole
//! of a unary answer. Until then every failure is a clear error that the router can recover from.

use std::sync::Arc;

use baton_daemon::http::{Body, full, read_limited};
use baton_proto::call::{DecodeCall, GenerateCall};
use baton_proto::route::Route;
use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;
use tracing::Instrument;

use super::leg::{ActiveLeg, Arrived, Call, engine_broke_off, engine_failed, send};
use super::stream;
use crate::core::Core;
use crate::engine::{Engine, Leg};

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
    let leg = ActiveLeg::enter(&core, &arrived).await?;
    let ticket = &arrived.call.ticket;
    let waited = u64::try_from(received.elapsed().as_millis()).unwrap_or(u64::MAX);
    if waited >= ticket.lease_remaining_ms {
        return Err(refused(
            ErrorKind::LeaseExpired,
            "the ticket's lease is over",
        ));
    }
    let quarantine = core.quarantine_name();
    let engine_leg = Leg {
        request: &arrived.call.request,
        quarantine: quarantine.as_ref().map(|name| name.as_str()),
    };
    let body = core
        .engine
        .decode_body(&arrived.request, ticket, engine_leg)?;
    core.used.use_once(ticket)?;
    relay(core, arrived, leg, body).await
}

/// A local leg: one engine does it all.
pub async fn generate<E: Engine>(
    core: Arc<Core<E>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let arrived: Arrived<GenerateCall> = Arrived::read(request, core.args.max_body()).await?;
    core.ready(Stage::Generate)?;
    let leg = ActiveLeg::enter(&core, &arrived).await?;
    let quarantine = core.quarantine_name();
    let engine_leg = Leg {
        request: &arrived.call.request,
        quarantine: quarantine.as_ref().map(|name| name.as_str()),
    };
    let body = core.engine.local_body(&arrived.request, engine_leg);
    relay(core, arrived, leg, body).await
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
    body: String,
) -> Result<Response<Body>, Error> {
    let span = tracing::info_span!("leg", stage = %C::STAGE, request = %arrived.call.request(), trace = %arrived.trace.trace_id());
    let answer = async {
        let response = send(&core, &arrived, body).await;
        match response {
            Ok(response) => answer(&core, &arrived, response, &mut leg).await,
            Err(error) => Err(error),
        }
    };
    match answer.instrument(span).await {
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

enum Answer<E> {
    Whole(Response<Body>),
    Stream(HeaderValue, stream::Committed<E>),
}

async fn answer<E: Engine, C: Call>(
    core: &Arc<Core<E>>,
    arrived: &Arrived<C>,
    response: Response<Incoming>,
    leg: &mut ActiveLeg,
) -> Result<Answer<E>, Error> {
    let (head, body) = response.into_parts();
    let status = head.status;
    let content_type = head.headers.get(CONTENT_TYPE).cloned();
    if let Some(content_type) = content_type
        .clone()
        .filter(|value| status == 200 && is_event_stream(value))
    {
        let committed = stream::commit(
            core,
            arrived.request.route(),
            body,
            leg.stage(),
            arrived.deadline,
        )
        .await?;
        return Ok(Answer::Stream(content_type, committed));
    }
    let read = read_limited(body, MAX_ANSWER, arrived.time_left()).await;
    let bytes = read.map_err(|bad| engine_broke_off(C::STAGE, &bad.to_string()))?;
    if status.is_server_error() {
        return Err(engine_failed(C::STAGE, status.as_u16(), &bytes));
    }
    if status.is_success() {
        match arrived.request.route() {
            Route::PassThrough(_) if bytes.is_empty() => {
                return Err(engine_broke_off(C::STAGE, "was empty"));
            }
            Route::PassThrough(_) => {}
            Route::ChatCompletions | Route::Completions => {
                let judged = core.engine.judge_answer(&bytes);
                judged.map_err(|why| engine_broke_off(C::STAGE, &why))?;
            }
        }
        leg.first_token();
    } else if !status.is_client_error() {
        return Err(engine_broke_off(
            C::STAGE,
            &format!("had the status {status}"),
        ));
    }
    let mut whole = Response::new(full(bytes));
    *whole.status_mut() = status;
    if let Some(content_type) = content_type {
        whole.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    Ok(Answer::Whole(whole))
}

fn is_event_stream(content_type: &HeaderValue) -> bool {
    content_type
        .as_bytes()
        .to_ascii_lowercase()
        .starts_with(b"text/event-stream")
}

//! The sidecar's HTTP surface. Everything but the probes is behind the fleet's token.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{
    self as daemon_http, BadBody, Body, Handler, method_not_allowed, read_limited,
};
use baton_daemon::metrics::Registry;
use baton_proto::call::{Claim, Release, path};
use baton_proto::link::MeasureLink;
use baton_proto::model::Tokens;
use baton_proto::watch::SidecarState;
use baton_proto::{Error, ErrorKind, Incarnation, Retry, Source, Stage, TicketId, frame};
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use crate::core::Core;
use crate::engine::Engine;
use crate::relay::{answer, leg, prefill};
use crate::{link, watch};

/// Longest the engine may take to show which life it is in, when a handoff is settled.
const CONFIRM_TIME: Duration = Duration::from_secs(2);

/// Largest request that the engine is asked to tokenize.
const MOST_TOKENIZED: usize = 4 << 20;

/// Longest that reading such a request may take.
const TOKENIZE_TIME: Duration = Duration::from_secs(5);

/// Answers a sidecar's requests.
pub struct Surface<E> {
    /// The shared state.
    pub core: Arc<Core<E>>,
    /// What `/metrics` shows.
    pub registry: Registry,
}

impl<E: Engine> Handler for Surface<E> {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        match self.answer(request).await {
            Ok(response) => response,
            Err(error) => daemon_http::error(&error),
        }
    }
}

impl<E: Engine> Surface<E> {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let core = Arc::clone(&self.core);
        let path = request.uri().path().to_owned();
        let method = match path.as_str() {
            "/livez" | "/readyz" | "/metrics" | path::WATCH | path::MODEL_FILES | path::LINK => {
                Method::GET
            }
            _ => Method::POST,
        };
        if path.starts_with("/baton/")
            && !core
                .token
                .admits(request.headers().get(AUTHORIZATION).map(AsRef::as_ref))
        {
            let message = "this needs the fleet's token as a bearer token";
            return Err(Error::new(
                ErrorKind::Unauthorized,
                Source::Client,
                Stage::Request,
                message,
            ));
        }
        let ticket_call = path.strip_prefix(path::TICKETS);
        let known = ticket_call.is_some() || KNOWN.contains(&path.as_str());
        if known && *request.method() != method {
            return Ok(method_not_allowed(if method == Method::GET {
                "GET"
            } else {
                "POST"
            }));
        }
        match path.as_str() {
            "/livez" => Ok(daemon_http::json(StatusCode::OK, &json!({"alive": true}))),
            "/readyz" => Ok(self.ready()),
            "/metrics" => Ok(self.registry.answer()),
            path::WATCH => {
                let start = watch::Start::of_query(request.uri().query());
                Ok(watch::stream(&core, start))
            }
            path::PREFILL => prefill::prefill(core, request).await,
            path::DECODE => answer::decode(core, request).await,
            path::GENERATE => answer::generate(core, request).await,
            path::MODEL_FILES => self.model_files(),
            path::TOKENIZE => self.tokenize(request).await,
            path::LINK => {
                let offer = link::offer(&core).await?;
                Ok(Response::new(daemon_http::full(frame::to_bytes(&offer))))
            }
            path::MEASURE_LINK => {
                let wanted: MeasureLink = small(request).await?;
                let measured = link::measure(&core, wanted).await?;
                Ok(Response::new(daemon_http::full(frame::to_bytes(&measured))))
            }
            path::QUARANTINE => {
                core.quarantine();
                Ok(leg::done())
            }
            path::DRAIN => {
                core.drain();
                Ok(daemon_http::json(
                    StatusCode::ACCEPTED,
                    &json!({"state": core.state()}),
                ))
            }
            _ => match ticket_call {
                Some(call) => self.ticket(call, request).await,
                None => Err(not_found(&path)),
            },
        }
    }

    fn ready(&self) -> Response<Body> {
        let state = self.core.state();
        let status = if state == SidecarState::Ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        daemon_http::json(status, &json!({"state": state, "worker": self.core.worker}))
    }

    fn model_files(&self) -> Result<Response<Body>, Error> {
        let files = self.core.engine.model_files();
        let files = files.ok_or_else(|| not_found("tokenizer"))?;
        Ok(Response::new(daemon_http::full(frame::to_bytes(&*files))))
    }

    async fn tokenize(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let body = read_limited(request.into_body(), MOST_TOKENIZED, TOKENIZE_TIME);
        let body = body.await.map_err(BadBody::into_request_error)?;
        let body = std::str::from_utf8(&body).map_err(|bad| bad_call(&bad.to_string()))?;
        let tokens = self.core.engine.tokenize(body).await?;
        let tokens = frame::to_bytes(&Tokens { tokens });
        Ok(Response::new(daemon_http::full(tokens)))
    }

    async fn ticket(
        &self,
        call: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Error> {
        let ledger = &self.core.ledger;
        let Some((id, verb)) = call.split_once('/') else {
            return Err(not_found(call));
        };
        let id: TicketId = id
            .parse()
            .map_err(|bad: baton_proto::id::BadId| bad_call(&bad.to_string()))?;
        match verb {
            "release" => {
                self.release(&id, request).await?;
                Ok(leg::done())
            }
            "settle" => {
                ledger.is_claimed(&id)?;
                let settled = ledger.settle(&id, &self.confirm().await?);
                self.seen(settled)
            }
            "confirm" => self.seen(ledger.confirm(&id, &self.confirm().await?)),
            "claim" => {
                let claim: Claim = small(request).await?;
                let ticket = ledger.claim(&id, claim.decode, claim.decode_at)?;
                Ok(Response::new(daemon_http::full(frame::to_bytes(&ticket))))
            }
            "revoke" => {
                let revoked = self.core.used.revoke(&id).await?;
                Ok(Response::new(daemon_http::full(frame::to_bytes(&revoked))))
            }
            _ => Err(not_found(verb)),
        }
    }

    async fn release(&self, id: &TicketId, request: Request<Incoming>) -> Result<(), Error> {
        let core = &self.core;
        let body = read_limited(request.into_body(), frame::MAX_FRAME, CONFIRM_TIME).await;
        let body = body.map_err(BadBody::into_request_error)?;
        if body.is_empty() {
            core.ledger.release(id);
            return Ok(());
        }
        let release: Release =
            frame::from_bytes(&body).map_err(|bad| bad_call(&bad.to_string()))?;
        let ledger = &core.ledger;
        match release {
            Release::Ticket { ticket, decode_at } => {
                let is_ours = ticket.id == *id && ticket.prefill == core.worker;
                if !is_ours || !ticket.is_genuine(&core.token) {
                    return Err(bad_call("the ticket is another one than is released"));
                }
                if ticket.incarnation == self.life()? {
                    ledger.adopt(*ticket, decode_at);
                    return Ok(());
                }
            }
            // A former life of this sidecar may have asked the engine.
            Release::Leg {
                request,
                route,
                epoch,
            } if epoch != core.epoch && !ledger.knows(id) => {
                match core.unread(&request, route, &self.life()?) {
                    Some(unread) => ledger.adopt_unread(id, unread),
                    None => core.engine.abort(&request).await?,
                }
            }
            Release::Leg { .. } | Release::Unknown => {}
        }
        ledger.release(id);
        Ok(())
    }

    /// Which life the engine was last seen in.
    fn life(&self) -> Result<Incarnation, Error> {
        self.core.incarnation().ok_or_else(|| {
            let message = "the engine has not introduced itself yet";
            Error::new(
                ErrorKind::Unreachable,
                Source::Engine,
                Stage::Handoff,
                message,
            )
        })
    }

    /// An engine that turned out to be in another life is looked at anew.
    fn seen(&self, confirmed: Result<(), Error>) -> Result<Response<Body>, Error> {
        let restarted = |error: &Error| error.kind == ErrorKind::IncarnationChanged;
        if confirmed.as_ref().is_err_and(restarted) {
            self.core.engine_changed();
        }
        confirmed.map(|()| leg::done())
    }

    /// Which life the engine is in now. An engine that does not show it in time confirms nothing.
    async fn confirm(&self) -> Result<Incarnation, Error> {
        let read = tokio::time::timeout(CONFIRM_TIME, self.core.engine.incarnation());
        read.await.unwrap_or_else(|_| {
            let message = "the prefill engine did not confirm that it still holds the KV";
            Err(
                Error::new(ErrorKind::Timeout, Source::Engine, Stage::Handoff, message)
                    .retry(Retry::No),
            )
        })
    }
}

const KNOWN: &[&str] = &[
    "/livez",
    "/readyz",
    "/metrics",
    path::WATCH,
    path::PREFILL,
    path::DECODE,
    path::GENERATE,
    path::MODEL_FILES,
    path::TOKENIZE,
    path::LINK,
    path::MEASURE_LINK,
    path::QUARANTINE,
    path::DRAIN,
];

/// A small body.
async fn small<T: serde::de::DeserializeOwned>(request: Request<Incoming>) -> Result<T, Error> {
    let body = read_limited(request.into_body(), 4096, CONFIRM_TIME).await;
    let body = body.map_err(BadBody::into_request_error)?;
    frame::from_bytes(&body).map_err(|bad| bad_call(&bad.to_string()))
}

fn bad_call(why: &str) -> Error {
    Error::new(ErrorKind::BadRequest, Source::Router, Stage::Handoff, why)
}

fn not_found(what: &str) -> Error {
    let shown: String = what.chars().take(100).collect();
    Error::new(
        ErrorKind::NotFound,
        Source::Client,
        Stage::Request,
        format!("there is no {shown} here"),
    )
}

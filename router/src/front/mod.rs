//! The front: what an OpenAI client sees. Requests come in through bounds, answers go out as the engines gave them.

mod relay;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use baton_daemon::http::{self as daemon_http, Body, Handler, method_not_allowed, read_limited};
use baton_daemon::metrics::{Counted, Registry};
use baton_daemon::trace::TraceContext;
use baton_proto::call::path;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;
use tracing::Instrument;

use crate::admin;
use crate::planner::Wish;
use crate::serve::{Attempt, serve};
use crate::state::Router;

/// A client asks with it to be told how its request was served.
const EXPLAIN: HeaderName = HeaderName::from_static("baton-explain");

/// A trusted gateway says with it who is to serve: `local=WORKER` or `split=PREFILL,DECODE`.
const ROUTE: HeaderName = HeaderName::from_static("baton-route");

/// Kept for logs; it never reaches an engine.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answers a router's requests.
pub struct Front {
    /// What all requests share.
    pub router: Arc<Router>,
    /// What `/metrics` shows.
    pub registry: Registry,
}

/// A request that is to be served.
struct Asked<'a> {
    request: &'a ClientRequest,
    trace: &'a TraceContext,
    wish: &'a Wish,
    session: Option<HeaderValue>,
    arrived: Instant,
    /// The client wants to know how.
    explain: bool,
}

impl Handler for Front {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        match self.answer(request).await {
            Ok(response) => response,
            Err(error) => daemon_http::error(&error),
        }
    }
}

impl Front {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let path = request.uri().path().to_owned();
        let get = *request.method() == Method::GET;
        let post = *request.method() == Method::POST;
        match path.as_str() {
            "/livez" | "/readyz" | "/metrics" | "/fleet" | "/debug/decisions" | "/v1/models"
                if !get =>
            {
                Ok(method_not_allowed("GET"))
            }
            path::REGISTER | "/v1/plan" if !post => Ok(method_not_allowed("POST")),
            "/livez" => Ok(admin::live()),
            "/readyz" => Ok(admin::ready(&self.router)),
            "/metrics" => Ok(self.registry.answer()),
            "/fleet" => {
                self.check_token(request.headers())?;
                Ok(admin::fleet(&self.router))
            }
            "/debug/decisions" => {
                self.check_token(request.headers())?;
                Ok(admin::decisions(&self.router))
            }
            path::REGISTER => {
                self.check_token(request.headers())?;
                admin::register(&self.router, request).await
            }
            _ => {
                // A gateway that chooses workers must be one of the fleet's own.
                if request.headers().contains_key(ROUTE) {
                    self.check_token(request.headers())?;
                } else {
                    self.check_api_key(request.headers())?;
                }
                self.client(&path, request).await
            }
        }
    }

    async fn client(
        &self,
        path: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Error> {
        if path == "/v1/models" {
            return Ok(admin::models(&self.router));
        }
        if let Some(model) = path.strip_prefix("/v1/models/") {
            return if request.method() == Method::GET {
                admin::model(&self.router, model)
            } else {
                Ok(method_not_allowed("GET"))
            };
        }
        // A dry run is told from the body which of the two routes it is about.
        let route = if path == "/v1/plan" {
            Route::ChatCompletions
        } else {
            path.parse()?
        };
        if request.method() != Method::POST {
            return Ok(method_not_allowed("POST"));
        }
        let trace = TraceContext::arriving(request.headers());
        let explain = request.headers().contains_key(EXPLAIN);
        let client_id = request.headers().get(REQUEST_ID).cloned();
        let wish = self.wish(request.headers())?;
        let session = self.session(request.headers());
        let arrived = Instant::now();
        let place = Arc::clone(&self.router.places)
            .try_acquire_owned()
            .map_err(|_| too_many())?;
        let guard = relay::Guard::new(Counted::new(&self.router.metrics.in_flight), place);
        let body = self.body(request).await?;
        if path == "/v1/plan" {
            return admin::plan(&self.router, body).await;
        }
        let request = ClientRequest::new(route, body)?;
        let span = tracing::info_span!(
            "request",
            route = %request.route(),
            trace = %trace.trace_id(),
            client_id = client_id.as_ref().and_then(|value| value.to_str().ok()),
        );
        let asked = Asked {
            request: &request,
            trace: &trace,
            wish: &wish,
            session,
            arrived,
            explain,
        };
        self.serve(asked, guard).instrument(span).await
    }

    fn wish(&self, headers: &HeaderMap) -> Result<Wish, Error> {
        let route = headers
            .get(ROUTE)
            .map(|route| route.to_str().unwrap_or_default());
        let planning = &self.router.planning;
        let session = self.session(headers);
        Ok(Wish {
            route: route.map(str::parse).transpose()?,
            keep: session.and_then(|session| {
                planning
                    .sessions
                    .last(session.as_bytes(), planning.clock.now())
            }),
        })
    }

    /// The session that a request belongs to, if sessions are kept together.
    fn session(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let name = self.router.args.session_header.as_ref()?;
        headers.get(name).cloned()
    }

    async fn body(&self, request: Request<Incoming>) -> Result<bytes::Bytes, Error> {
        check_media(request.headers())?;
        let args = &self.router.args;
        let read = read_limited(request.into_body(), args.max_body(), args.client_timeout()).await;
        read.map_err(daemon_http::BadBody::into_request_error)
    }

    async fn serve(&self, asked: Asked<'_>, guard: relay::Guard) -> Result<Response<Body>, Error> {
        let router = &self.router;
        let facts = router.facts(asked.request).await;
        let deadline = asked.arrived + router.args.request_timeout();
        let attempt = Attempt {
            router,
            request: asked.request,
            facts: &facts,
            trace: asked.trace,
            deadline,
            wish: asked.wish,
            paid: AtomicBool::new(false),
        };
        match serve(&attempt).await {
            Ok(served) => {
                let waited = asked.arrived.elapsed().as_secs_f64();
                router.metrics.first_token(served.how.word(), waited);
                let decision = &served.decision;
                decision.came(|outcome| outcome.first_token = Some(waited));
                if attempt.streams() {
                    let seconds = decision.age(router.planning.clock.now());
                    let trust = served.worker.trust();
                    trust.first_token(decision.first_token(), seconds);
                }
                if let Some(session) = &asked.session {
                    let planning = &router.planning;
                    let (worker, now) = (served.how.computed_by(), planning.clock.now());
                    planning.sessions.note(session.as_bytes(), worker, now);
                }
                relay::answer(router, served, asked.explain, attempt.time_left(), guard).await
            }
            Err(error) => {
                tracing::warn!(kind = %error.kind, stage = %error.stage, %error, "request failed");
                router.metrics.request_ended("none", Some(error.kind));
                Err(error)
            }
        }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Error> {
        let admitted = self
            .router
            .token
            .admits(headers.get(AUTHORIZATION).map(AsRef::as_ref));
        if admitted {
            Ok(())
        } else {
            Err(unauthorized(
                "this needs the fleet's token as a bearer token",
            ))
        }
    }

    fn check_api_key(&self, headers: &HeaderMap) -> Result<(), Error> {
        let keys = &self.router.api_keys;
        let presented = headers.get(AUTHORIZATION).map(AsRef::as_ref);
        // All keys are compared, so that time does not tell which one came close.
        let known = keys
            .iter()
            .fold(false, |known, key| key.is_presented_by(presented) | known);
        if keys.is_empty() || known {
            Ok(())
        } else {
            Err(unauthorized("a valid API key is needed as a bearer token"))
        }
    }
}

/// A body is JSON as it stands, or is not read at all. Many clients do not say what they send: that is taken for JSON.
fn check_media(headers: &HeaderMap) -> Result<(), Error> {
    let is_json = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next();
        essence.is_some_and(|essence| {
            essence
                .trim_ascii()
                .eq_ignore_ascii_case(b"application/json")
        })
    };
    let is_plain = |value: &HeaderValue| {
        value.is_empty() || value.as_bytes().eq_ignore_ascii_case(b"identity")
    };
    let message = if !headers.get_all(CONTENT_TYPE).iter().all(is_json) {
        "the body must be application/json"
    } else if !headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        "the body must be sent as it is, without a content-encoding"
    } else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::UnsupportedMediaType,
        Source::Client,
        Stage::Request,
        message,
    ))
}

fn unauthorized(message: &str) -> Error {
    Error::new(
        ErrorKind::Unauthorized,
        Source::Client,
        Stage::Request,
        message,
    )
}

fn too_many() -> Error {
    let message = "this router serves as many requests as it may; try again soon";
    Error::new(
        ErrorKind::Overloaded,
        Source::Router,
        Stage::Request,
        message,
    )
    .retry(Retry::Safe)
}

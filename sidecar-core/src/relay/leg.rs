//! One leg: reading the router's call, holding a place while it lasts, sending it to the engine.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{BadBody, Body, read_limited};
use baton_daemon::trace::TraceContext;
use baton_proto::call::{DecodeCall, GenerateCall, PrefillCall};
use baton_proto::frame::Envelope;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::{Error, ErrorKind, RequestId, Retry, Source, Stage};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::Permit;
use super::in_flight::InFlightLeg;
use super::progress::Progress;
use super::used::Using;
use crate::core::Core;
use crate::engine::{Engine, Leg};
use crate::metrics::Metrics;
use crate::view::ReportGuard;

/// The header that becomes the engine's request id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest time for a call's body to arrive.
const CALL_TIME: Duration = Duration::from_secs(30);

/// Longest a leg may take at all, whatever the router says.
pub const LONGEST_LEG: Duration = Duration::from_secs(24 * 3600);

/// The part that all calls share.
pub trait Call: serde::Serialize + serde::de::DeserializeOwned {
    /// Which leg this is.
    const STAGE: Stage;
    /// Id of the leg.
    fn request(&self) -> &RequestId;
    /// Route of the client's request.
    fn route(&self) -> Route;
    /// Time left for it.
    fn deadline_ms(&self) -> u64;
    /// Prompt tokens that the engine is expected to compute for it.
    fn uncached_tokens(&self) -> u64;
}

macro_rules! call {
    ($call:ty, $stage:expr, $uncached:expr) => {
        impl Call for $call {
            const STAGE: Stage = $stage;
            fn request(&self) -> &RequestId {
                &self.request
            }
            fn route(&self) -> Route {
                self.route
            }
            fn deadline_ms(&self) -> u64 {
                self.deadline_ms
            }
            fn uncached_tokens(&self) -> u64 {
                let uncached: fn(&Self) -> Option<u64> = $uncached;
                uncached(self).unwrap_or(0)
            }
        }
    };
}

call!(PrefillCall, Stage::Prefill, |call| call.uncached_tokens);
call!(DecodeCall, Stage::Decode, |_| None);
call!(GenerateCall, Stage::Generate, |call| call.uncached_tokens);

/// A call that arrived whole.
#[derive(Debug)]
pub struct Arrived<C> {
    /// Baton's part.
    pub call: C,
    /// The client's request.
    pub request: ClientRequest,
    /// Where it stands in its trace.
    pub trace: TraceContext,
    /// When it must be over.
    pub deadline: Instant,
}

impl<C: Call> Arrived<C> {
    /// Reads a call.
    pub async fn read(request: Request<Incoming>, max_body: usize) -> Result<Self, Error> {
        let trace = TraceContext::arriving(request.headers());
        // The head of a call is small beside the body it comes with.
        let limit = max_body + baton_proto::frame::MAX_FRAME;
        let bytes = read_limited(request.into_body(), limit, CALL_TIME)
            .await
            .map_err(BadBody::into_request_error)?;
        let envelope: Envelope<C> = Envelope::decode(bytes).map_err(|bad| {
            Error::new(
                ErrorKind::Protocol,
                Source::Router,
                C::STAGE,
                format!("the call cannot be read: {bad}"),
            )
        })?;
        let request = ClientRequest::new(envelope.head.route(), envelope.body)?;
        let time = Duration::from_millis(envelope.head.deadline_ms()).min(LONGEST_LEG);
        Ok(Self {
            call: envelope.head,
            request,
            trace,
            deadline: Instant::now() + time,
        })
    }

    /// Time left until the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// A leg that holds a place in the engine. It is counted exactly once, however it ends.
#[derive(Debug)]
pub struct ActiveLeg {
    entry: InFlightLeg,
    _permit: Permit,
    stage: Stage,
    metrics: Metrics,
    ended: bool,
    progress: Arc<Progress>,
    quarantine: Option<Arc<String>>,
    reports: Option<ReportGuard>,
    using: Option<Using>,
}

impl ActiveLeg {
    /// Waits for admission and enters the table.
    pub async fn enter<E: Engine, C: Call>(
        core: &Core<E>,
        arrived: &Arrived<C>,
    ) -> Result<Self, Error> {
        let permit = core.admission.admit(C::STAGE, arrived.time_left()).await?;
        let gauge = core.metrics.in_flight(C::STAGE);
        let entry = core
            .in_flight
            .enter(arrived.call.request(), C::STAGE, &gauge)?
            .computing(arrived.call.uncached_tokens())
            .whole(C::STAGE != Stage::Prefill && arrived.request.stream() != Some(true));
        Ok(Self {
            entry,
            _permit: permit,
            stage: C::STAGE,
            metrics: core.metrics.clone(),
            ended: false,
            progress: Arc::clone(&core.progress),
            quarantine: None,
            reports: None,
            using: None,
        })
    }

    /// How the engine shall see the request, as things stand now.
    pub fn terms<'a, E: Engine>(&'a mut self, core: &Core<E>, request: &'a RequestId) -> Leg<'a> {
        self.quarantine = core.quarantine_name();
        let reports = core.engine.reports_reused() && core.view.wants_reports();
        self.reports = reports.then(|| core.view.ask_for_reports());
        Leg {
            request,
            quarantine: self.quarantine.as_ref().map(|name| name.as_str()),
            report_reused: self.reports.is_some(),
        }
    }

    /// It uses a ticket.
    pub fn uses(&mut self, using: Using) {
        self.using = Some(using);
    }

    /// Cancelled when the leg must end because its ticket was revoked.
    pub fn revocation(&self) -> CancellationToken {
        let using = self.using.as_ref();
        using.map_or_else(CancellationToken::new, Using::revocation)
    }

    /// The engine fetches nothing for it any more.
    pub fn fetched(&mut self) {
        if let Some(using) = self.using.take() {
            using.fetched();
        }
    }

    /// Whether that is so.
    pub fn has_fetched(&self) -> bool {
        self.using.is_none()
    }

    /// For how long it has been in the engine.
    pub fn elapsed(&self) -> Duration {
        self.entry.since().elapsed()
    }

    /// Which leg this is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The engine gave its first token.
    pub fn first_token(&self) {
        let (tokens, took) = (self.entry.computed(), self.entry.since().elapsed());
        self.progress.computed(tokens, took);
        self.metrics.first_token(self.stage, took.as_secs_f64());
    }

    /// The leg ended; `None` is success.
    pub fn end(&mut self, failure: Option<ErrorKind>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.leg_ended(self.stage, failure);
        }
    }
}

impl Drop for ActiveLeg {
    fn drop(&mut self) {
        self.end(Some(ErrorKind::Cancelled));
    }
}

/// Sends a leg's body to the engine and waits up to `time` for the head of its answer.
pub async fn send<E: Engine, C: Call>(
    core: &Arc<Core<E>>,
    arrived: &Arrived<C>,
    body: String,
    time: Duration,
) -> Result<Response<Incoming>, Error> {
    let uri = format!("{}{}", core.engine.base_url(), arrived.request.route());
    let vouched = core.engine.vouch(&body);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(REQUEST_ID, arrived.call.request().as_str())
        .body(baton_daemon::http::full(body))
        .map_err(|error| {
            Error::new(
                ErrorKind::Internal,
                Source::Sidecar,
                C::STAGE,
                error.to_string(),
            )
        })?;
    if let Some(authorization) = core.engine.authorization() {
        request
            .headers_mut()
            .insert(AUTHORIZATION, authorization.clone());
    }
    request.headers_mut().extend(vouched);
    arrived.trace.child().apply(request.headers_mut());
    let sent = core.client.send(request, time).await;
    sent.map_err(|error| error.into_error(Source::Engine, C::STAGE))
}

/// Whether a status is the engine's judgement on the request. Those about credentials and about the moment are not: they
/// say nothing to the client, and another engine may answer.
pub fn is_judgement(status: u16) -> bool {
    matches!(status, 400..500) && !matches!(status, 401 | 403 | 407 | 408 | 425 | 429)
}

/// The error for an engine's answer of 5xx, with the engine's own words.
pub fn engine_failed(stage: Stage, status: u16, body: &[u8]) -> Error {
    let said = baton_proto::error::openai_message(body)
        .unwrap_or_else(|| "without an explanation".to_owned());
    let message = format!("the engine answered {status}: {said}");
    Error::new(ErrorKind::EngineFailed, Source::Engine, stage, message).retry(Retry::AfterCancel)
}

/// A failure inside an answer whose head was good.
pub fn engine_broke_off(stage: Stage, what: &str) -> Error {
    Error::new(
        ErrorKind::EngineFailed,
        Source::Engine,
        stage,
        format!("the engine's answer {what}"),
    )
    .retry(Retry::AfterCancel)
}

/// The same, when it was our deadline that ended it.
pub fn too_late(mut error: Error) -> Error {
    error.kind = ErrorKind::Timeout;
    error
}

/// The connection to the engine is out of step with its requests.
pub fn answers_another(stage: Stage) -> Error {
    let message = "the engine's answer is to another request";
    Error::new(ErrorKind::Protocol, Source::Engine, stage, message).retry(Retry::AfterCancel)
}

/// An empty JSON answer.
pub fn done() -> Response<Body> {
    baton_daemon::http::json(http::StatusCode::OK, &json!({}))
}

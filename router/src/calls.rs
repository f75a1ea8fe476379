//! The router's side of the protocol: calls to sidecars, and the frames they answer.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{
    Body, Client, ClientLimits, Parts, empty, error_of, full, read_limited, small_body,
};
use baton_daemon::trace::TraceContext;
use baton_proto::call::{CONTENT_TYPE, Claim, PrefillCall, Release, path};
use baton_proto::frame::{self, Envelope, FrameReader};
use baton_proto::link::{LinkMeasured, MeasureLink};
use baton_proto::model::{ModelFiles, Tokens};
use baton_proto::request::ClientRequest;
use baton_proto::ticket::Ticket;
use baton_proto::token::FleetToken;
use baton_proto::{Epoch, Error, ErrorKind, Retry, RouterId, Source, Stage, TicketId};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE as CONTENT_TYPE_HEADER};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::fleet::Worker;
use crate::serve::fresh_id;

/// Longest time for a small call: release, settle, claim, quarantine.
const SMALL_CALL: Duration = Duration::from_secs(4);

/// Largest tokenizer files, and longest time to get them.
const MOST_FILES: usize = 256 << 20;
const FILES_TIME: Duration = Duration::from_secs(60);

/// Largest list of tokens.
const MOST_TOKENS: usize = 32 << 20;

/// Longest that the measurement of a link may take.
const MEASURE_TIME: Duration = Duration::from_secs(60);

/// Pause before a release that was not delivered is tried again.
const UNDELIVERED: Duration = Duration::from_millis(500);

/// How long a leg without a ticket is given up for: vLLM's usual lease.
const UNKNOWN_LEASE: Duration = Duration::from_secs(30);

/// Longest wait for a cancellation before the next attempt starts all the same.
const CANCEL: Duration = Duration::from_millis(500);

/// Calls to sidecars.
#[derive(Debug, Clone)]
pub struct Calls {
    client: Client,
    bearer: HeaderValue,
    /// This life of this router.
    router: RouterId,
}

/// Frames of an answer.
#[derive(Debug)]
pub struct FrameStream {
    body: Incoming,
    reader: FrameReader,
    stage: Stage,
}

/// Where a watch stream ended: the next one may go on behind it.
#[derive(Debug, Clone, Copy)]
pub struct Resume {
    /// The sidecar's life.
    pub epoch: Epoch,
    /// Last journal entry that came.
    pub seq: u64,
}

/// A leg's answer: what the engine answered, from its sidecar.
pub type LegAnswer = Response<Incoming>;

impl Calls {
    /// Calls that prove themselves with this token.
    pub fn new(token: &FleetToken) -> Self {
        let limits = ClientLimits {
            connect: Duration::from_secs(2),
            idle: Duration::from_secs(30),
        };
        let mut bearer =
            HeaderValue::try_from(token.bearer()).unwrap_or_else(|_| HeaderValue::from_static(""));
        bearer.set_sensitive(true);
        Self {
            client: Client::new(limits),
            bearer,
            router: fresh_id(),
        }
    }

    /// Who calls.
    pub fn router(&self) -> &RouterId {
        &self.router
    }

    /// Opens a watch stream: from where another one ended, if the sidecar can, or from a snapshot.
    pub async fn watch(
        &self,
        worker: &Worker,
        resume: Option<Resume>,
        time: Duration,
    ) -> Result<FrameStream, Error> {
        let mut url = format!("{}?router={}", worker.url(path::WATCH), self.router);
        if let Some(Resume { epoch, seq }) = resume {
            url = format!("{url}&epoch={}&seq={seq}", epoch.0);
        }
        let request = self.request(Method::GET, &url, Stage::Fleet)?.body(empty());
        let response = self
            .send(built(request, Stage::Fleet)?, time, Stage::Fleet)
            .await?;
        Ok(FrameStream {
            body: response.into_body(),
            reader: FrameReader::default(),
            stage: Stage::Fleet,
        })
    }

    /// The files that decide the tokens of a worker's prompts.
    pub async fn model_files(&self, worker: &Worker) -> Result<ModelFiles, Error> {
        let url = worker.url(path::MODEL_FILES);
        let request = self.request(Method::GET, &url, Stage::Fleet)?.body(empty());
        let request = built(request, Stage::Fleet)?;
        self.whole(request, MOST_FILES, FILES_TIME).await
    }

    /// The tokens that a worker's engine makes of a request.
    pub async fn tokenize(
        &self,
        worker: &Worker,
        body: Bytes,
        time: Duration,
    ) -> Result<Vec<u32>, Error> {
        let url = worker.url(path::TOKENIZE);
        let request = self.request(Method::POST, &url, Stage::Fleet)?;
        let request = built(request.body(full(body)), Stage::Fleet)?;
        let tokens: Tokens = self.whole(request, MOST_TOKENS, time).await?;
        Ok(tokens.tokens)
    }

    /// Has the way between two workers' hosts measured.
    pub async fn measure_link(&self, from: &Worker, to: &Worker) -> Result<LinkMeasured, Error> {
        let wanted = frame::to_bytes(&MeasureLink { from: from.url("") });
        let request = self.request(Method::POST, &to.url(path::MEASURE_LINK), Stage::Fleet)?;
        let request = built(request.body(full(wanted)), Stage::Fleet)?;
        self.whole(request, frame::MAX_FRAME, MEASURE_TIME).await
    }

    /// A small question's whole answer.
    async fn whole<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
        most: usize,
        time: Duration,
    ) -> Result<T, Error> {
        let response = self.send(request, time, Stage::Fleet).await?;
        let read = read_limited(response.into_body(), most, time).await;
        let bytes = read.map_err(|bad| protocol(Stage::Fleet, &format!("the answer {bad}")))?;
        frame::from_bytes(&bytes).map_err(|bad| protocol(Stage::Fleet, &bad.to_string()))
    }

    /// Starts a prefill leg.
    pub async fn prefill<Head: Serialize + DeserializeOwned>(
        &self,
        worker: &Worker,
        head: Head,
        request: &ClientRequest,
        trace: &TraceContext,
        time: Duration,
    ) -> Result<FrameStream, Error> {
        let stage = Stage::Prefill;
        let response = self
            .leg(worker, path::PREFILL, head, request, trace, time, stage)
            .await?;
        if !response.status().is_success() {
            return Err(protocol(
                stage,
                "the sidecar answered a prefill with neither frames nor an error",
            ));
        }
        Ok(FrameStream {
            body: response.into_body(),
            reader: FrameReader::default(),
            stage,
        })
    }

    /// Starts a decode or a local leg; the answer's head comes when the engine has shown that it has an answer.
    #[expect(
        clippy::too_many_arguments,
        reason = "a leg is all of these, and nothing else bundles them"
    )]
    pub async fn leg<Head: Serialize + DeserializeOwned>(
        &self,
        worker: &Worker,
        path: &str,
        head: Head,
        request: &ClientRequest,
        trace: &TraceContext,
        time: Duration,
        stage: Stage,
    ) -> Result<LegAnswer, Error> {
        let envelope = Envelope {
            head,
            body: request.body().clone(),
        };
        let call = self
            .request(Method::POST, &worker.url(path), stage)?
            .header(CONTENT_TYPE_HEADER, CONTENT_TYPE)
            .body(Parts::body(envelope.encode()));
        let mut call = built(call, stage)?;
        trace.child().apply(call.headers_mut());
        self.send(call, time, stage).await
    }

    /// Gives up a ticket, or the prefill that would have produced it.
    pub async fn release(
        &self,
        worker: &Worker,
        id: &TicketId,
        release: &Release,
    ) -> Result<(), Error> {
        let path = format!("{}{id}/release", path::TICKETS);
        let body = frame::to_bytes(release);
        self.small(worker, &path, body).await.map(|_| ())
    }

    /// Moves an unused ticket to another decode worker, or renews it for the same.
    pub async fn claim(
        &self,
        worker: &Worker,
        id: &TicketId,
        decode: &Worker,
    ) -> Result<Ticket, Error> {
        let claim = frame::to_bytes(&Claim {
            decode: decode.id().clone(),
            decode_at: Some(decode.url("")),
        });
        let answer = self
            .small(worker, &format!("{}{id}/claim", path::TICKETS), claim)
            .await?;
        frame::from_bytes(&answer).map_err(|bad| protocol(Stage::Handoff, &bad.to_string()))
    }

    /// KV that reached this worker's engine cannot be trusted.
    pub async fn quarantine(&self, worker: &Worker) -> Result<(), Error> {
        self.small(worker, path::QUARANTINE, Vec::new())
            .await
            .map(|_| ())
    }

    async fn small(&self, worker: &Worker, path: &str, body: Vec<u8>) -> Result<Bytes, Error> {
        let stage = Stage::Handoff;
        let request = self
            .request(Method::POST, &worker.url(path), stage)?
            .body(full(body));
        let response = self.send(built(request, stage)?, SMALL_CALL, stage).await?;
        let read = read_limited(response.into_body(), frame::MAX_FRAME, SMALL_CALL).await;
        read.map_err(|bad| protocol(stage, &bad.to_string()))
    }

    fn request(
        &self,
        method: Method,
        url: &str,
        stage: Stage,
    ) -> Result<http::request::Builder, Error> {
        let uri: http::Uri = url
            .parse()
            .map_err(|_| protocol(stage, "a worker's address is no URL"))?;
        Ok(Request::builder()
            .method(method)
            .uri(uri)
            .header(AUTHORIZATION, self.bearer.clone()))
    }

    /// Sends a call. An error that the sidecar reports is returned as it is; an answer without one is the engine's.
    async fn send(
        &self,
        request: Request<Body>,
        time: Duration,
        stage: Stage,
    ) -> Result<Response<Incoming>, Error> {
        let sent = self.client.send(request, time).await;
        let response = sent.map_err(|error| error.into_error(Source::Sidecar, stage))?;
        if !response
            .headers()
            .contains_key(baton_proto::error::ERROR_HEADER)
        {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = small_body(body).await;
        let reported = error_of(&Response::from_parts(head, ()), &body);
        Err(reported
            .unwrap_or_else(|| protocol(stage, "the sidecar reported an error without a word")))
    }
}

impl FrameStream {
    /// The next frame, within `patience`; `None` at the end of the stream.
    pub async fn next<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<Option<T>, Error> {
        let broken = |why: String| {
            Error::new(ErrorKind::Unreachable, Source::Sidecar, self.stage, why)
                .retry(Retry::AfterCancel)
        };
        let whole = async {
            loop {
                if let Some(frame) = self
                    .reader
                    .next()
                    .map_err(|bad| protocol(self.stage, &bad.to_string()))?
                {
                    return Ok(Some(frame));
                }
                match self.body.frame().await {
                    None => {
                        self.reader
                            .finish()
                            .map_err(|bad| broken(bad.to_string()))?;
                        return Ok(None);
                    }
                    Some(Err(error)) => {
                        return Err(broken(format!("the sidecar's stream broke off: {error}")));
                    }
                    Some(Ok(frame)) => self.reader.push(&frame.into_data().unwrap_or_default()),
                }
            }
        };
        tokio::time::timeout(patience, whole)
            .await
            .unwrap_or_else(|_| {
                let message = format!(
                    "the sidecar said nothing for {:.1} s",
                    patience.as_secs_f64()
                );
                Err(
                    Error::new(ErrorKind::Timeout, Source::Sidecar, self.stage, message)
                        .retry(Retry::AfterCancel),
                )
            })
    }
}

fn built<T>(request: http::Result<T>, stage: Stage) -> Result<T, Error> {
    request.map_err(|error| {
        Error::new(
            ErrorKind::Internal,
            Source::Router,
            stage,
            error.to_string(),
        )
    })
}

fn protocol(stage: Stage, why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Sidecar, stage, why).retry(Retry::AfterCancel)
}

/// Gives up a ticket when dropped, wherever the request was. A release that cannot be delivered before its lease ends costs
/// the prefill side the rest of it, which its own ledger counts.
#[derive(Debug)]
pub struct ReleaseOnDrop {
    armed: Option<Armed>,
}

#[derive(Debug, Clone)]
struct Armed {
    calls: Calls,
    worker: Arc<Worker>,
    id: TicketId,
    release: Release,
}

impl ReleaseOnDrop {
    /// Takes responsibility for the ticket that a prefill will produce.
    pub fn new(calls: &Calls, worker: &Arc<Worker>, leg: &PrefillCall) -> Self {
        Self {
            armed: Some(Armed {
                calls: calls.clone(),
                worker: Arc::clone(worker),
                id: leg.ticket.clone(),
                release: Release::Leg {
                    request: leg.request.clone(),
                    route: leg.route,
                    epoch: worker.epoch(),
                },
            }),
        }
    }

    /// The ticket is there: whoever stands beside its engine can be told of it.
    pub fn exists(&mut self, ticket: &Ticket, decode: &Worker) {
        if let Some(armed) = &mut self.armed {
            armed.release = Release::Ticket {
                ticket: Box::new(ticket.clone()),
                decode_at: Some(decode.url("")),
            };
        }
    }

    /// Gives up now and waits for it, but not for long: the next attempt must not run beside this one, nor be held up by
    /// a worker that is gone.
    pub async fn now(mut self) {
        let Some(armed) = self.armed.take() else {
            return;
        };
        // Armed again until it is done, for the caller itself may be dropped meanwhile.
        let guard = Self {
            armed: Some(armed.clone()),
        };
        if tokio::time::timeout(CANCEL, armed.release())
            .await
            .is_ok_and(|released| released.is_ok())
        {
            guard.disarm();
        }
    }

    /// There is nothing to give up any more.
    pub fn disarm(mut self) {
        self.armed = None;
    }
}

impl Armed {
    async fn release(&self) -> Result<(), Error> {
        self.calls
            .release(&self.worker, &self.id, &self.release)
            .await
    }

    /// Tries until it is delivered, or the lease has ended the ticket.
    async fn deliver(self) {
        let lease = match &self.release {
            Release::Ticket { ticket, .. } => Duration::from_millis(ticket.lease_ms),
            Release::Leg { .. } | Release::Unknown => UNKNOWN_LEASE,
        };
        let until = Instant::now() + lease;
        while let Err(error) = self.release().await {
            if Instant::now() >= until {
                tracing::warn!(worker = %self.worker.id(), ticket = %self.id, %error, "a ticket could not be given up");
                return;
            }
            tokio::time::sleep(UNDELIVERED).await;
        }
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        let Some(armed) = self.armed.take() else {
            return;
        };
        // Without a runtime the process is ending, and the lease ends the ticket.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(armed.deliver());
        }
    }
}

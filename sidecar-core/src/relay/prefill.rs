//! The prefill leg: it answers frames, and it belongs to the sidecar.
//!
//! The leg runs in a task of its own. While the engine has not answered, a router that goes away or releases the leg ends
//! it, and the engine drops the request with nothing held. Once the answer has begun the KV is held, so the answer is
//! read to its end and booked, whoever still listens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{BadBody, Body, read_limited};
use baton_proto::call::{CONTENT_TYPE, EngineAnswer, Outcome, PrefillCall, PrefillFrame};
use baton_proto::ticket::{Draft, Ticket};
use baton_proto::{Error, ErrorKind, Incarnation, Retry, Source, Stage, frame};
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::leg::{ActiveLeg, Arrived, engine_broke_off, engine_failed, send};
use crate::core::Core;
use crate::engine::{Engine, Leg, Prefilled};
use crate::ledger::{Ledger, OpenLeg};

/// Largest answer to a prefill. It may echo the prompt and its token ids.
const MAX_ANSWER: usize = 64 << 20;

/// Largest judgement of an engine on a request that is passed on; it must fit a frame.
const MAX_JUDGEMENT: usize = 1 << 20;

/// Longest time for the rest of an answer once it has begun: a prefill's answer is written in one go.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// How long an answer and a cancellation may take to cross.
const CROSSING: Duration = Duration::from_millis(50);

/// Frames of one leg that may wait for a slow router.
const FRAMES: usize = 4;

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
    let leg = ActiveLeg::enter(&core, &arrived).await?;
    let open = core.ledger.open(&arrived.call.ticket)?;
    let (frames, waiting) = mpsc::channel(FRAMES);
    let listener = Listener {
        frames: waiting,
        ledger: core.ledger.clone(),
    };
    let span = tracing::info_span!("prefill", request = %arrived.call.request, trace = %arrived.trace.trace_id());
    let running = Running {
        core,
        arrived,
        incarnation: attached.incarnation,
        leg,
        frames,
    };
    tokio::spawn(running.run(open).instrument(span));

    let body = futures_util::stream::unfold(listener, |mut listener| async {
        let frame = listener.frames.recv().await?;
        Some((frame, listener))
    });
    let bytes = body.map(|frame| Ok::<_, Infallible>(Frame::data(frame::encode(&frame))));
    let mut response = Response::new(StreamBody::new(bytes).map_err(Into::into).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
    Ok(response)
}

/// The router's end of the frames. A ticket that is still in it when the router goes away was taken by nobody.
struct Listener {
    frames: mpsc::Receiver<PrefillFrame>,
    ledger: Ledger,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.frames.close();
        while let Ok(frame) = self.frames.try_recv() {
            if let PrefillFrame::Ready { ticket } = frame {
                self.ledger.release(&ticket.id);
            }
        }
    }
}

struct Running<E> {
    core: Arc<Core<E>>,
    arrived: Arrived<PrefillCall>,
    incarnation: Incarnation,
    leg: ActiveLeg,
    frames: mpsc::Sender<PrefillFrame>,
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
        let admitted = PrefillFrame::Admitted {
            id: self.arrived.call.ticket.clone(),
            ticket: None,
        };
        self.tell(admitted).await;
        match self.ask_engine(open).await {
            Ok((ticket, usage, outcome)) => {
                self.leg.first_token();
                self.leg.end(None);
                if let Some(ticket) = ticket {
                    self.offer(ticket).await;
                }
                self.tell(PrefillFrame::Done { usage, outcome }).await;
            }
            Err(Failure { error, answer }) => {
                tracing::info!(kind = %error.kind, %error, "prefill failed");
                self.leg.end(Some(error.kind));
                self.tell(PrefillFrame::Failed { error, answer }).await;
            }
        }
    }

    /// A ticket that nobody takes is given up at once.
    async fn offer(&self, ticket: Ticket) {
        let id = ticket.id.clone();
        self.core.metrics.handoff_bytes.inc_by(ticket.bytes);
        if !self
            .tell(PrefillFrame::Ready {
                ticket: Box::new(ticket),
            })
            .await
        {
            self.core.ledger.release(&id);
        }
    }

    /// Sends a frame; whether somebody listens.
    async fn tell(&self, frame: PrefillFrame) -> bool {
        self.frames.send(frame).await.is_ok()
    }

    async fn ask_engine(
        &self,
        open: OpenLeg,
    ) -> Result<(Option<Ticket>, baton_proto::call::PrefillUsage, Outcome), Failure> {
        let quarantine = self.core.quarantine_name();
        let leg = Leg {
            request: &self.arrived.call.request,
            quarantine: quarantine.as_ref().map(|name| name.as_str()),
        };
        let body = self.core.engine.prefill_body(&self.arrived.request, leg);
        let response = self.head(&open, body).await?;
        let (head, body) = response.into_parts();
        let content_type = head
            .headers
            .get(CONTENT_TYPE_HEADER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let bytes = read_limited(body, MAX_ANSWER, ANSWER_TIME)
            .await
            .map_err(|bad| self.unreadable(&bad))?;
        match head.status.as_u16() {
            200 => self.book(open, &bytes),
            status @ 400..500 if bytes.len() <= MAX_JUDGEMENT => {
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
    async fn head(&self, open: &OpenLeg, body: String) -> Result<Response<Incoming>, Error> {
        let mut sent = std::pin::pin!(send(&self.core, &self.arrived, body));
        let why = tokio::select! {
            biased;
            response = &mut sent => return response,
            () = open.released() => "it was released",
            () = self.frames.closed() => "its router went away",
        };
        // An answer that is already on its way means KV that is held: it is better to learn its id than to cut it off.
        let crossing = tokio::time::timeout(CROSSING, sent);
        crossing.await.unwrap_or_else(|_| Err(cancelled(why)))
    }

    /// An answer that began and cannot be read: KV may be held under an id that nobody knows.
    fn unreadable(&self, bad: &BadBody) -> Failure {
        self.core.metrics.tickets.stranded.inc();
        engine_broke_off(Stage::Prefill, &bad.to_string()).into()
    }

    /// Books what the engine holds now.
    fn book(
        &self,
        open: OpenLeg,
        answer: &Bytes,
    ) -> Result<(Option<Ticket>, baton_proto::call::PrefillUsage, Outcome), Failure> {
        // An answer that makes no sense may still mean KV that is held.
        let read = self.core.engine.read_prefill(answer).inspect_err(|_| {
            self.core.metrics.tickets.stranded.inc();
        });
        match read? {
            Prefilled::Handoff { usage, kv } => {
                let draft = Draft {
                    id: self.arrived.call.ticket.clone(),
                    prefill: self.core.worker.clone(),
                    incarnation: self.incarnation.clone(),
                    decode: self.arrived.call.decode.clone(),
                    request_digest: self.arrived.request.digest(),
                    prompt_tokens: usage.prompt_tokens,
                    bytes: kv.bytes,
                    lease_ms: u64::try_from(kv.lease.as_millis()).unwrap_or(u64::MAX),
                    metadata: kv.metadata,
                };
                Ok((Some(open.hold(draft, kv.lease)), usage, Outcome::Length))
            }
            Prefilled::Ended { usage, kv } => {
                if let Some(kv) = kv {
                    open.strand(self.incarnation.clone(), kv.lease);
                }
                Ok((None, usage, Outcome::Ended))
            }
        }
    }
}

fn cancelled(why: &str) -> Error {
    Error::new(
        ErrorKind::Cancelled,
        Source::Router,
        Stage::Prefill,
        format!("the prefill was cancelled: {why}"),
    )
}

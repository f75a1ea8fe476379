//! Streams of events with a commit point.
//!
//! Engines send 200, and chat even a first chunk, before the KV has arrived, and can fail inside the stream. So events are
//! held back until one carries a token; a failure before that is an error like any other. After it the bytes pass as they
//! come, and a failure becomes one honest error event with nothing after it, least of all a `[DONE]`.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::sse::{self, BrokenStream, EventReader};
use baton_daemon::http::{Body, BoxError};
use baton_proto::json::RawObject;
use baton_proto::route::Route;
use baton_proto::{Error, ErrorKind, RequestId, Retry, Source, Stage};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

use super::abort::Unanswered;
use super::leg::{
    ActiveLeg, Arrived, Call, answers_another, engine_broke_off, is_judgement, too_late,
};
use crate::core::Core;
use crate::engine::{Engine, Verdict};

/// Most bytes before the first token. Engines send one small chunk there.
const MAX_PREAMBLE: usize = 1 << 20;

/// A stream whose first token is there.
pub(crate) struct Committed<E: Engine> {
    guard: Guard<E>,
    first: Bytes,
}

/// Watches the events that pass.
struct Guard<E: Engine> {
    core: Arc<Core<E>>,
    unanswered: Unanswered<E>,
    reader: EventReader,
    route: Route,
    request: RequestId,
    /// Whether the engine names its answer.
    named: bool,
    stage: Stage,
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Failed,
}

/// What a passing event is.
enum Glance {
    /// One of many.
    Goes,
    /// The last one.
    Ends(End),
    /// Nothing that a client could read.
    Garbage,
}

/// Reads a stream up to its first token.
pub(crate) async fn commit<E: Engine, C: Call>(
    core: &Arc<Core<E>>,
    arrived: &Arrived<C>,
    body: Incoming,
    leg: &mut ActiveLeg,
    unanswered: Unanswered<E>,
) -> Result<Committed<E>, Error> {
    let stage = C::STAGE;
    let mut guard = Guard {
        core: Arc::clone(core),
        unanswered,
        reader: EventReader::new(body),
        route: arrived.request.route(),
        request: arrived.call.request().clone(),
        named: core.engine.names_answers(&arrived.request),
        stage,
        end: None,
    };
    let mut held = BytesMut::new();
    loop {
        let Some(events) = guard
            .reader
            .next(arrived.time_left())
            .await
            .map_err(|broken| guard.broke_off(&broken))?
        else {
            leg.fetched();
            return Err(engine_broke_off(stage, "ended before its first token"));
        };
        let reached = guard.reaches_token(&events);
        if !matches!(reached, Ok(false)) {
            leg.fetched();
        }
        let committed = reached?;
        let passed = guard.pass(events);
        if committed && held.is_empty() {
            return Ok(Committed {
                guard,
                first: passed,
            });
        }
        held.extend_from_slice(&passed);
        if committed {
            return Ok(Committed {
                guard,
                first: held.freeze(),
            });
        }
        if held.len() > MAX_PREAMBLE {
            return Err(engine_broke_off(stage, "goes on without a token"));
        }
    }
}

impl<E: Engine> Guard<E> {
    /// Whether a token is among these events. A failure before one is an error.
    fn reaches_token(&self, events: &[u8]) -> Result<bool, Error> {
        for event in sse::events(events) {
            match self.judge(event) {
                Verdict::Preamble => {}
                Verdict::Token if self.is_anothers(event) => {
                    return Err(answers_another(self.stage));
                }
                Verdict::Token => return Ok(true),
                Verdict::Done => return Err(engine_broke_off(self.stage, "ended without a token")),
                Verdict::Failed { status, message } => return Err(self.failed(status, &message)),
            }
        }
        Ok(false)
    }

    fn is_anothers(&self, event: &[u8]) -> bool {
        let engine = &self.core.engine;
        self.named
            && !matches!(self.route, Route::PassThrough(_))
            && sse::data(event).is_some_and(|data| !engine.is_answer_to(&data, &self.request))
    }

    fn failed(&self, status: u16, message: &str) -> Error {
        if self.stage == Stage::Generate && is_judgement(status) {
            // On a decode leg it may be the handoff that the engine judges.
            return Error::new(
                ErrorKind::EngineRejected,
                Source::Client,
                self.stage,
                message,
            );
        }
        let message = format!("the engine failed inside its stream with {status}: {message}");
        Error::new(ErrorKind::EngineFailed, Source::Engine, self.stage, message)
            .retry(Retry::AfterCancel)
    }

    fn judge(&self, event: &[u8]) -> Verdict {
        let Some(data) = sse::data(event) else {
            return Verdict::Preamble;
        };
        match (self.route, self.core.engine.judge_event(&data)) {
            // Of other routes only the failures are known; their events all count.
            (Route::PassThrough(_), Verdict::Preamble) => Verdict::Token,
            (_, verdict) => verdict,
        }
    }

    /// Passes events on, and nothing after the end or a failure.
    fn pass(&mut self, events: Bytes) -> Bytes {
        let mut passed = 0;
        for event in sse::events(&events) {
            match self.glance(event) {
                Glance::Goes => passed += event.len(),
                Glance::Ends(end) => {
                    self.unanswered.answered();
                    self.end = Some(end);
                    return events.slice(..passed + event.len());
                }
                Glance::Garbage => {
                    let error = engine_broke_off(self.stage, "has an event that is no JSON object");
                    let last = self.last_words(&error);
                    return [&events[..passed], &last].concat().into();
                }
            }
        }
        events
    }

    /// Looks at an event that passes, no closer than it must: nearly none ends a stream, and parsing each would cost.
    fn glance(&self, event: &[u8]) -> Glance {
        let Some(data) = sse::data(event) else {
            return Glance::Goes;
        };
        let ends = [b"[DONE]".as_slice(), b"error", b"\"abort\""];
        if !ends
            .iter()
            .any(|word| memchr::memmem::find(&data, word).is_some())
        {
            return if looks_whole(&data) {
                Glance::Goes
            } else {
                Glance::Garbage
            };
        }
        if *data != *b"[DONE]" && RawObject::parse(&data).is_err() {
            return Glance::Garbage;
        }
        match self.core.engine.judge_event(&data) {
            Verdict::Failed { .. } => Glance::Ends(End::Failed),
            Verdict::Done => Glance::Ends(End::Done),
            Verdict::Preamble | Verdict::Token => Glance::Goes,
        }
    }

    fn broke_off(&self, broken: &BrokenStream) -> Error {
        let error = engine_broke_off(self.stage, &format!("broke off: {broken}"));
        match broken {
            BrokenStream::Stalled(_) => too_late(error),
            BrokenStream::Broken(_) | BrokenStream::TooLong => error,
        }
    }

    /// Whether a stream may end here without a word.
    fn may_end(&self) -> bool {
        self.end.is_some() || matches!(self.route, Route::PassThrough(_))
    }

    /// The next bytes for the client.
    async fn next(&mut self, patience: Duration) -> Option<Bytes> {
        if self.end == Some(End::Done) {
            // Nothing may follow; reading the end of the body lets the connection be used again.
            let _ = self.reader.next(Duration::from_secs(1)).await;
        }
        if self.end.is_some() {
            return None;
        }
        match self.reader.next(patience).await {
            Ok(Some(events)) => {
                self.core.progress.moved();
                Some(self.pass(events))
            }
            Ok(None) if self.may_end() => {
                self.unanswered.answered();
                None
            }
            Ok(None) => Some(self.last_words(&engine_broke_off(
                self.stage,
                "ended before it was complete",
            ))),
            Err(broken) => Some(self.last_words(&self.broke_off(&broken))),
        }
    }

    fn last_words(&mut self, error: &Error) -> Bytes {
        tracing::warn!(%error, "stream failed after its first token");
        self.end = Some(End::Failed);
        sse::event(&error.openai_body())
    }
}

/// Whether an event's data could be a JSON object. A torn or foreign one nearly never looks like one.
fn looks_whole(data: &[u8]) -> bool {
    data.starts_with(b"{") && data.ends_with(b"}") && std::str::from_utf8(data).is_ok()
}

impl<E: Engine> Committed<E> {
    /// The body to send on. The leg ends with it.
    pub(crate) fn into_body(self, leg: ActiveLeg) -> Body {
        let patience = self.guard.core.args.stall();
        let start = (self.guard, Some(self.first), leg);
        let stream =
            futures_util::stream::unfold(start, move |(mut guard, first, mut leg)| async move {
                let next = match first {
                    Some(first) => Some(first),
                    None => guard.next(patience).await,
                };
                match next {
                    Some(bytes) => {
                        Some((Ok::<_, BoxError>(Frame::data(bytes)), (guard, None, leg)))
                    }
                    None => {
                        leg.end(
                            (guard.end == Some(End::Failed)).then_some(ErrorKind::EngineFailed),
                        );
                        None
                    }
                }
            });
        StreamBody::new(stream).boxed_unsync()
    }
}

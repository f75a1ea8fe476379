//! From the commit point to the last byte: the answer flows to the client as it comes.
//!
//! Streams pass event by event, so that a break never leaves half an event; what breaks off gets one honest error event.
//! A whole answer is read before its head is sent, so that the client gets all of it or an error.

use std::time::Duration;

use baton_daemon::http::sse::{self, EventReader};
use baton_daemon::http::{Body, BoxError, full, is_event_stream, read_limited};
use baton_daemon::metrics::Counted;
use baton_proto::json::RawObject;
use baton_proto::{Error, ErrorKind, Source, Stage};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use crate::fleet::Reservation;
use crate::metrics::Metrics;
use crate::serve::{Answer, How, Served};
use crate::state::Router;
use crate::view::Proof;

/// How the request was served, for a client that asked.
const PLAN: HeaderName = HeaderName::from_static("baton-plan");

/// Largest answer that is not streamed.
const MAX_ANSWER: usize = 256 << 20;

/// A request's place in the router, from arrival to the last byte.
#[derive(Debug)]
pub(super) struct Guard {
    _counted: Counted,
    _place: OwnedSemaphorePermit,
}

impl Guard {
    /// Takes the place.
    pub(super) fn new(counted: Counted, place: OwnedSemaphorePermit) -> Self {
        Self {
            _counted: counted,
            _place: place,
        }
    }
}

/// Turns what was served into the client's answer.
pub(super) async fn answer(
    router: &Router,
    served: Served,
    explain: bool,
    time: Duration,
    guard: Guard,
) -> Result<Response<Body>, Error> {
    let how = served.how.clone();
    let mut end = End {
        metrics: router.metrics.clone(),
        how: how.clone(),
        told: false,
    };
    let mut response = match served.answer {
        Answer::Whole(answer) => {
            end.tell(None);
            let mut response = Response::new(full(answer.body));
            *response.status_mut() =
                StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_REQUEST);
            let content_type = answer
                .content_type
                .and_then(|value| HeaderValue::try_from(value).ok());
            content_type.map(|value| response.headers_mut().insert(CONTENT_TYPE, value));
            response
        }
        Answer::Flowing(answer) => {
            let (head, body) = answer.into_parts();
            let content_type = head.headers.get(CONTENT_TYPE).cloned();
            let streamed = content_type.as_ref().is_some_and(is_event_stream);
            let mut response = if streamed {
                let flow = Flow {
                    reader: EventReader::new(body),
                    over: false,
                    end,
                    proof: served.proof,
                    reservation: served.reservation,
                    _guard: guard,
                };
                Response::new(flow.into_body(router.args.stall()))
            } else {
                let answer = whole(body, time, &mut end).await?;
                if let Some(mut proof) = served.proof {
                    proof.look_into_answer(&answer);
                }
                Response::new(full(answer))
            };
            *response.status_mut() = head.status;
            if streamed {
                response
                    .headers_mut()
                    .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            }
            content_type.map(|value| response.headers_mut().insert(CONTENT_TYPE, value));
            response
        }
    };
    let explained = || format!("{how}{}{}", served.cached, served.decision);
    if explain && let Ok(value) = HeaderValue::try_from(explained()) {
        response.headers_mut().insert(PLAN, value);
    }
    Ok(response)
}

async fn whole(body: Incoming, time: Duration, end: &mut End) -> Result<Bytes, Error> {
    match read_limited(body, MAX_ANSWER, time).await {
        Ok(bytes) => {
            end.tell(None);
            Ok(bytes)
        }
        Err(bad) => {
            let message = format!("the worker's answer {bad}");
            let error = Error::new(
                ErrorKind::Unreachable,
                Source::Sidecar,
                Stage::Decode,
                message,
            );
            end.tell(Some(error.kind));
            Err(error)
        }
    }
}

/// Counts a request exactly once, however it ends.
struct End {
    metrics: Metrics,
    how: How,
    told: bool,
}

impl End {
    fn tell(&mut self, failure: Option<ErrorKind>) {
        if !std::mem::replace(&mut self.told, true) {
            self.metrics.request_ended(self.how.word(), failure);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.tell(Some(ErrorKind::Cancelled));
    }
}

/// Whether one of these events is OpenAI's form of an error.
fn tells_failure(events: &[u8]) -> bool {
    // Nearly no event has the word at all, and parsing each would cost.
    memchr::memmem::find(events, b"\"error\"").is_some()
        && sse::events(events).filter_map(sse::data).any(|data| {
            RawObject::parse(&data).is_ok_and(|object| object.get_set("error").is_some())
        })
}

/// A stream on its way to the client.
struct Flow {
    reader: EventReader,
    over: bool,
    end: End,
    proof: Option<Proof>,
    reservation: Option<Reservation>,
    _guard: Guard,
}

impl Flow {
    fn into_body(self, patience: Duration) -> Body {
        let stream = futures_util::stream::unfold(self, move |mut flow| async move {
            let bytes = flow.next(patience).await?;
            Some((Ok::<_, BoxError>(Frame::data(bytes)), flow))
        });
        StreamBody::new(stream).boxed_unsync()
    }

    async fn next(&mut self, patience: Duration) -> Option<Bytes> {
        if self.over {
            return None;
        }
        match self.reader.next(patience).await {
            Ok(Some(events)) => {
                if let Some(proof) = &mut self.proof {
                    proof.look_into_events(&events);
                }
                if tells_failure(&events) {
                    self.end.tell(Some(ErrorKind::EngineFailed));
                }
                if let Some(reservation) = &mut self.reservation {
                    let events = memchr::memmem::find_iter(&events, b"\n\n").count();
                    reservation.streamed(events as u64);
                }
                Some(events)
            }
            // The sidecar ends a stream cleanly only after its engine did, or after an error event of its own.
            Ok(None) => {
                self.end.tell(None);
                if let Some(reservation) = &mut self.reservation {
                    reservation.answered();
                }
                None
            }
            Err(broken) => {
                self.over = true;
                let message = format!("the answer could not be completed: {broken}");
                let error = Error::new(
                    ErrorKind::Unreachable,
                    Source::Sidecar,
                    Stage::Decode,
                    message,
                );
                tracing::warn!(how = %self.end.how, %error, "stream failed after its first token");
                self.end.tell(Some(error.kind));
                Some(sse::event(&error.openai_body()))
            }
        }
    }
}

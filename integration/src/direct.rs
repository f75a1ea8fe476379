//! Baton's own protocol, spoken by the test: a router that is wrong, hostile or merely late.

use std::net::SocketAddr;

use baton_proto::call::{
    CONTENT_TYPE, Claim, DecodeCall, GenerateCall, PrefillCall, PrefillFrame, PrefillUsage, path,
};
use baton_proto::frame::{self, Envelope, FrameReader};
use baton_proto::route::Route;
use baton_proto::ticket::Ticket;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{self, Answer, Exchange};
use crate::fleet::TOKEN;

/// A call's time.
const DEADLINE_MS: u64 = 10_000;

/// An id that was never used before.
pub fn fresh<T: std::str::FromStr<Err: std::fmt::Debug>>() -> T {
    baton_daemon::fresh::hex_id().parse().unwrap()
}

/// What a prefill ended with.
#[derive(Debug)]
pub enum Prefilled {
    /// A handoff.
    Ticket(Box<Ticket>),
    /// The prompt ended by itself.
    Ended(PrefillUsage),
    /// A failure frame.
    Failed(baton_proto::Error),
    /// A plain answer instead of frames.
    Refused(Answer),
}

impl Prefilled {
    /// The handoff.
    #[track_caller]
    pub fn ticket(self) -> Ticket {
        match self {
            Self::Ticket(ticket) => *ticket,
            other => panic!("no ticket: {other:?}"),
        }
    }
}

fn envelope<Head: Serialize + DeserializeOwned>(head: Head, body: &str) -> Vec<u8> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Envelope { head, body }.encode().concat()
}

/// POSTs to a sidecar with the fleet's token.
pub async fn post(sidecar: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Answer {
    begin(sidecar, path, body).await.finish().await
}

/// Starts to POST to a sidecar with the fleet's token.
pub async fn begin(sidecar: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Exchange {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", CONTENT_TYPE),
    ];
    client::start(sidecar, "POST", path, &headers, body).await
}

/// A prefill call for a completion.
pub fn prefill_call(decode: &str) -> PrefillCall {
    PrefillCall {
        request: fresh(),
        ticket: fresh(),
        decode: decode.parse().unwrap(),
        decode_at: None,
        router: None,
        route: Route::Completions,
        deadline_ms: DEADLINE_MS,
        uncached_tokens: None,
    }
}

/// Bytes of a prefill call.
pub fn prefill_bytes(call: &PrefillCall, body: &str) -> Vec<u8> {
    envelope(call.clone(), body)
}

/// A prefill.
pub async fn prefill(sidecar: SocketAddr, call: &PrefillCall, body: &str) -> Prefilled {
    let answer = post(sidecar, path::PREFILL, prefill_bytes(call, body)).await;
    if answer.status != 200 {
        return Prefilled::Refused(answer);
    }
    let mut reader = FrameReader::default();
    reader.push(&answer.body);
    let mut ticket = None;
    while let Some(frame) = reader.next::<PrefillFrame>().unwrap() {
        match frame {
            PrefillFrame::Ready { ticket: ready } => ticket = Some(ready),
            PrefillFrame::Done { usage, .. } => {
                return ticket.map_or(Prefilled::Ended(usage), Prefilled::Ticket);
            }
            PrefillFrame::Failed { error, .. } => return Prefilled::Failed(error),
            PrefillFrame::Admitted { .. } | PrefillFrame::Unknown => {}
        }
    }
    panic!("the prefill's frames end without an end");
}

/// A decode with this ticket.
pub async fn decode(sidecar: SocketAddr, ticket: &Ticket, body: &str) -> Answer {
    let call = DecodeCall {
        request: fresh(),
        ticket: ticket.clone(),
        prefill_at: None,
        route: Route::Completions,
        deadline_ms: DEADLINE_MS,
    };
    post(sidecar, path::DECODE, envelope(call, body)).await
}

/// A local leg.
pub async fn generate(sidecar: SocketAddr, body: &str) -> Answer {
    let call = GenerateCall {
        request: fresh(),
        route: Route::Completions,
        deadline_ms: DEADLINE_MS,
        uncached_tokens: None,
    };
    post(sidecar, path::GENERATE, envelope(call, body)).await
}

/// `settle` or `release`.
pub async fn ticket(sidecar: SocketAddr, id: impl std::fmt::Display, verb: &str) -> Answer {
    post(sidecar, &format!("{}{id}/{verb}", path::TICKETS), "").await
}

/// Moves a ticket to another decode worker.
pub async fn claim(
    sidecar: SocketAddr,
    id: impl std::fmt::Display,
    decode: &str,
) -> Result<Ticket, Answer> {
    let claim = frame::to_bytes(&Claim {
        decode: decode.parse().unwrap(),
        decode_at: None,
    });
    let answer = post(sidecar, &format!("{}{id}/claim", path::TICKETS), claim).await;
    if answer.status == 200 {
        Ok(frame::from_bytes(&answer.body).unwrap())
    } else {
        Err(answer)
    }
}

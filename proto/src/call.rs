//! The downward river: what a router asks of a sidecar for one request.
//!
//! A call's body is an envelope ([`crate::frame::Envelope`]): one frame with the head defined here, then the client's
//! bytes, verbatim. A prefill answers with frames; decode and local legs answer with the engine's own response.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::id::{Epoch, RequestId, RouterId, TicketId, WorkerId};
use crate::route::Route;
use crate::ticket::Ticket;

/// Paths of the sidecar's and the router's own HTTP surface.
pub mod path {
    /// GET: the watch stream.
    pub const WATCH: &str = "/baton/v1/watch";
    /// POST: prefill leg; answers frames.
    pub const PREFILL: &str = "/baton/v1/prefill";
    /// POST: decode leg.
    pub const DECODE: &str = "/baton/v1/decode";
    /// POST: local leg.
    pub const GENERATE: &str = "/baton/v1/generate";
    /// POST, followed by `{id}/settle`, `{id}/confirm`, `{id}/release` or `{id}/claim` on the prefill worker,
    /// `{id}/revoke` on the decode worker.
    pub const TICKETS: &str = "/baton/v1/tickets/";
    /// POST: KV that reached this worker's engine cannot be trusted.
    pub const QUARANTINE: &str = "/baton/v1/quarantine";
    /// POST: take no new work.
    pub const DRAIN: &str = "/baton/v1/drain";
    /// GET: the files that decide a prompt's tokens ([`crate::model::ModelFiles`]).
    pub const MODEL_FILES: &str = "/baton/v1/model/files";
    /// POST: the tokens that the engine makes of a client's request, whose body this is ([`crate::model::Tokens`]).
    pub const TOKENIZE: &str = "/baton/v1/model/tokenize";
    /// GET: memory to measure the way to this host with ([`crate::link::LinkOffer`]).
    pub const LINK: &str = "/baton/v1/link";
    /// POST: measure the way from another host ([`crate::link::MeasureLink`]).
    pub const MEASURE_LINK: &str = "/baton/v1/link/measure";
    /// POST on a router: registration of a sidecar.
    pub const REGISTER: &str = "/baton/v1/register";
}

/// Content type of envelopes and frames.
pub const CONTENT_TYPE: &str = "application/vnd.baton+msgpack";

/// Head of a prefill call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillCall {
    /// This leg.
    pub request: RequestId,
    /// Name of the ticket to be, and of the leg until then: releasing it cancels the leg.
    pub ticket: TicketId,
    /// The worker that is to decode: the ticket is born claimed for it.
    pub decode: WorkerId,
    /// Base URL of that worker's sidecar. It is asked before KV that it may be fetching is given back; without it such KV
    /// is held until its lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_at: Option<String>,
    /// Who asks: the ticket ends when no watch stream of this router is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterId>,
    /// Route of the client's request.
    pub route: Route,
    /// Time left for the leg, in milliseconds.
    pub deadline_ms: u64,
    /// Prompt tokens that the router expects the engine to compute, for the load that the sidecar reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncached_tokens: Option<u64>,
}

/// Head of a decode call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeCall {
    /// This leg.
    pub request: RequestId,
    /// The handoff to use.
    pub ticket: Ticket,
    /// Base URL of the prefill worker's sidecar, which is asked whether what came was the right KV before the answer goes out.
    /// Without it whoever calls has to settle the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_at: Option<String>,
    /// Route of the client's request.
    pub route: Route,
    /// Time left for the leg, in milliseconds.
    pub deadline_ms: u64,
}

/// Head of a local call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerateCall {
    /// This leg.
    pub request: RequestId,
    /// Route of the client's request.
    pub route: Route,
    /// Time left for the leg, in milliseconds.
    pub deadline_ms: u64,
    /// Prompt tokens that the router expects the engine to compute, for the load that the sidecar reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncached_tokens: Option<u64>,
}

/// Body of `tickets/{id}/claim`: move an unused ticket to another decode worker, or renew it for the same. Answered with
/// the new ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The worker that is to decode now.
    pub decode: WorkerId,
    /// Base URL of its sidecar, as in [`PrefillCall::decode_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_at: Option<String>,
}

/// Body of `tickets/{id}/release`: all that a sidecar has to know of what is given up to give its KV back, though it was
/// another life of that sidecar that was asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Release {
    /// A prefill leg that has not produced its ticket.
    Leg {
        /// The leg.
        request: RequestId,
        /// Route of the client's request.
        route: Route,
        /// The sidecar's life that was asked for it: what that has not done it will not do any more.
        epoch: Epoch,
    },
    /// A ticket.
    Ticket {
        /// What is given up.
        ticket: Box<Ticket>,
        /// Base URL of the decode worker's sidecar, as in [`PrefillCall::decode_at`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decode_at: Option<String>,
    },
    /// Something of a newer peer: whatever is known by the id is given up.
    #[serde(other)]
    Unknown,
}

/// Answer of `tickets/{id}/revoke`: from now on the ticket is not used here, and this is what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revoked {
    /// The engine has never seen it.
    Unseen,
    /// The engine has shown a token of the leg that used it, or has answered without one: it fetches nothing any more.
    Answered,
    /// The leg that used it was cut off, and the engine does not say when it has noticed.
    Cut,
    /// Something of a newer peer: read as `Cut`.
    #[serde(other)]
    Unknown,
}

/// What a prefill cost, as the engine reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PrefillUsage {
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Tokens of it that were in the engine's cache; absent if the engine does not say.
    pub cached_tokens: Option<u32>,
}

/// How a prefill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// By length, as asked: decode goes on from its KV.
    Length,
    /// By a stop or another condition: there is nothing to hand over, and the request is to be generated here.
    Ended,
    /// An outcome of a newer peer: treated as `Ended`.
    #[serde(other)]
    Unknown,
}

/// An engine's own answer, to be passed to the client as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineAnswer {
    /// HTTP status.
    pub status: u16,
    /// Content type, if it had one.
    pub content_type: Option<String>,
    /// Body.
    pub body: Bytes,
}

/// A frame of a prefill's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PrefillFrame {
    /// The engine is about to see it: from here on it must be cancelled to be forgotten. Where the engine hands over
    /// while it computes, the ticket is here.
    Admitted {
        /// Name by which it is released.
        id: TicketId,
        /// The handoff, if the engine allows decode to start now.
        ticket: Option<Box<Ticket>>,
    },
    /// The KV is there.
    Ready {
        /// The handoff.
        ticket: Box<Ticket>,
    },
    /// The leg ended well. Last frame.
    Done {
        /// What it cost.
        usage: PrefillUsage,
        /// How it ended.
        outcome: Outcome,
    },
    /// The leg failed. Last frame.
    Failed {
        /// Why.
        error: Error,
        /// The engine's own answer where it judged the request.
        answer: Option<EngineAnswer>,
    },
    /// A frame of a newer peer: skipped.
    #[serde(other)]
    Unknown,
}

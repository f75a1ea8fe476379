//! What a sidecar needs of an engine: one trait, implemented once per engine kind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::call::PrefillUsage;
use baton_proto::load::LoadReport;
use baton_proto::model::ModelFiles;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::worker::WorkerInfo;
use baton_proto::{Error, Incarnation, RequestId};
use baton_transfer::Agent;
use http::{HeaderName, HeaderValue};

use crate::relay::leg::is_judgement;
use crate::view::Feed;

/// An engine that answers, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Which life of it.
    pub incarnation: Incarnation,
    /// What it is.
    pub info: WorkerInfo,
}

/// Something that follows an engine's KV events. Dropping it ends that.
pub type Following = Box<dyn Send + Sync>;

/// A request on its way to the engine.
#[derive(Debug, Clone, Copy)]
pub struct Leg<'a> {
    /// The engine's id for it.
    pub request: &'a RequestId,
    /// Set after a quarantine of the engine's cache, different for each: requests must share no cached KV across it.
    pub quarantine: Option<&'a str>,
    /// The engine shall announce blocks that it reuses, too, for not all that it holds is known.
    pub report_reused: bool,
}

impl Leg<'_> {
    /// What becomes of a cache salt, JSON to JSON: behind a quarantine requests keep away from what was cached before it, for
    /// engines share no block between different salts. Nothing if it stays as it is.
    pub fn salt(&self, own: Option<&str>) -> Option<String> {
        let quarantine = self.quarantine?;
        let salt = match own {
            None => format!("baton-{quarantine}"),
            // Anything but a text is left for the engine to refuse.
            Some(raw) => {
                let own: String = serde_json::from_str(raw).ok()?;
                format!("baton-{quarantine}/{own}")
            }
        };
        Some(serde_json::Value::from(salt).to_string())
    }
}

/// KV that the engine holds for a handoff after a prefill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKv {
    /// What decode needs to fetch it.
    pub metadata: TransferMetadata,
    /// How much, in bytes, if that is known.
    pub bytes: Option<u64>,
    /// How long the engine holds it, counted from the end of the prefill.
    pub lease: Duration,
}

/// A handoff that exists before its prefill, of an engine that hands over while it computes. The leg itself is what holds
/// the KV: it ends when decode has everything, and aborting it is what gives the KV back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What both legs are given. It was never used before and never will be again.
    pub metadata: TransferMetadata,
    /// How long the two legs may take to find each other and be done.
    pub lease: Duration,
}

/// What an engine has moved since it started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moved {
    /// KV bytes that it fetched.
    pub bytes: u64,
    /// Seconds that its transfers took, one by one.
    pub seconds: f64,
    /// Transfers that came to their end.
    pub transfers: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Handoffs whose KV it held until the lease ended.
    pub expired: u64,
}

impl Moved {
    /// What was moved since an earlier look; nothing if that was at another life of the engine.
    pub fn since(&self, before: &Self) -> Option<Self> {
        Some(Self {
            bytes: self.bytes.checked_sub(before.bytes)?,
            seconds: (self.seconds - before.seconds).max(0.0),
            transfers: self.transfers.checked_sub(before.transfers)?,
            failed: self.failed.checked_sub(before.failed)?,
            expired: self.expired.checked_sub(before.expired)?,
        })
    }
}

/// What an engine holds for a prefill whose answer was not read, if it has finished it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// What decode would need to fetch it, as far as giving it back needs that.
    pub metadata: TransferMetadata,
    /// How long the engine holds it at most.
    pub lease: Duration,
    /// The engine does call it so; if not, it is one that may.
    pub certain: bool,
}

/// A prefill that the engine finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefilled {
    /// It can be handed over.
    Handoff {
        /// What it cost.
        usage: PrefillUsage,
        /// What is held.
        kv: HeldKv,
    },
    /// What was offered for it is with decode, and nothing is held any more.
    HandedOver {
        /// What it cost.
        usage: PrefillUsage,
    },
    /// It ended for another reason than length: nothing to hand over, though KV may be held all the same.
    Ended {
        /// What it cost.
        usage: PrefillUsage,
        /// What is held for nobody.
        kv: Option<HeldKv>,
    },
}

impl Prefilled {
    /// What the engine holds now.
    pub fn held(&self) -> Option<&HeldKv> {
        match self {
            Self::Handoff { kv, .. } => Some(kv),
            Self::Ended { kv, .. } => kv.as_ref(),
            Self::HandedOver { .. } => None,
        }
    }
}

/// What became of KV that an engine was asked to take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// The engine was told; it does not answer.
    Told,
    /// The engine knows no way to be told: it lets go when its lease ends.
    AtItsLease,
}

/// How busy an engine says it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineLoad {
    /// What routers are told of it. The sequence number is filled in by the sidecar.
    pub report: LoadReport,
    /// Tokens that it has computed and generated in its life, if it counts them.
    pub work: Option<u64>,
    /// What its connector has moved, if it has one.
    pub moved: Option<Moved>,
}

/// What an event of an engine's stream means for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It comes before anything was computed; nothing in it needs the KV to be right.
    Preamble,
    /// It carries a token or the end of a choice.
    Token,
    /// The engine failed inside its stream.
    Failed {
        /// HTTP status the engine gives it.
        status: u16,
        /// Its words.
        message: String,
    },
    /// The stream's last event.
    Done,
}

/// One engine kind's dialect and how to reach the engine.
pub trait Engine: Send + Sync + 'static {
    /// Base URL of the engine's HTTP server, without a slash at its end.
    fn base_url(&self) -> &str;

    /// What the engine wants in the `authorization` header, if anything.
    fn authorization(&self) -> Option<&HeaderValue>;

    /// A header that vouches for a leg's body; nothing for an engine that wants none.
    fn vouch(&self, _body: &str) -> Option<(HeaderName, HeaderValue)> {
        None
    }

    /// Looks at the engine and refuses one that cannot work, in one sentence.
    fn attach(&self) -> impl Future<Output = Result<Attached, Error>> + Send;

    /// Whether the engine answers at all. Must be cheap.
    fn alive(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Which life of the engine it is *now*: read after the call, never remembered.
    fn incarnation(&self) -> impl Future<Output = Result<Incarnation, Error>> + Send;

    /// Follows the KV events of the engine's present life into `feed`, until the guard is dropped. Called once for each
    /// life, after [`Engine::attach`]; nothing for an engine that tells none.
    fn follow(&self, feed: &Feed) -> Option<Following>;

    /// An agent of our own on the fabric over which the engine moves KV, to measure links with.
    fn agent(&self) -> impl Future<Output = Result<Agent, Error>> + Send;

    /// Has the engine forget its KV cache, but for what requests use.
    fn reset_cache(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// The files that decide a prompt's tokens, of the engine's present life; nothing if they are not to be had.
    fn model_files(&self) -> Option<Arc<ModelFiles>>;

    /// The tokens that the engine makes of a request.
    fn tokenize(&self, request: &str) -> impl Future<Output = Result<Vec<u32>, Error>> + Send;

    /// How busy the engine says it is.
    fn load(&self) -> impl Future<Output = Result<EngineLoad, Error>> + Send;

    /// The handoff of a prefill that is about to be asked for; nothing for an engine that says at the end of a prefill what it
    /// holds.
    fn offer(&self) -> Option<Offer>;

    /// The body of a prefill leg, with the handoff that was offered for it, if any.
    fn prefill_body(
        &self,
        request: &ClientRequest,
        offered: Option<&TransferMetadata>,
        leg: Leg<'_>,
    ) -> String;

    /// What a finished prefill left, from the engine's answer to it.
    fn read_prefill(&self, answer: &[u8]) -> Result<Prefilled, Error>;

    /// What the engine holds for a prefill whose answer was never read, if it has finished it; nothing where it cannot be told
    /// how the engine calls that.
    fn unread(&self, request: &RequestId, route: Route) -> Option<Foreseen>;

    /// Whether it announces blocks that it reuses if it is asked to ([`Leg::report_reused`]).
    fn reports_reused(&self) -> bool;

    /// Whether KV of another prompt may come under a ticket's name, after a restart of the prefill engine or the end of its
    /// lease. If so, this engine's answers are withheld until the prefill side has confirmed the ticket.
    fn may_fetch_foreign_kv(&self) -> bool;

    /// Has the engine drop a request whose connection was given up. Done when it was told, and at once for an engine that
    /// watches its connections. The end of the request is not waited for.
    fn abort(&self, request: &RequestId) -> impl Future<Output = Result<(), Error>> + Send;

    /// Lets the engine have KV back that it holds for a handoff and that nobody fetches any more. Not asked of what was
    /// offered.
    fn give_back(
        &self,
        held: &TransferMetadata,
    ) -> impl Future<Output = Result<Returned, Error>> + Send;

    /// Whether the engine can be made to hold KV for longer than it would by itself.
    fn extends_leases(&self) -> bool {
        true
    }

    /// Has the engine hold KV for longer. Not asked of what was offered, nor of an engine that cannot. For how long from now
    /// on, at least.
    fn keep(
        &self,
        held: &[TransferMetadata],
    ) -> impl Future<Output = Result<Duration, Error>> + Send;

    /// The body of a decode leg. Refuses, before the engine sees it, metadata that this engine does not survive.
    fn decode_body(
        &self,
        request: &ClientRequest,
        ticket: &Ticket,
        leg: Leg<'_>,
    ) -> Result<String, Error>;

    /// The body of a local leg.
    fn local_body(&self, request: &ClientRequest, leg: Leg<'_>) -> String;

    /// Whether an answer that is no success is the engine's judgement on the request, which the client is to have; if not, the
    /// engine itself has failed.
    fn is_judgement(&self, status: u16, _body: &[u8]) -> bool {
        is_judgement(status)
    }

    /// What the data of a streamed event means.
    fn judge_event(&self, data: &[u8]) -> Verdict;

    /// Whether a whole 200 answer is an answer at all; if not, what is wrong with it (`is …`, `has …`).
    fn judge_answer(&self, body: &[u8]) -> Result<(), String>;

    /// Whether an answer, or an event of one, is to this request, as far as it says. Over a connection on which more was
    /// answered than asked, the next request gets another's answer.
    fn is_answer_to(&self, json: &[u8], request: &RequestId) -> bool;

    /// Whether the engine names its answers to such a request, so that they can be told from another's.
    fn names_answers(&self, _request: &ClientRequest) -> bool {
        true
    }
}

//! What is reported of a recording: the JSON of `--json`, field by field.

use std::collections::BTreeMap;

use baton_proto::worker::Tier;
use serde::Serialize;

use super::Damage;

/// A recording.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub file: String,
    /// What is in it.
    #[serde(flatten)]
    pub content: Content,
    /// How many lines or exchanges could not be read.
    pub damaged: u64,
    /// The first of them.
    pub damage: Vec<Damage>,
}

/// What is in a recording, by its kind.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// Published KV events.
    KvEvents(Box<EventReport>),
    /// Exchanges with a replay socket.
    ReplaySocket(ReplaySocket),
    /// Requests and answers.
    Http(Http),
    /// Handshakes.
    Handshakes(Handshakes),
}

/// KV events, and the view after them.
#[derive(Debug, Serialize)]
pub struct EventReport {
    /// What was said.
    pub summary: Summary,
    /// What a sidecar knows after it.
    pub view: View,
}

/// What some messages say.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Messages.
    pub messages: u64,
    /// Of those, how many came after the sequence number at which to stop.
    pub after_until: u64,
    /// Messages by topic.
    pub topics: BTreeMap<String, u64>,
    /// Engine's clock at the first message, in seconds.
    pub first_time: Option<f64>,
    /// The same at the last one.
    pub last_time: Option<f64>,
    /// Sequence numbers by rank, of the messages that were applied.
    pub ranks: Vec<RankSummary>,
    /// Events by kind.
    pub events: BTreeMap<&'static str, u64>,
    /// Blocks in `BlockStored`.
    pub stored_blocks: u64,
    /// Blocks in `BlockRemoved`.
    pub removed_blocks: u64,
    /// Tokens told.
    pub tokens: u64,
    /// Blocks by their number of tokens.
    pub block_sizes: BTreeMap<u32, u64>,
    /// Messages by how they name blocks.
    pub hash_forms: BTreeMap<&'static str, u64>,
    /// Sequences that began, by namespace.
    pub namespaces: Vec<Namespace>,
    /// What the decoder counted, by the names of [`baton_sidecar_vllm::events::oddity::Oddity`].
    pub counted: BTreeMap<&'static str, u64>,
}

/// Sequence numbers of a rank.
#[derive(Debug, Default, Serialize)]
pub struct RankSummary {
    /// Which rank.
    pub rank: u32,
    /// Its messages.
    pub messages: u64,
    /// First sequence number.
    pub first_seq: u64,
    /// Last one.
    pub last_seq: u64,
    /// Lives of the engine that began in between.
    pub restarts: u64,
    /// Messages that were not newer than the last one.
    pub older: u64,
    /// Messages that are missing.
    pub missing: u64,
    /// Where, as far as they are listed.
    pub gaps: Vec<Gap>,
}

/// Missing messages.
#[derive(Debug, Serialize)]
pub struct Gap {
    /// Last number before them.
    pub after: u64,
    /// How many.
    pub missing: u64,
}

/// A namespace and how often it was seen.
#[derive(Debug, Serialize)]
pub struct Namespace {
    /// LoRA adapter, empty for the base model.
    pub lora: String,
    /// Cache salt, empty without one.
    pub salt: String,
    /// Sequences that began in it.
    pub sequences: u64,
}

/// What a sidecar knows.
#[derive(Debug, Serialize)]
pub struct View {
    /// Name of the model that all hashes begin with.
    pub model: String,
    /// By rank.
    pub ranks: Vec<RankReport>,
}

/// What a sidecar knows of a rank.
#[derive(Debug, Serialize)]
pub struct RankReport {
    /// Which rank.
    pub rank: u32,
    /// Sequence number of the last message applied.
    pub last_seq: Option<u64>,
    /// Whether the view is exact.
    pub certain: bool,
    /// Why it is not.
    pub doubts: Vec<&'static str>,
    /// Tokens of a block.
    pub block_size: Option<u32>,
    /// What each tier holds.
    pub tiers: Vec<TierReport>,
    /// Blocks that were there before something was lost, and were not announced since.
    pub unconfirmed: u64,
    /// Blocks behind one that is not there: no request can hit them.
    pub unreachable: u64,
    /// What the mirror counted, by the names of [`baton_sidecar_core::mirror::oddity::Oddity`].
    pub counted: BTreeMap<&'static str, u64>,
    /// The longest chains of blocks.
    pub longest_chains: Vec<Chain>,
}

/// What a tier holds.
#[derive(Debug, Serialize)]
pub struct TierReport {
    /// Which tier.
    pub tier: Tier,
    /// How many blocks.
    pub blocks: u64,
    /// Digest of the set, as heartbeats carry it, in hex.
    pub digest: String,
}

/// Blocks that follow each other from the beginning of a sequence.
#[derive(Debug, Serialize)]
pub struct Chain {
    /// How many.
    pub blocks: u64,
    /// Their tokens.
    pub tokens: u64,
    /// LoRA adapter, empty for the base model.
    pub lora: String,
    /// Cache salt, empty without one.
    pub salt: String,
    /// The first few tokens.
    pub first_tokens: Vec<u32>,
}

/// Exchanges with a replay socket.
#[derive(Debug, Serialize)]
pub struct ReplaySocket {
    /// In order.
    pub exchanges: Vec<Exchange>,
}

/// A question to a replay socket, and its answers.
#[derive(Debug, Serialize)]
pub struct Exchange {
    /// What the recorder calls it.
    pub label: String,
    /// From which sequence number on messages were asked for.
    pub asked_from: Option<u64>,
    /// Whether the end marker came.
    pub ended: bool,
    /// Frames that are no answer.
    pub strange: u64,
    /// The messages that came.
    #[serde(flatten)]
    pub events: EventReport,
}

/// Requests and answers.
#[derive(Debug, Default, Serialize)]
pub struct Http {
    /// How many.
    pub exchanges: u64,
    /// By path and status.
    pub routes: Vec<Route>,
    /// Choices by their finish reason.
    pub finish_reasons: BTreeMap<String, u64>,
}

/// Exchanges with one path and status.
#[derive(Debug, Serialize)]
pub struct Route {
    /// The path.
    pub path: String,
    /// The status.
    pub status: u64,
    /// How many.
    pub exchanges: u64,
    /// Answers that were streams.
    pub streams: u64,
    /// Answers with transfer parameters.
    pub with_transfer_params: u64,
    /// Answers without.
    pub without_transfer_params: u64,
    /// Requests with transfer parameters, where requests were recorded.
    pub asked_with_transfer_params: u64,
    /// Answers with an error in them, whatever their status.
    pub errors: u64,
}

/// Handshakes.
#[derive(Debug, Serialize)]
pub struct Handshakes {
    /// By name.
    pub engines: Vec<Engine>,
    /// Which may hand over to which.
    pub pairs: Vec<Pair>,
}

/// What an engine says of itself.
#[derive(Debug, Serialize)]
pub struct Engine {
    /// What the recorder calls it.
    pub name: String,
    /// Its id.
    pub engine_id: String,
    /// Its NIXL agent: one life of the process.
    pub agent: String,
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// KV bytes of a token.
    pub bytes_per_token: u64,
}

/// A prefill engine and a decode engine.
#[derive(Debug, Serialize)]
pub struct Pair {
    /// The one that prefills.
    pub prefill: String,
    /// The one that decodes.
    pub decode: String,
    /// Why they cannot hand over; absent if they can.
    pub mismatch: Option<String>,
}

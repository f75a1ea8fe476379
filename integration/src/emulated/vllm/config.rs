//! How an emulated vLLM is started.

use std::time::Duration;

use baton_transfer::Fabric;

use super::super::core::{CoreConfig, Told};
use super::super::model::ROW_BYTES;
use super::super::pool::{BlockHash, CacheKeys, HostMemory};
use super::super::speed::Speed;
use super::events::{self, HashForm};

/// Tokens per KV block, as recorded.
pub const BLOCK_SIZE: u32 = 32;

/// Blocks of an engine, as recorded.
pub const BLOCKS: u32 = 256;

/// The name that every engine serves its model under, unless told otherwise.
pub const MODEL: &str = "tiny";

/// The handshake's hash of the recorded pair.
const COMPATIBILITY_HASH: &str = "2b99002e67ae07159c7f0b1a8477b52881665113f0649995de773a219769682e";

/// Where KV events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsConfig {
    /// The publisher's endpoint; one without `*` is connected to.
    pub endpoint: String,
    /// The replay socket's endpoint, if there is one.
    pub replay_endpoint: Option<String>,
    /// First frame of every message.
    pub topic: String,
    /// Batches that can be replayed.
    pub buffer_steps: usize,
    /// How hashes are written.
    pub hash_form: HashForm,
}

/// How an engine is started.
#[expect(clippy::struct_excessive_bools, reason = "vLLM's own flags")]
#[derive(Debug, Clone)]
pub struct Config {
    /// `kv_role`; `None` for an engine without a connector.
    pub role: Option<String>,
    /// `--model`: a directory with a `tokenizer.json`, or a mere name for the built-in tokenizer.
    pub model: String,
    /// `--served-model-name`.
    pub served_model_name: String,
    /// LoRA adapters, by name.
    pub loras: Vec<String>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks per rank, the null block among them.
    pub blocks: u32,
    /// `--max-model-len`.
    pub max_model_len: usize,
    /// `--max-num-batched-tokens`.
    pub max_batched_tokens: usize,
    /// `--max-num-seqs`.
    pub max_sequences: usize,
    /// `--data-parallel-size`.
    pub ranks: u32,
    /// What the handshake's hash is.
    pub compatibility_hash: String,
    /// What the handshake calls the layout.
    pub layout: String,
    /// Added to every token id that `/tokenize` tells: another tokenizer.
    pub token_offset: u32,
    /// How long KV is held for decode.
    pub lease: Duration,
    /// `kv_load_failure_policy` is `recompute`.
    pub recompute_failed_loads: bool,
    /// Its `--api-key`.
    pub api_key: Option<String>,
    /// Its `engine_id`, if it is given one; else it takes a new one as told.
    pub engine_id: Option<String>,
    /// Its KV events.
    pub events: Option<EventsConfig>,
    /// `--enable-prompt-tokens-details`.
    pub prompt_tokens_details: bool,
    /// `--enable-scale-out`.
    pub scale_out: bool,
    /// `VLLM_SERVER_DEV_MODE`.
    pub dev_mode: bool,
    /// `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION`.
    pub plain_ids: bool,
    /// How long its steps take.
    pub speed: Speed,
    /// Over what its KV leaves it.
    pub fabric: Fabric,
    /// Bytes per second at which KV leaves it; `None` is as fast as the machine. NIXL takes no notice.
    pub kv_bandwidth: Option<f64>,
    /// Bytes of KV that a token leaves.
    pub row_bytes: usize,
    /// Of jitter and unseeded sampling.
    pub seed: u64,
    /// Remember every request, byte for byte: tests look at them.
    pub remember: bool,
}

impl Config {
    /// An engine of this role, as recorded, but without time behaviour.
    pub fn new(role: Option<&str>) -> Self {
        Self {
            role: role.map(str::to_owned),
            model: "model".to_owned(),
            served_model_name: MODEL.to_owned(),
            loras: Vec::new(),
            block_size: BLOCK_SIZE,
            blocks: BLOCKS,
            max_model_len: 1024,
            max_batched_tokens: 2048,
            max_sequences: 128,
            ranks: 1,
            compatibility_hash: COMPATIBILITY_HASH.to_owned(),
            layout: "LBHNC".to_owned(),
            token_offset: 0,
            lease: Duration::from_secs(30),
            recompute_failed_loads: false,
            api_key: None,
            engine_id: None,
            events: None,
            prompt_tokens_details: false,
            scale_out: false,
            dev_mode: true,
            plain_ids: false,
            speed: Speed::INSTANT,
            fabric: Fabric::loopback(),
            kv_bandwidth: None,
            row_bytes: ROW_BYTES,
            seed: 0,
            remember: true,
        }
    }

    /// A rank of it.
    pub fn core(&self, rank: u32) -> CoreConfig {
        CoreConfig {
            block_size: self.block_size,
            blocks: self.blocks,
            row_bytes: self.row_bytes,
            max_batched_tokens: self.max_batched_tokens,
            max_sequences: self.max_sequences,
            speed: self.speed,
            kv_bandwidth: self.kv_bandwidth,
            seed: self.seed,
            rank,
            connected: self.role.is_some(),
            lease: self.lease,
            recompute_failed_loads: self.recompute_failed_loads,
            told: Told::WhenFull,
            host: HostMemory::Unused,
            hash: block_hash,
        }
    }
}

/// vLLM's hash of a block: LoRA in every block, salt in the first one.
fn block_hash(parent: Option<&BlockHash>, tokens: &[u32], keys: &CacheKeys) -> BlockHash {
    let lora = |(name, _): &(String, u64)| events::ExtraKey::Lora {
        name: name.clone(),
        path: name.clone(),
    };
    let mut extra: Vec<_> = keys.lora.iter().map(lora).collect();
    if parent.is_none() {
        extra.extend(keys.salt.clone().map(events::ExtraKey::CacheSalt));
    }
    events::block_hash(parent, tokens, &extra)
}

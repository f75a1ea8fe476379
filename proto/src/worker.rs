//! What a worker is: its engine, what it serves, how big it is, where it stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compat::Compatibility;

/// Which engine. The router shows it and never decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// An engine of a newer peer.
    #[serde(other)]
    Unknown,
}

/// Which legs a worker may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill legs of split requests, and whole requests when it must.
    Prefill,
    /// Decode legs of split requests, and whole requests.
    Decode,
    /// Either leg.
    Any,
    /// Whole requests only: its engine was started without a transfer connector.
    Local,
    /// No leg at all: its engine is not to be reached by requests. What it holds and how busy it is, is known all the same.
    Observed,
    /// A role of a newer peer: given no work.
    #[serde(other)]
    Unknown,
}

impl Role {
    /// Whether it may take any leg.
    pub fn serves(self) -> bool {
        !matches!(self, Self::Observed | Self::Unknown)
    }

    /// Whether it may take prefill legs.
    pub fn prefills(self) -> bool {
        matches!(self, Self::Prefill | Self::Any)
    }

    /// Whether it may take decode legs.
    pub fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::Any)
    }
}

/// Where blocks are kept (KVBM's G1 to G4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The accelerator's memory, or what the engine uses as such.
    Device,
    /// Host memory.
    Host,
    /// Local disk.
    Disk,
    /// A store shared by several workers.
    External,
    /// A tier of a newer peer.
    #[serde(other)]
    Unknown,
}

impl Tier {
    /// The word in metrics and reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::External => "external",
            Self::Unknown => "unknown",
        }
    }
}

/// Blocks of one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierBlocks {
    /// The tier.
    pub tier: Tier,
    /// Number of blocks.
    pub blocks: u64,
}

/// What a sidecar knows of its engine. Absent means unknown, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Which engine.
    pub engine: EngineKind,
    /// Its version, in its own words.
    pub engine_version: String,
    /// Which legs it may serve.
    pub role: Role,
    /// It takes legs of split requests only: its engine has no way to serve a request alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub legs_only: bool,
    /// Names under which it serves its model.
    pub models: Vec<String>,
    /// Digest of the model's identity, where the sidecar can see the files.
    pub model_digest: Option<String>,
    /// Names of loaded LoRA adapters.
    pub lora_adapters: Vec<String>,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// KV block size in tokens.
    pub block_size: Option<u32>,
    /// Capacity per tier and rank, in blocks.
    pub capacity: Vec<TierBlocks>,
    /// KV bytes per token, all layers.
    pub kv_bytes_per_token: Option<u64>,
    /// Most sequences in one batch.
    pub max_sequences: Option<u32>,
    /// Most tokens in one batch.
    pub max_batched_tokens: Option<u32>,
    /// Longest sequence in tokens.
    pub context_length: Option<u32>,
    /// Digest of all that decides a prompt's tokens ([`crate::model::ModelFiles::digest`]), if the sidecar has these files.
    pub tokenizer_digest: Option<String>,
    /// Digest of the chat template.
    pub chat_template_digest: Option<String>,
    /// Labels such as zone, rack, host.
    pub topology: BTreeMap<String, String>,
    /// What another engine must share to exchange KV with it; absent if it cannot at all.
    pub compatibility: Option<Compatibility>,
}

impl WorkerInfo {
    /// An engine of one rank of which nothing else is known.
    pub fn unknown(engine: EngineKind, role: Role) -> Self {
        Self {
            engine,
            engine_version: String::new(),
            role,
            legs_only: false,
            models: Vec::new(),
            model_digest: None,
            lora_adapters: Vec::new(),
            ranks: 1,
            block_size: None,
            capacity: Vec::new(),
            kv_bytes_per_token: None,
            max_sequences: None,
            max_batched_tokens: None,
            context_length: None,
            tokenizer_digest: None,
            chat_template_digest: None,
            topology: BTreeMap::new(),
            compatibility: None,
        }
    }
}

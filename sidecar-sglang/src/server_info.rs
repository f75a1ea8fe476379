//! `GET /server_info`: what the engine says of itself.
//!
//! The answer holds API keys and passwords in clear (0.5.23). So this is a list of the fields that are read; nothing else
//! of it is kept, logged or handed on.

use std::collections::BTreeMap;

use baton_proto::{Error, ErrorKind, Incarnation, Source, Stage};
use serde::Deserialize;

/// The fields that are read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ServerInfo {
    /// SGLang's version.
    pub version: String,
    /// Directory or name of the model.
    pub model_path: String,
    /// Directory or name of the tokenizer.
    pub tokenizer_path: Option<String>,
    /// `auto`, `slow` or another kind.
    pub tokenizer_mode: Option<String>,
    /// It takes token ids only.
    pub skip_tokenizer_init: Option<bool>,
    /// `--chat-template`: a file, or the name of a built-in one.
    pub chat_template: Option<String>,
    /// Which of several templates of the tokenizer.
    pub hf_chat_template_name: Option<String>,
    /// Arguments that every chat gets.
    pub default_chat_template_kwargs: Option<serde_json::Value>,
    /// Name of the served model.
    pub served_model_name: Option<String>,
    /// Changed when weights are updated in place.
    pub weight_version: Option<String>,
    /// Longest sequence, if it was given.
    pub context_length: Option<u32>,
    /// Tokens of a page, which is a KV block here.
    pub page_size: u32,
    /// Tokens that the KV cache of a rank holds.
    pub max_total_num_tokens: Option<u64>,
    /// Most sequences in a batch.
    pub max_running_requests: Option<u32>,
    /// Most prompt tokens in a batch.
    pub max_prefill_tokens: Option<u32>,
    /// Most prompt tokens in a chunk of a prefill; below 0: never cut.
    pub chunked_prefill_size: Option<i64>,
    /// Data-parallel ranks.
    pub dp_size: Option<u32>,
    /// Tensor-parallel ranks.
    pub tp_size: Option<u32>,
    /// Pipeline stages.
    pub pp_size: Option<u32>,
    /// Context-parallel ranks of attention.
    pub attn_cp_size: Option<u32>,
    /// Context-parallel ranks of decode.
    pub dcp_size: Option<u32>,
    /// Hosts.
    pub nnodes: Option<u32>,
    /// Type of weights.
    pub dtype: Option<String>,
    /// Type of KV.
    pub kv_cache_dtype: Option<String>,
    /// Quantization of weights.
    pub quantization: Option<String>,
    /// Speculative decoding, which may key its cache by pairs of tokens.
    pub speculative_algorithm: Option<String>,
    /// It makes embeddings, no tokens.
    pub is_embedding: Option<bool>,
    /// It keeps no prefixes.
    pub disable_radix_cache: Option<bool>,
    /// It has a lower tier in host memory.
    pub enable_hierarchical_cache: Option<bool>,
    /// Its metrics page is there.
    pub enable_metrics: Option<bool>,
    /// `null`, `prefill` or `decode`.
    pub disaggregation_mode: Option<String>,
    /// By what KV moves.
    pub disaggregation_transfer_backend: Option<String>,
    /// Port of the HTTP server at which decode engines find a prefill engine.
    pub disaggregation_bootstrap_port: Option<u16>,
    /// How requests are spread over its ranks.
    pub load_balance_method: Option<String>,
    /// Where its KV events are.
    pub kv_events: Option<KvEvents>,
    /// What it was told of its KV events, JSON in a text.
    pub kv_events_config: Option<String>,
    /// Seconds that parts of its start took: together as good as a name of this start.
    pub startup_time: Option<BTreeMap<String, serde_json::Value>>,
    /// Drawn anew at each start, unless it was given.
    pub random_seed: Option<i64>,
}

/// Where the engine's KV events and its load are to be had. Ports count up by rank.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct KvEvents {
    /// `zmq` is the one that can be listened to.
    pub publisher: Option<String>,
    /// Host that the engine listens at, or `*`.
    pub endpoint_host: Option<String>,
    /// Port of rank 0.
    pub endpoint_port_base: Option<u16>,
    /// What they are published under.
    #[serde(default)]
    pub topic: String,
    /// Tokens of the blocks in them.
    pub block_size: Option<u32>,
    /// Ranks that publish.
    pub dp_size: Option<u32>,
    /// Port at which rank 0 publishes its load.
    pub load_endpoint_port_base: Option<u16>,
    /// What load is published under.
    pub load_topic: Option<String>,
    /// Port at which rank 0 sends events again.
    pub replay_endpoint_port_base: Option<u16>,
}

/// What of `--kv-events-config` matters here.
#[derive(Deserialize)]
struct EventsConfig {
    format: Option<String>,
    bind: Option<bool>,
}

impl ServerInfo {
    /// Tokens of a KV block: what its events say, which is more than a page where decode is context-parallel.
    pub fn block_size(&self) -> u32 {
        let events = self.kv_events.as_ref();
        events
            .and_then(|events| events.block_size)
            .unwrap_or(self.page_size)
    }

    /// Whether it finds prefixes again that it has computed. A decode engine does not, unless it was told to.
    pub fn keeps_prefixes(&self) -> bool {
        self.disable_radix_cache != Some(true)
    }

    /// Whether blocks of requests with an `extra_key` have other names than those without.
    pub fn tells_namespaces(&self) -> bool {
        let config = self.events_config();
        config.and_then(|config| config.format).as_deref() == Some("dynamo")
    }

    /// Whether it listens where it publishes its KV events. It binds what looks like a wildcard and connects to all else,
    /// unless it was told otherwise (0.5.23, `ZmqEventPublisher._socket_setup`).
    pub fn binds_events(&self) -> bool {
        if let Some(bind) = self.events_config().and_then(|config| config.bind) {
            return bind;
        }
        let host = self
            .kv_events
            .as_ref()
            .and_then(|events| events.endpoint_host.as_deref());
        host.is_none_or(|host| {
            ["*", "::", "0.0.0.0"]
                .iter()
                .any(|wild| host.contains(wild))
        })
    }

    fn events_config(&self) -> Option<EventsConfig> {
        serde_json::from_str(self.kv_events_config.as_deref()?).ok()
    }

    /// Which start of the engine this is. It tells no time of its start, but how long its parts took, to the nanosecond.
    pub fn incarnation(&self) -> Result<Incarnation, Error> {
        let parts = [
            "load_weight",
            "kv_cache_allocation",
            "scheduler_e2e",
            "tokenizer_e2e",
        ];
        let told = self.startup_time.as_ref();
        let mut digest = blake3::Hasher::new();
        let mut known = 0;
        for part in parts {
            if let Some(seconds) = told.and_then(|told| told.get(part)?.as_f64()) {
                digest.update(&seconds.to_be_bytes());
                known += 1;
            }
            digest.update(b"/");
        }
        if known < 2 {
            let why = "the engine does not say how long its start took (startup_time, as 0.5.23 does), by which a restart would be seen";
            return Err(Error::new(
                ErrorKind::Incompatible,
                Source::Engine,
                Stage::Fleet,
                why,
            ));
        }
        digest.update(format!("{:?}", self.random_seed).as_bytes());
        let name = format!("start-{}", &digest.finalize().to_hex()[..24]);
        name.parse().map_err(|bad| {
            let why = format!("{bad}");
            Error::new(ErrorKind::Internal, Source::Sidecar, Stage::Fleet, why)
        })
    }
}

//! How an emulated SGLang is started.

use std::time::Duration;

use baton_transfer::Fabric;

use super::super::core::{CoreConfig, Told};
use super::super::model::ROW_BYTES;
use super::super::pool::HostMemory;
use super::super::speed::Speed;
use super::events::{self, Form, Format};

/// Tokens per page, as recorded.
pub const PAGE_SIZE: u32 = 4;

/// Pages of an engine, as recorded: `--max-total-tokens 4096`.
pub const PAGES: u32 = 1024;

/// `--disaggregation-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Not disaggregated.
    Null,
    /// Computes prompts for others.
    Prefill,
    /// Takes prompts that were computed elsewhere.
    Decode,
}

impl Mode {
    /// As the flag and `/server_info` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Where KV events go: `--kv-events-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsConfig {
    /// The publisher's endpoint of rank 0; one without `*` is connected to.
    pub endpoint: String,
    /// The replay socket's endpoint, if there is one.
    pub replay_endpoint: Option<String>,
    /// First frame of every message.
    pub topic: String,
    /// Batches that can be replayed.
    pub buffer_steps: usize,
    /// How namespaces show in hashes.
    pub format: Format,
    /// How events are written: releases differ.
    pub form: Form,
}

/// How long it waits for what, by SGLang's own environment variables; tests are given less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// `SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT`: prefill, for its decode.
    pub bootstrap: Duration,
    /// `SGLANG_DISAGGREGATION_WAITING_TIMEOUT`: decode, for its KV.
    pub waiting: Duration,
    /// `SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL`: between two looks at prefill's bootstrap server.
    pub heartbeat: Duration,
    /// `SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE`: in vain so often in a row.
    pub heartbeat_failures: u32,
    /// Tries of decode to learn of prefill, and the time between them.
    pub topology_tries: u32,
    /// Between two of them.
    pub topology_pause: Duration,
    /// `SGLANG_REQUEST_STATE_WAIT_TIMEOUT`: how often it looks whether a client has left.
    pub disconnect_poll: Duration,
    /// How long a health check takes at least.
    pub health_pause: Duration,
    /// `SGLANG_HEALTH_CHECK_TIMEOUT`: how long it takes at most.
    pub health: Duration,
}

impl Patience {
    /// As the real engine has it.
    pub const REAL: Self = Self {
        bootstrap: Duration::from_secs(300),
        waiting: Duration::from_secs(300),
        heartbeat: Duration::from_secs(5),
        heartbeat_failures: 2,
        topology_tries: 15,
        topology_pause: Duration::from_secs(1),
        disconnect_poll: Duration::from_secs(4),
        health_pause: Duration::from_secs(1),
        health: Duration::from_secs(20),
    };

    /// Everything so many times faster.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |time: Duration| time.mul_f64(factor);
        Self {
            bootstrap: scaled(self.bootstrap),
            waiting: scaled(self.waiting),
            heartbeat: scaled(self.heartbeat),
            topology_pause: scaled(self.topology_pause),
            disconnect_poll: scaled(self.disconnect_poll),
            health_pause: scaled(self.health_pause),
            health: self.health,
            ..self
        }
    }
}

/// How an engine is started.
#[expect(clippy::struct_excessive_bools, reason = "SGLang's own flags")]
#[derive(Debug, Clone)]
pub struct Config {
    /// `--disaggregation-mode`.
    pub mode: Mode,
    /// `--model-path`: a directory with a `tokenizer.json`, or a mere name for the built-in tokenizer.
    pub model: String,
    /// `--served-model-name`.
    pub served_model_name: String,
    /// `--page-size`: tokens per page.
    pub page_size: u32,
    /// Pages per rank: `--max-total-tokens` over `--page-size`.
    pub pages: u32,
    /// `--context-length`.
    pub context_length: usize,
    /// `--max-running-requests`.
    pub max_running_requests: usize,
    /// `--chunked-prefill-size`.
    pub chunked_prefill_size: usize,
    /// `--disaggregation-bootstrap-port`; decode takes it for that of a prefill that is not told.
    pub bootstrap_port: u16,
    /// Pages of the host's memory per rank: `--enable-hierarchical-cache`; 0 for none.
    pub host_pages: usize,
    /// `--dp-size`.
    pub dp_size: u32,
    /// Its KV events.
    pub events: Option<EventsConfig>,
    /// Where its load stream goes: `--load-publish-endpoint`, resolved.
    pub load_endpoint: Option<String>,
    /// `--enable-cache-report`.
    pub cache_report: bool,
    /// `--disaggregation-decode-enable-radix-cache`.
    pub decode_radix_cache: bool,
    /// `--enable-metrics`.
    pub metrics: bool,
    /// `--api-key`.
    pub api_key: Option<String>,
    /// `--admin-api-key`.
    pub admin_api_key: Option<String>,
    /// It writes a chat's tools in front of the chat, whatever the model's template says.
    pub own_way_with_tools: bool,
    /// How long it waits for what.
    pub patience: Patience,
    /// A second request of a room that is still in use ends the scheduler, as it did over mooncake.
    pub dies_of_used_rooms: bool,
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
    /// What `/server_info` says it was started with.
    pub launch_command: String,
}

impl Config {
    /// An engine of this mode, as recorded, but without time behaviour and with a twentieth of the real one's patience.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            model: "model".to_owned(),
            served_model_name: "tiny".to_owned(),
            page_size: PAGE_SIZE,
            pages: PAGES,
            context_length: 2048,
            max_running_requests: 8,
            chunked_prefill_size: 4096,
            bootstrap_port: 8998,
            host_pages: 0,
            dp_size: 1,
            events: None,
            load_endpoint: None,
            cache_report: true,
            decode_radix_cache: false,
            metrics: true,
            api_key: None,
            admin_api_key: None,
            own_way_with_tools: false,
            patience: Patience::REAL.scaled(0.05),
            dies_of_used_rooms: false,
            speed: Speed::INSTANT,
            fabric: Fabric::loopback(),
            kv_bandwidth: None,
            row_bytes: ROW_BYTES,
            seed: 0,
            remember: true,
            launch_command: String::new(),
        }
    }

    /// Whether it has a radix cache at all.
    pub fn has_cache(&self) -> bool {
        self.mode != Mode::Decode || self.decode_radix_cache
    }

    /// A rank of it. One page more than it has is the null block.
    pub fn core(&self, rank: u32) -> CoreConfig {
        CoreConfig {
            block_size: self.page_size,
            blocks: self.pages + 1,
            row_bytes: self.row_bytes,
            max_batched_tokens: self.chunked_prefill_size,
            max_sequences: self.max_running_requests,
            speed: self.speed,
            kv_bandwidth: self.kv_bandwidth,
            seed: self.seed,
            rank,
            connected: false,
            // KV is held until its decode has it or is gone: there are no leases.
            lease: Duration::from_secs(1 << 32),
            recompute_failed_loads: false,
            told: Told::WhenInserted,
            host: HostMemory::Copies(self.host_pages),
            hash: events::page_hash,
        }
    }
}

//! How an emulated TensorRT-LLM is started.

use std::time::Duration;

use baton_transfer::Fabric;

use super::super::core::{CoreConfig, Told};
use super::super::model::ROW_BYTES;
use super::super::pool::HostMemory;
use super::super::speed::Speed;
use super::hash;

/// Tokens per KV block, unless told otherwise.
pub const TOKENS_PER_BLOCK: u32 = 32;

/// Blocks of an engine, unless told otherwise.
const BLOCKS: u32 = 256;

/// What has no end.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// Which release's wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 1.2, the stable one.
    V12,
    /// What becomes 1.3 and 1.4.
    Main,
}

impl Era {
    /// What `/version` says.
    pub fn version(self) -> &'static str {
        match self {
            Self::V12 => "1.2.1",
            Self::Main => "1.4.0rc1",
        }
    }
}

/// `kv_cache_hash_algo`: how blocks are named in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAlgo {
    /// Numbers of 64 bits.
    V1BlockKey,
    /// SHA-256 in hexadecimal. How tokens are written before they are hashed is not known; here it is an own way.
    V2Sha256,
    /// The first eight bytes of the same as a number.
    V2Sha256Short,
}

impl HashAlgo {
    /// As events and `/server_info` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1BlockKey => "v1_block_key",
            Self::V2Sha256 => "v2_sha256",
            Self::V2Sha256Short => "v2_sha256_64",
        }
    }
}

/// `cache_transceiver_config.transceiver_runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transceiver {
    /// It says nothing of itself: only context-first.
    Cpp,
    /// `/server_info` says where it is: generation may be asked first.
    Python,
}

/// `--server_role`: what a fleet uses it for. The engine itself does what each request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// It computes prompts for others.
    Context,
    /// It takes prompts that were computed elsewhere.
    Generation,
    /// Both.
    Any,
    /// Neither.
    Alone,
}

/// How requests between the two sides are vouched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Not at all.
    Off,
    /// `internal_request_auth_key`.
    Key(String),
    /// There is no key, and what needs one is refused, as one release between did.
    Required,
}

/// `kv_cache_config`, as far as events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsConfig {
    /// `event_buffer_max_size`: events of a rank that wait to be polled.
    pub buffer: usize,
    /// Window sizes: with several, every block is told of once for each.
    pub windows: Vec<u32>,
    /// The second KV cache manager tells `hash_algo` and `layer_group_id`.
    pub second_manager: bool,
}

/// How long it waits for what; tests are given less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// `kv_transfer_timeout_ms`: context for its generation, generation for its KV. 1.2 has none.
    pub transfer: Option<Duration>,
    /// How often it looks whether a client has left.
    pub disconnect_poll: Duration,
    /// How long a poll of an empty event queue takes.
    pub events: Duration,
    /// The same of `/metrics`.
    pub metrics: Duration,
    /// How long `/steady_clock_offset` takes.
    pub clock: Duration,
}

impl Patience {
    /// As the real engine of this era has it.
    pub fn real(era: Era) -> Self {
        let (transfer, events) = match era {
            Era::V12 => (None, Duration::from_secs(2)),
            Era::Main => (Some(Duration::from_secs(60)), Duration::ZERO),
        };
        Self {
            transfer,
            disconnect_poll: Duration::from_secs(1),
            events,
            metrics: Duration::from_secs(2),
            clock: Duration::from_millis(200),
        }
    }

    /// Everything so many times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |time: Duration| time.mul_f64(factor);
        Self {
            transfer: self.transfer.map(scaled),
            disconnect_poll: scaled(self.disconnect_poll),
            events: scaled(self.events),
            metrics: scaled(self.metrics),
            clock: scaled(self.clock),
        }
    }
}

/// How an engine is started.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which release.
    pub era: Era,
    /// What it is used for.
    pub role: ServerRole,
    /// A directory with a `tokenizer.json`, or a mere name for the built-in tokenizer.
    pub model: String,
    /// `--served_model_name`.
    pub served_model_name: String,
    /// `kv_cache_config.tokens_per_block`.
    pub tokens_per_block: u32,
    /// Blocks per rank.
    pub blocks: u32,
    /// `--max_seq_len`.
    pub max_seq_len: usize,
    /// `--max_batch_size`.
    pub max_batch_size: usize,
    /// `--max_num_tokens`.
    pub max_num_tokens: usize,
    /// Blocks of the host's memory per rank: `kv_cache_config.host_cache_size`; 0 for none.
    pub host_blocks: usize,
    /// Attention data parallelism: so many ranks; `None` without.
    pub attention_dp: Option<u32>,
    /// Its KV events; `None` if `event_buffer_max_size` is 0.
    pub events: Option<EventsConfig>,
    /// How blocks are named.
    pub hash_algo: HashAlgo,
    /// `enable_iter_perf_stats`.
    pub iteration_stats: bool,
    /// `return_perf_metrics`, and `perf_metrics_max_requests`.
    pub request_stats: Option<usize>,
    /// `cache_transceiver_config`; `None` without one: it takes no part in handoffs.
    pub transceiver: Option<Transceiver>,
    /// `internal_request_auth_key`.
    pub auth: Auth,
    /// How long it waits for what.
    pub patience: Patience,
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
    /// An engine of this era that takes part in handoffs and tells all that it can, without time behaviour and with a twentieth
    /// of the real one's patience.
    pub fn new(era: Era) -> Self {
        Self {
            era,
            role: ServerRole::Any,
            model: "model".to_owned(),
            served_model_name: "tiny".to_owned(),
            tokens_per_block: TOKENS_PER_BLOCK,
            blocks: BLOCKS,
            max_seq_len: 2048,
            max_batch_size: 8,
            max_num_tokens: 8192,
            host_blocks: 0,
            attention_dp: None,
            events: Some(EventsConfig {
                buffer: 8192,
                windows: vec![4096],
                second_manager: false,
            }),
            hash_algo: HashAlgo::V1BlockKey,
            iteration_stats: true,
            request_stats: None,
            transceiver: Some(Transceiver::Cpp),
            auth: Auth::Off,
            patience: Patience::real(era).scaled(0.05),
            speed: Speed::INSTANT,
            fabric: Fabric::loopback(),
            kv_bandwidth: None,
            row_bytes: ROW_BYTES,
            seed: 0,
            remember: true,
        }
    }

    /// Its ranks.
    pub fn ranks(&self) -> u32 {
        self.attention_dp.unwrap_or(1)
    }

    /// A rank of it. One block more than it has is the null block.
    pub fn core(&self, rank: u32) -> CoreConfig {
        CoreConfig {
            block_size: self.tokens_per_block,
            blocks: self.blocks + 1,
            row_bytes: self.row_bytes,
            max_batched_tokens: self.max_num_tokens,
            max_sequences: self.max_batch_size,
            speed: self.speed,
            kv_bandwidth: self.kv_bandwidth,
            seed: self.seed,
            rank,
            connected: false,
            // How long KV stays pinned is no affair of the scheduler: see `leg/context.rs`.
            lease: FOR_EVER,
            recompute_failed_loads: false,
            told: Told::WithTails,
            host: HostMemory::Evicted(self.host_blocks),
            hash: match (self.hash_algo, self.era) {
                (HashAlgo::V1BlockKey, Era::V12) => hash::v1_12,
                (HashAlgo::V1BlockKey, Era::Main) => hash::v1_main,
                (HashAlgo::V2Sha256 | HashAlgo::V2Sha256Short, _) => hash::v2,
            },
        }
    }
}

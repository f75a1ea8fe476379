//! How busy a worker is, as far as its sidecar can tell, and from where it has each number.

use serde::{Deserialize, Serialize};

use crate::worker::TierBlocks;

/// From where a sidecar has a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The engine's metrics page.
    EngineMetric,
    /// A stream the engine publishes.
    EngineStream,
    /// The sidecar's own table of what is in flight.
    InFlightTable,
    /// A place a newer peer knows.
    #[serde(other)]
    Unknown,
}

/// A number and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured<T> {
    /// The number.
    pub value: T,
    /// Where it comes from.
    pub from: Origin,
}

/// By what KV moves from engine to engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// From memory to memory of one host: shared memory, CMA, `NVLink`.
    Memory,
    /// TCP.
    Tcp,
    /// RDMA: InfiniBand, RoCE.
    Rdma,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

impl Transport {
    /// All that are known.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Tcp, Self::Rdma];

    /// The word in logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Unknown => "unknown",
        }
    }
}

/// KV that an engine fetches from others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvIn {
    /// How fast it came lately, in bytes per second of a transfer.
    pub bytes_per_s: f64,
    /// By what; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

/// One report of load. Absent means unknown, never zero.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadReport {
    /// Grows by one with each report of a sidecar's life.
    pub seq: u64,
    /// Requests being computed.
    pub running: Option<Measured<u32>>,
    /// Requests waiting in the engine.
    pub waiting: Option<Measured<u32>>,
    /// Prompt tokens not yet computed, of prefill and local legs.
    pub queued_prefill_tokens: Option<Measured<u64>>,
    /// Free KV blocks per tier.
    pub free: Option<Measured<Vec<TierBlocks>>>,
    /// Handoffs whose KV is held here for decode workers.
    pub handoffs_held: Option<Measured<u32>>,
    /// Handoffs being pulled in by the engine here.
    pub handoffs_pulling: Option<Measured<u32>>,
    /// Prompt tokens per second of the last prefills.
    pub prefill_tokens_per_s: Option<Measured<f64>>,
    /// Generated tokens per second and sequence.
    pub decode_tokens_per_s: Option<Measured<f64>>,
    /// The engine's cache was quarantined in its present life: nothing that is cached is found again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quarantined: bool,
    /// How KV comes in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_in: Option<Measured<KvIn>>,
    /// The engine has work and makes no progress. Absent: it does, or has none.
    pub stall: Option<Measured<Stall>>,
}

/// No progress for longer than an engine's own history explains.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stall {
    /// Times since the last progress that work had to wait for longer than it should.
    pub times: u32,
    /// Legs that wait for the engine.
    pub legs: u32,
    /// How long they have waited since anything moved, in milliseconds.
    pub silent_ms: u64,
    /// How long the engine may be silent by its own history.
    pub bound_ms: u64,
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |ms: u64| std::time::Duration::from_millis(ms).as_secs_f64();
        write!(
            f,
            "its engine has work for {} requests and made no progress for {:.1} s; {:.1} s is the longest that its history explains",
            self.legs,
            seconds(self.silent_ms),
            seconds(self.bound_ms)
        )
    }
}

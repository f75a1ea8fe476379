//! The fleets that are simulated, and all parameters of their engines. No policy sees these.

use baton_proto::worker::Role;

use super::engine::EngineConfig;
use super::policy::Facts;
use super::trace::BLOCK;
use crate::emulated::speed::Speed;

/// One current GPU with a model of some eight billion parameters, of the order of what is published; no measurement.
///
/// A prompt of 12,000 tokens alone takes 0.66 s (18,000 tokens a second), of which 0.11 s are attention's quadratic part. A
/// decode step of 32 sequences of 12,000 tokens takes 8 + 1 + 15 ms: reading KV at 3.3 TB/s is most of it.
pub const SPEED: Speed = Speed {
    step: 8.0e6,
    prefill_token: 45.0e3,
    attention_pair: 1.5,
    decode_sequence: 30.0e3,
    decode_context: 40.0,
    jitter: 0.05,
};

/// Bytes of KV per token: 32 layers, 8 KV heads of 128, keys and values, two bytes each.
pub const KV_BYTES_PER_TOKEN: u32 = 131_072;

/// Tokens of KV that fit beside the weights: 62 GB of 80.
pub const CACHE_TOKENS: u32 = 475_136;

/// Bytes per second of a worker's card: 100 Gbit/s.
pub const CARD: f64 = 12.5e9;

/// What passes between workers and router, and how late. All in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delays {
    /// A message between router and worker, either way.
    pub hop: f64,
    /// Until a router knows of a change of a cache.
    pub event: f64,
    /// Between a worker's load reports.
    pub report_interval: f64,
    /// Until a load report is read.
    pub report: f64,
    /// Until a transfer's first byte moves.
    pub transfer: f64,
    /// How long KV is held for decode, which is the engine's own limit.
    pub lease: f64,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            hop: 5e-4,
            event: 2e-3,
            report_interval: 0.25,
            report: 2e-3,
            transfer: 2e-3,
            lease: 480.0,
        }
    }
}

/// A worker as it is.
#[derive(Debug, Clone)]
pub struct Worker {
    /// What it may serve.
    pub role: Role,
    /// How it computes.
    pub engine: EngineConfig,
    /// Bytes per second of its card.
    pub card: f64,
    /// Bytes of KV that a token leaves.
    pub kv_bytes_per_token: u32,
    /// Whether its KV events reach the router.
    pub tells: bool,
}

/// What is wrong with a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// The first worker computes at 0.4 of the others' speed.
    SlowWorker,
    /// The first worker's card has a tenth of the others' bandwidth.
    SlowLink,
    /// Of the first worker no KV event comes.
    SilentWorker,
}

/// A fleet by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetKind {
    /// Workers.
    pub workers: usize,
    /// The first half prefills and the other half decodes; otherwise all do anything.
    pub split: bool,
    /// What is wrong.
    pub flaw: Flaw,
}

impl FleetKind {
    /// Its name in figures.
    pub fn name(self) -> String {
        let kind = if self.split { "split" } else { "any" };
        let flaw = match self.flaw {
            Flaw::None => "",
            Flaw::SlowWorker => "_slow_worker",
            Flaw::SlowLink => "_slow_link",
            Flaw::SilentWorker => "_silent_worker",
        };
        format!("{kind}{}{flaw}", self.workers)
    }

    /// Its workers.
    pub fn workers(self, seed: u64) -> Vec<Worker> {
        let mut workers: Vec<Worker> = (0..self.workers)
            .map(|number| Worker {
                role: match (self.split, number < self.workers / 2) {
                    (false, _) => Role::Any,
                    (true, true) => Role::Prefill,
                    (true, false) => Role::Decode,
                },
                engine: engine(seed.wrapping_mul(1009).wrapping_add(number as u64)),
                card: CARD,
                kv_bytes_per_token: KV_BYTES_PER_TOKEN,
                tells: true,
            })
            .collect();
        let first = &mut workers[0];
        match self.flaw {
            Flaw::None => {}
            Flaw::SlowWorker => first.engine.speed = slower(first.engine.speed, 0.4),
            Flaw::SlowLink => first.card *= 0.1,
            Flaw::SilentWorker => first.tells = false,
        }
        workers
    }
}

impl Worker {
    /// What it says of itself.
    pub fn facts(&self) -> Facts {
        let small = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        Facts {
            role: self.role,
            block_size: self.engine.block_size,
            blocks: self.engine.blocks,
            max_sequences: small(self.engine.max_sequences),
            max_batched_tokens: small(self.engine.max_batched_tokens),
            kv_bytes_per_token: self.kv_bytes_per_token,
            context_length: 262_144,
        }
    }
}

fn engine(seed: u64) -> EngineConfig {
    EngineConfig {
        block_size: BLOCK,
        blocks: CACHE_TOKENS / BLOCK,
        max_batched_tokens: 8192,
        max_sequences: 256,
        speed: SPEED,
        seed,
    }
}

fn slower(speed: Speed, factor: f64) -> Speed {
    Speed {
        step: speed.step / factor,
        prefill_token: speed.prefill_token / factor,
        attention_pair: speed.attention_pair / factor,
        decode_sequence: speed.decode_sequence / factor,
        decode_context: speed.decode_context / factor,
        jitter: speed.jitter,
    }
}

//! The emulated vLLM 0.32.0 with its `NixlConnector` (pull).
//!
//! Its wire is what was recorded of the real one: HTTP surface, KV events with their replay socket, the NIXL side channel,
//! metrics. It dies of the bodies and frames that the real one dies of. What else goes wrong is said by [`script::Rule`]s
//! and switches on [`EmulatedVllm`]; every request that reached it is remembered byte for byte ([`Seen`]).

mod answers;
mod args;
mod config;
mod engine;
pub mod events;
mod generate;
pub mod metrics;
#[cfg(test)]
pub(super) mod recorded;
mod request;
mod routes;
mod scale_out;
pub mod side_channel;
mod telling;
mod transfer;

pub use self::args::Args;
pub use self::config::{BLOCK_SIZE, BLOCKS, Config, EventsConfig, MODEL};
pub use self::engine::{EmulatedVllm, EngineId};
pub use super::script::Http;
pub use super::{Fate, Life, Seen, Text, publisher, script};

//! The emulated SGLang 0.5.23 with its disaggregation over a NIXL-like fabric.
//!
//! Its wire is what was recorded of the real one: HTTP surface, bootstrap server, KV events with their replay socket, the load
//! stream, metrics. Both legs of a handoff carry a room; decode finds prefill by its bootstrap server, and gets the KV when both
//! are there, whoever came first. What ends a leg badly, and in which words, is the recorded table of failures.
//!
//! One thing differs from the real one and cannot be seen on the wire: decode reads the pages that prefill would push.

mod answers;
mod args;
mod bootstrap;
mod config;
mod engine;
pub mod events;
mod generate;
mod info;
mod leg;
mod load;
mod metrics;
mod peers;
mod request;
mod routes;
mod telling;

pub use self::args::Args;
pub use self::config::{Config, EventsConfig, Mode, PAGE_SIZE, PAGES, Patience};
pub use self::engine::EmulatedSglang;

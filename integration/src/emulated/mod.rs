//! Emulated engines: fast, many, deterministic, and breakable on purpose.
//!
//! What is the same for all of them is here: a [`model`] whose text is made of KV bytes, a paged prefix cache ([`pool`]), a
//! scheduler ([`core`]) whose steps take the time that [`speed`] says, and [`memory`] that others can read over the fabrics of
//! `baton-transfer`.
//! What makes one of them vLLM is in [`vllm`], SGLang in [`sglang`], and TensorRT-LLM, from its sources alone, in [`trtllm`].
//! Nothing here uses a line of the router or of a sidecar: what judges them must not share their mistakes.

pub mod args;
pub mod core;
mod daemon;
pub mod in_process;
mod legs;
pub mod memory;
mod misbehave;
pub mod model;
pub mod pool;
mod process;
pub mod publisher;
pub mod reach;
mod rooms;
pub mod script;
mod seat;
mod seen;
mod server;
pub mod sglang;
pub mod speed;
mod texts;
pub mod tokenizer;
mod transfer;
pub mod trtllm;
pub mod vllm;
mod wishes;

pub use self::daemon::run_process;
pub use self::process::{Life, Process};
pub use self::seen::{Fate, Seen};
pub use self::texts::Text;

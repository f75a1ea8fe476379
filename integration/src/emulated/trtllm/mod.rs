//! The emulated TensorRT-LLM behind `trtllm-serve`, in two eras, with its disaggregation over a NIXL-like fabric.
//!
//! **From paper.** No TensorRT-LLM runs without a GPU, so nothing here was compared with one: its wire is what was read in its
//! sources and tests, and where those say nothing a choice was made, which its comment says. The other emulated engines rest
//! on recordings; this one does not.
//!
//! Prefill ("context") answers before its KV has moved and pins the blocks until a generation request with the same ids asks for
//! them. KV events are a queue that whoever polls it empties. Both eras differ in fields, ids and waits: see [`Era`].

mod answers;
mod args;
mod auth;
mod config;
mod engine;
mod events;
mod fields;
mod generate;
mod hash;
mod iterations;
mod leg;
mod outbox;
mod params;
mod request;
mod routes;
mod telling;

pub use self::args::Args;
pub use self::config::{
    Auth, Config, Era, EventsConfig, HashAlgo, Patience, ServerRole, TOKENS_PER_BLOCK, Transceiver,
};
pub use self::engine::EmulatedTrtllm;
pub use self::hash::v1_block_key;
pub use self::outbox::EventFault;

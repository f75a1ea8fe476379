//! Baton's sidecar for vLLM: the engine's dialect and how it is reached. Written against vLLM 0.32.0 with its
//! `NixlConnector` (pull).
//!
//! Everything that is vLLM's own lives here and nowhere else: `kv_transfer_params` ([`dialect`]), the NIXL handshake over
//! its side channel ([`handshake`], [`side_channel`]), its KV events ([`events`]), its metrics page ([`metrics_page`]) and
//! its flags ([`attach`]).
//! [`engine`] puts them together. The parsers are public because they read bytes we do not own and are fuzzed.

pub mod args;
pub mod attach;
pub mod dialect;
pub mod engine;
pub mod events;
pub mod follow;
pub mod handshake;
pub mod http;
mod mapped;
pub use baton_sidecar_core::metrics_page;
pub mod model_files;
pub mod names;
pub mod notifier;
pub mod side_channel;
pub mod transfer_params;
mod worker_info;

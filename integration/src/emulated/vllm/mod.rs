//! The emulated vLLM 0.32.0.

pub mod events;
pub mod metrics;
pub mod publisher;
pub mod side_channel;

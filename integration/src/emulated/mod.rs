//! Engines that behave like the real ones in time, KV and wire, without a model.

pub mod vllm;

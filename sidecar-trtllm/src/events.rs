//! TensorRT-LLM's KV events, in the sidecar's terms.
//!
//! They are had by polls that take them away ([`crate::follow`]): what somebody else took, or what the engine dropped because
//! nobody polled, is gone and can be had from nobody. [`decode`] reads an answer, [`tracker`] knows what its events mean after
//! those before, [`v1_hash`] whether a block is called what its tokens alone would have it called.

pub mod decode;
pub mod tracker;
pub mod v1_hash;

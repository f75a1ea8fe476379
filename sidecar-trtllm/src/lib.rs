//! Baton's sidecar for TensorRT-LLM (`trtllm-serve`): the engine's dialect and how it is reached.
//!
//! **Nothing here was ever run beside a TensorRT-LLM**: it needs a GPU, and none was at hand. Everything rests on reading the
//! engine's sources, in two eras that are told apart by what the engine says of itself ([`server_info::Era`]): 1.2, and what
//! comes after it. Where a comment names an era or a source, that is where a fact was read, not where it was seen.
//!
//! Everything that is TensorRT-LLM's own lives here and nowhere else. Start reading at [`dialect`] (how requests are put to it,
//! and what its handoffs are) and [`events`] (what its KV cache holds, told by polls that are destructive). [`attach`] reads
//! flags and the engine's own options, [`lives`] tells one start of it from the next, [`engine`] puts all together. The parsers
//! are public because they read bytes we do not own and are fuzzed.

pub mod args;
pub mod attach;
mod auth;
mod causes;
pub mod dialect;
pub mod engine;
pub mod events;
mod follow;
pub mod http;
mod ids;
mod introduce;
pub mod lives;
pub mod load;
pub mod observed;
mod refusal;
pub mod server_info;
pub mod source;

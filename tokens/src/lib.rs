//! Exact prompt tokens from a model's own files.
//!
//! Given `tokenizer.json`, the chat template and what belongs to them, this crate says which tokens an engine will make of
//! a request: of a completion's text ([`Model::completion`]) and of a chat's body ([`Model::chat`]). A router needs them to
//! know which worker holds the prompt's KV blocks; a single wrong token is another prompt. Hence one rule for everything
//! here: **exact tokens, or [`Unknown`] with the reason**. What the engine would do with a request is taken from vLLM 0.32.0
//! and its library, and compared with them in `vectors/`.
//!
//! A chat's next turn repeats all of the turns before it. Texts are cut where that is provably exact (`cuts`) and encoded
//! pieces are remembered (`pieces`), so that a turn costs what is new in it.
//!
//! This crate must never know: a protocol, a network, a clock, an async runtime, where files come from. It is given bytes.
//!
//! Start reading at `model`, then `chat`, `template` and `encoder`.

mod chat;
mod completion;
mod corpus;
mod cuts;
mod encoder;
mod files;
mod json;
mod limits;
mod model;
mod pieces;
mod python;
mod template;
mod truncate;
mod unknown;

pub use chat::Chat;
pub use files::{ContentFormat, EngineSettings, ModelFiles};
pub use limits::Limits;
pub use model::{Model, Rendered, Shown, ShownTemplate};
pub use template::Now;
pub use unknown::{LoadError, Unknown};

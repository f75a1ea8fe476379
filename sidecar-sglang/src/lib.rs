//! Baton's sidecar for SGLang: the engine's dialect and how it is reached. Written against SGLang 0.5.23.
//!
//! Everything that is SGLang's own lives here and nowhere else: what it says of itself ([`server_info`]), its rooms
//! ([`rooms`]) and how requests are put to it ([`dialect`]), and its flags ([`attach`]). [`engine`] puts them together. The
//! parsers are public because they read bytes we do not own and are fuzzed.

pub mod args;
pub mod attach;
pub mod dialect;
pub mod engine;
pub mod events;
mod follow;
pub mod http;
mod introduce;
pub mod load;
mod refusal;
pub mod rooms;
pub mod server_info;
pub mod spelling;
mod worker_info;

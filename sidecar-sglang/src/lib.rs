//! Baton's sidecar for SGLang: the engine's dialect and how it is reached. Written against SGLang 0.5.23.
//!
//! Everything that is SGLang's own lives here and nowhere else: what it says of itself ([`server_info`]), its rooms
//! ([`rooms`]) and how requests are put to it ([`dialect`]), and its flags ([`attach`], [`hook`]). [`engine`] puts them together. The
//! parsers are public because they read bytes we do not own and are fuzzed.

pub mod args;
pub mod attach;
pub mod dialect;
pub mod engine;
pub mod events;
mod follow;
pub mod hook;
pub mod http;
mod introduce;
pub mod load;
mod refusal;
pub mod rooms;
pub mod server_info;
pub mod spelling;
mod worker_info;

use baton_daemon::Exit;
use tokio_util::sync::CancellationToken;

/// Runs the sidecar until it is asked to stop or an engine that it launched ends.
pub async fn run(args: args::SglangArgs, stop: CancellationToken) -> Result<(), Exit> {
    let (config, launch) = attach::plan(&args)?;
    let engine = engine::SglangEngine::new(config)?;
    baton_sidecar_core::run::run(engine, args.core, launch, stop).await
}

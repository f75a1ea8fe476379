//! The two ways to attach: what is known of an engine from flags, its own or ours, before it has said a word.

use std::path::PathBuf;

use baton_daemon::Exit;
use baton_sidecar_core::command::EngineCommand;
use baton_sidecar_core::launch::Launch;

use crate::args::SglangArgs;

/// SGLang's port if none is given (0.5.23).
const DEFAULT_PORT: &str = "30000";

/// What must be known of an engine to attach to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Base URL of its HTTP server.
    pub base_url: String,
    /// Its `--api-key`.
    pub api_key: Option<String>,
    /// Where decode engines reach it.
    pub bootstrap_host: String,
    /// Directory with its tokenizer's files.
    pub model_dir: Option<PathBuf>,
}

/// Reads the flags: how to reach the engine, and how to launch it if it is to be launched.
pub fn plan(args: &SglangArgs) -> Result<(EngineConfig, Option<Launch>), Exit> {
    match (&args.engine, args.command.is_empty()) {
        (Some(url), true) => Ok((config(args, url, args.engine_api_key.clone())?, None)),
        (None, false) => launching(args).map(|(config, launch)| (config, Some(launch))),
        (Some(_), false) => Err(Exit::usage(
            "give either --engine or an engine command after --, not both",
        )),
        (None, true) => Err(Exit::usage(
            "say which engine: --engine URL for a running one, or its command after -- to launch it",
        )),
    }
}

fn config(args: &SglangArgs, url: &str, api_key: Option<String>) -> Result<EngineConfig, Exit> {
    let uri = baton_daemon::http::base_url(url)
        .ok_or_else(|| Exit::usage(format!("{url:?} must look like http://127.0.0.1:30000")))?;
    let host = uri.host().unwrap_or("127.0.0.1");
    Ok(EngineConfig {
        base_url: url.trim_end_matches('/').to_owned(),
        api_key,
        bootstrap_host: args
            .bootstrap_host
            .clone()
            .unwrap_or_else(|| advertised(args, host)),
        model_dir: args.model_dir.clone(),
    })
}

/// Where others reach the engine: where they reach its sidecar, which stands beside it, unless the engine itself is
/// somewhere else.
fn advertised(args: &SglangArgs, engine: &str) -> String {
    let is_here = engine == "localhost" || engine.starts_with("127.") || engine == "[::1]";
    let address: Option<http::Uri> = args.core.address().parse().ok();
    let sidecar = address.and_then(|address| address.host().map(str::to_owned));
    match sidecar {
        Some(sidecar) if is_here => sidecar,
        _ => engine.to_owned(),
    }
}

fn launching(args: &SglangArgs) -> Result<(EngineConfig, Launch), Exit> {
    let command = EngineCommand::new(args.command.clone());
    let host = command.flag("host").unwrap_or_default();
    let host = if matches!(host.as_str(), "" | "0.0.0.0" | "::") {
        "127.0.0.1"
    } else {
        host.as_str()
    };
    let port = command
        .flag("port")
        .unwrap_or_else(|| DEFAULT_PORT.to_owned());
    let api_key = args
        .engine_api_key
        .clone()
        .or_else(|| command.flag("api-key"));
    let config = config(args, &format!("http://{host}:{port}"), api_key)?;
    let launch = Launch {
        command: command.into_inner(),
        environment: std::collections::BTreeMap::new(),
    };
    Ok((config, launch))
}

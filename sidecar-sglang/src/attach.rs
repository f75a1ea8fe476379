//! The two ways to attach: what is known of an engine from flags, its own or ours, before it has said a word.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;

use baton_daemon::Exit;
use baton_sidecar_core::command::{EngineCommand, Way, base_url};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::launch::Launch;
use serde_json::json;

use crate::args::SglangArgs;

/// SGLang's port if none is given (0.5.23).
pub(crate) const DEFAULT_PORT: &str = "30000";

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
    /// Sockets of its KV events that it was launched with and says nothing of.
    pub events: Option<Sockets>,
    /// A folder to be made for them.
    pub events_folder: Option<PathBuf>,
}

/// Sockets of an engine's KV events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// Where they are published.
    pub events: String,
    /// Where the last ones can be had again.
    pub replay: String,
}

/// Reads the flags: how to reach the engine, and how to launch it if it is to be launched.
pub fn plan(args: &SglangArgs) -> Result<(EngineConfig, Option<Launch>), Exit> {
    match Way::of(args.engine.as_ref(), &args.command)? {
        Way::Beside(url) => Ok((config(args, url, args.engine_api_key.clone())?, None)),
        Way::Launching(command) => {
            launching(args, command).map(|(config, launch)| (config, Some(launch)))
        }
    }
}

fn config(args: &SglangArgs, url: &str, api_key: Option<String>) -> Result<EngineConfig, Exit> {
    let base_url = base_url(url, DEFAULT_PORT)?;
    let uri = base_url.parse::<http::Uri>().ok();
    let host = uri
        .as_ref()
        .and_then(http::Uri::host)
        .unwrap_or("127.0.0.1");
    let bootstrap_host = args.bootstrap_host.clone();
    let bootstrap_host = bootstrap_host.unwrap_or_else(|| advertised(args, host));
    Ok(EngineConfig {
        base_url,
        api_key,
        bootstrap_host,
        model_dir: args.model_dir.clone(),
        events: None,
        events_folder: None,
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

fn launching(
    args: &SglangArgs,
    mut command: EngineCommand,
) -> Result<(EngineConfig, Launch), Exit> {
    let api_key = args
        .engine_api_key
        .clone()
        .or_else(|| command.flag("api-key"));
    let mut config = config(args, &command.base_url(DEFAULT_PORT), api_key)?;
    if command.flag("kv-events-config").is_none() && keeps_prefixes(&command) {
        match ranks(&command)? {
            1 => add_sockets(&mut command, &mut config),
            ranks => add_ports(&mut command, ranks)?,
        }
    }
    let launch = Launch {
        command: command.into_inner(),
        environment: BTreeMap::new(),
    };
    Ok((config, launch))
}

/// Whether the engine finds prefixes again, without which it has no KV events.
fn keeps_prefixes(command: &EngineCommand) -> bool {
    let decodes = command.flag("disaggregation-mode").as_deref() == Some("decode");
    let forgets = decodes && !command.is_set("disaggregation-decode-enable-radix-cache");
    !forgets && !command.is_set("disable-radix-cache")
}

/// Its data-parallel ranks.
fn ranks(command: &EngineCommand) -> Result<u16, Exit> {
    let names = ["dp-size", "data-parallel-size", "dp"];
    let Some(given) = names.iter().find_map(|name| command.flag(name)) else {
        return Ok(1);
    };
    let ranks = given.parse::<u16>().ok().filter(|ranks| *ranks > 0);
    ranks.ok_or_else(|| {
        Exit::usage(format!(
            "the engine's --dp-size {given} is no number of ranks"
        ))
    })
}

/// Blocks of different namespaces get different names in this format only.
const FORMAT: &str = "dynamo";

/// KV events over sockets in a folder of the sidecar's own, where nobody else reads the tokens of all prompts. The engine does
/// not tell of such sockets (0.5.23), and publishes no load beside them: its sockets for load listen on all addresses.
fn add_sockets(command: &mut EngineCommand, config: &mut EngineConfig) {
    let folder = PrivateFolder::place();
    let socket = |name: &str| format!("ipc://{}", folder.join(name).display());
    let sockets = Sockets {
        events: socket("events"),
        replay: socket("replay"),
    };
    let json = json!({
        "publisher": "zmq",
        "endpoint": sockets.events,
        "replay_endpoint": sockets.replay,
        "format": FORMAT,
    });
    command.set("kv-events-config", &json.to_string());
    config.events = Some(sockets);
    config.events_folder = Some(folder);
}

/// KV events of several ranks: the engine counts ports up, and has no such rule for paths (0.5.23).
fn add_ports(command: &mut EngineCommand, ranks: u16) -> Result<(), Exit> {
    let first = free_ports(2 * ranks).ok_or_else(|| {
        Exit::failure(format!(
            "no {} free ports in a row for the KV events of {ranks} ranks: give the engine a --kv-events-config",
            2 * ranks
        ))
    })?;
    let at = |port: u16| format!("tcp://127.0.0.1:{port}");
    let json = json!({
        "publisher": "zmq",
        "endpoint": at(first),
        // Without it the engine would connect to what is no wildcard.
        "bind": true,
        "replay_endpoint": at(first + ranks),
        "format": FORMAT,
    });
    command.set("kv-events-config", &json.to_string());
    Ok(())
}

/// The first of so many ports in a row at which nobody listens on this host.
fn free_ports(count: u16) -> Option<u16> {
    // Below those that the kernel gives out by itself.
    const FROM: u16 = 20_000;
    const TO: u16 = 32_000;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Sidecars that start at once must not all try the same ports.
    let own = std::process::id() % u32::from(TO - FROM);
    let begin = FROM + u16::try_from(own).unwrap_or_default();
    let places = (begin..TO).chain(FROM..begin);
    let mut places = places.filter(|first| first.checked_add(count).is_some_and(|end| end < TO));
    places.find(|first| (*first..first + count).all(is_free))
}

#[cfg(test)]
mod tests;

//! The two ways to attach: what is known of an engine from flags, its own or ours, before it has said a word.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use baton_daemon::Exit;
use baton_proto::worker::Role;
use baton_sidecar_core::command::{EngineCommand, Way, base_url};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::launch::Launch;
use serde::Deserialize;

use crate::args::VllmArgs;
use crate::follow::source::EventsConfig;
use crate::model_files::{self, PromptConfig};
use crate::names::PLAIN_IDS;
use crate::notifier::NixlConfig;

const HOST_VARIABLE: &str = "VLLM_NIXL_SIDE_CHANNEL_HOST";
const PORT_VARIABLE: &str = "VLLM_NIXL_SIDE_CHANNEL_PORT";

/// What must be known of an engine to attach to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Base URL of its HTTP server.
    pub base_url: String,
    /// Its `--api-key`.
    pub api_key: Option<String>,
    /// Its transfer connector; absent for an engine that only serves whole requests.
    pub transfer: Option<TransferConfig>,
    /// Its KV events, as far as flags tell.
    pub events: Option<EventsConfig>,
    /// A folder to be made for the sockets of its KV events.
    pub events_folder: Option<PathBuf>,
    /// How it makes prompts.
    pub prompts: PromptConfig,
    /// Sequences that a rank of it runs at a time, if that is known.
    pub max_sequences: Option<u32>,
}

/// What must be known of an engine's NIXL connector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferConfig {
    /// Which legs it may serve.
    pub role: Role,
    /// Its `engine_id`, if it is known.
    pub engine_id: Option<String>,
    /// How long it holds KV for decode.
    pub lease: Duration,
    /// Its NIXL side channel, `host:port`.
    pub side_channel: String,
    /// How it is spoken to over NIXL.
    pub nixl: NixlConfig,
}

/// vLLM's `--kv-transfer-config`, the parts that matter here.
#[derive(Debug, Deserialize)]
struct KvTransferConfig {
    kv_connector: Option<String>,
    kv_role: Option<String>,
    engine_id: Option<String>,
    #[serde(default)]
    kv_connector_extra_config: ExtraConfig,
}

#[derive(Debug, Default, Deserialize)]
struct ExtraConfig {
    kv_lease_duration: Option<f64>,
    bidirectional_kv_xfer: Option<bool>,
}

/// vLLM's port if none is given.
const DEFAULT_PORT: &str = "8000";

/// vLLM's default lease (0.32.0, `kv_connector_extra_config.kv_lease_duration`).
const DEFAULT_LEASE_S: f64 = 30.0;

/// Reads the flags: how to reach the engine, and how to launch it if it is to be launched.
pub fn plan(args: &VllmArgs) -> Result<(EngineConfig, Option<Launch>), Exit> {
    match Way::of(args.engine.as_ref(), &args.command)? {
        Way::Beside(url) => Ok((beside(args, url)?, None)),
        Way::Launching(command) => {
            launching(args, command).map(|(config, launch)| (config, Some(launch)))
        }
    }
}

fn beside(args: &VllmArgs, url: &str) -> Result<EngineConfig, Exit> {
    let transfer = args
        .kv_transfer_config
        .as_deref()
        .map(|json| transfer_config(json, args))
        .transpose()?;
    Ok(EngineConfig {
        base_url: base_url(url, DEFAULT_PORT)?,
        api_key: args.engine_api_key.clone(),
        transfer,
        events: args
            .kv_events_config
            .as_deref()
            .map(events_config)
            .transpose()?,
        events_folder: None,
        prompts: PromptConfig {
            directory: args.model_dir.clone(),
            template: args.chat_template.clone(),
            ..PromptConfig::default()
        },
        max_sequences: args.max_num_seqs,
    })
}

fn events_config(json: &str) -> Result<EventsConfig, Exit> {
    serde_json::from_str(json).map_err(|error| {
        Exit::usage(format!(
            "--kv-events-config is not what vLLM takes: {error}"
        ))
    })
}

/// KV events for an engine whose command says nothing of them: over sockets in a folder of its own, where nobody else
/// reads the tokens of all prompts. An engine without prefix caching has none.
fn add_events(command: &mut EngineCommand) -> (Option<EventsConfig>, Option<PathBuf>) {
    let says = |argument: String| {
        argument.starts_with("--kv-events-config.") || argument == "--no-enable-prefix-caching"
    };
    if command.canonical().any(says) {
        return (None, None);
    }
    let folder = PrivateFolder::place();
    let socket = |name: &str| format!("ipc://{}", folder.join(name).display());
    let config = EventsConfig {
        enable_kv_cache_events: true,
        publisher: Some("zmq".to_owned()),
        endpoint: socket("events"),
        replay_endpoint: Some(socket("replay")),
        topic: String::new(),
    };
    let json = serde_json::json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": config.endpoint,
        "replay_endpoint": config.replay_endpoint,
    });
    command.set("kv-events-config", &json.to_string());
    (Some(config), Some(folder))
}

fn launching(args: &VllmArgs, mut command: EngineCommand) -> Result<(EngineConfig, Launch), Exit> {
    if args.kv_transfer_config.is_some() {
        return Err(Exit::usage(
            "--kv-transfer-config belongs into the engine's command when the sidecar launches it",
        ));
    }
    if args.kv_events_config.is_some() {
        return Err(Exit::usage(
            "--kv-events-config belongs into the engine's command when the sidecar launches it",
        ));
    }
    refuse_what_is_not_supported(&command)?;
    let mut transfer = None;
    if let Some(json) = command.flag("kv-transfer-config") {
        let engine_id = baton_daemon::fresh::hex_id();
        let json = with_engine_id(&json, &engine_id)?;
        transfer = Some(transfer_config(&json, args)?);
        command.set("kv-transfer-config", &json);
    }
    let (events, events_folder) = match command.flag("kv-events-config") {
        Some(json) => (Some(events_config(&json)?), None),
        None => add_events(&mut command),
    };
    let api_key = args
        .engine_api_key
        .clone()
        .or_else(|| command.flag("api-key"));
    let config = EngineConfig {
        base_url: base_url(&command.base_url(DEFAULT_PORT), DEFAULT_PORT)?,
        api_key,
        transfer,
        events,
        events_folder,
        prompts: model_files::of_command(
            args,
            |name| command.flag(name),
            |name| command.is_set(name),
        ),
        max_sequences: args.max_num_seqs.or_else(|| {
            let given = command.flag("max-num-seqs")?;
            given.parse().ok()
        }),
    };
    let environment = config
        .transfer
        .as_ref()
        .map(side_channel_environment)
        .transpose()?
        .unwrap_or_default();
    Ok((
        config,
        Launch {
            command: command.into_inner(),
            environment,
        },
    ))
}

/// The engine listens where the sidecar will look for it.
fn side_channel_environment(transfer: &TransferConfig) -> Result<BTreeMap<String, String>, Exit> {
    let (host, port) = transfer.side_channel.rsplit_once(':').ok_or_else(|| {
        Exit::usage(format!(
            "--side-channel {:?} must be HOST:PORT",
            transfer.side_channel
        ))
    })?;
    let told = [(HOST_VARIABLE, host), (PORT_VARIABLE, port)];
    // What the operator has set is left as it is.
    let plain = std::env::var_os(PLAIN_IDS).is_none();
    let all = told.into_iter().chain(plain.then_some((PLAIN_IDS, "1")));
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Ok(all.map(owned).collect())
}

fn transfer_config(json: &str, args: &VllmArgs) -> Result<TransferConfig, Exit> {
    let config: KvTransferConfig = serde_json::from_str(json).map_err(|error| {
        Exit::usage(format!(
            "--kv-transfer-config is not what vLLM takes: {error}"
        ))
    })?;
    match config.kv_connector.as_deref() {
        Some("NixlConnector" | "NixlPullConnector") => {}
        Some(other) => {
            return Err(Exit::usage(format!(
                "the connector {other} is not supported; use NixlConnector (pull)"
            )));
        }
        None => {
            return Err(Exit::usage(
                "--kv-transfer-config has no kv_connector; use NixlConnector (pull)",
            ));
        }
    }
    if config.kv_connector_extra_config.bidirectional_kv_xfer == Some(true) {
        let why = "bidirectional_kv_xfer is not supported: decode engines would hold KV that nobody gives back";
        return Err(Exit::usage(why));
    }
    let role = match config.kv_role.as_deref() {
        Some("kv_producer") => Role::Prefill,
        Some("kv_consumer") => Role::Decode,
        Some("kv_both") | None => Role::Any,
        Some(other) => {
            return Err(Exit::usage(format!(
                "kv_role {other:?} is none of kv_producer, kv_consumer, kv_both"
            )));
        }
    };
    let lease = config
        .kv_connector_extra_config
        .kv_lease_duration
        .unwrap_or(DEFAULT_LEASE_S);
    let lease = Duration::try_from_secs_f64(lease)
        .ok()
        .filter(|lease| *lease >= Duration::from_secs(1))
        .ok_or_else(|| {
            Exit::usage(format!(
                "kv_lease_duration {lease} is no time that decode could use"
            ))
        })?;
    Ok(TransferConfig {
        role,
        engine_id: config.engine_id,
        lease,
        side_channel: side_channel(args)?,
        nixl: nixl(args),
    })
}

fn nixl(args: &VllmArgs) -> NixlConfig {
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let launched = EngineCommand::new(args.command.clone()).environment();
    NixlConfig {
        library: args.nixl_lib.clone(),
        near: launched.into_iter().chain(environment).collect(),
        devices: args
            .nixl_devices
            .clone()
            .or_else(|| std::env::var("UCX_NET_DEVICES").ok()),
    }
}

fn side_channel(args: &VllmArgs) -> Result<String, Exit> {
    let from_environment = || {
        let host = std::env::var(HOST_VARIABLE).unwrap_or_else(|_| "localhost".to_owned());
        // vLLM's default port (0.32.0, envs.py).
        let port = std::env::var(PORT_VARIABLE).unwrap_or_else(|_| "5600".to_owned());
        format!("{host}:{port}")
    };
    let address = args.side_channel.clone().unwrap_or_else(from_environment);
    let port = address
        .rsplit_once(':')
        .and_then(|(host, port)| Some(!host.is_empty()).and(port.parse::<u16>().ok()));
    match port {
        Some(_) => Ok(address),
        None => Err(Exit::usage(format!(
            "the side channel {address:?} must be HOST:PORT"
        ))),
    }
}

/// A decode engine caches the NIXL agent of an engine_id for an hour and fails every transfer after a restart under the
/// same id (0.32.0, `engine_ttl`), so each boot gets a new one.
fn with_engine_id(json: &str, engine_id: &str) -> Result<String, Exit> {
    let object = baton_proto::json::RawObject::parse(json.as_bytes()).map_err(|bad| {
        Exit::usage(format!(
            "--kv-transfer-config is not what vLLM takes: {bad}"
        ))
    })?;
    if object.get("engine_id").is_some() {
        tracing::warn!("the engine_id in the engine's command is replaced by a fresh one");
    }
    Ok(object
        .edit()
        .set("engine_id", format!("\"{engine_id}\""))
        .finish())
}

fn refuse_what_is_not_supported(command: &EngineCommand) -> Result<(), Exit> {
    for name in ["data-parallel-size", "api-server-count"] {
        if command.flag(name).is_some_and(|value| value != "1") {
            return Err(Exit::usage(format!(
                "an engine with --{name} other than 1 is not supported yet"
            )));
        }
    }
    let dotted = command
        .canonical()
        .find(|argument| argument.starts_with("--kv-transfer-config."));
    match dotted {
        Some(argument) => Err(Exit::usage(format!(
            "give --kv-transfer-config as one JSON text instead of {argument}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

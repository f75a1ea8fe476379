//! The engines of the demo, and how a sidecar stands beside each: all in which one kind differs from another.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use baton_daemon::fresh::hex_id;
use clap::ValueEnum;
use serde_json::json;

use super::fleet::{MODEL, Role};
use crate::fleet::Kind;
use crate::ports;

/// Flags of all. KV is a thirtieth of a real model's, for it is really moved and really held.
const EMULATED: [&str; 4] = [
    "--emulate-speed",
    "fast",
    "--emulate-kv-bytes-per-token",
    "4096",
];

/// Tokens of a block.
const BLOCK: &str = "16";

/// Tokens that an engine's cache holds.
const CACHE: &str = "65536";

/// Longest sequence.
const LONGEST: &str = "8192";

/// Tokens of prompts that a step computes.
const STEP: &str = "2048";

/// Which engines are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Engines {
    /// Emulated vLLM.
    #[default]
    Vllm,
    /// Emulated SGLang.
    Sglang,
    /// Emulated TensorRT-LLM, which is made from its sources alone.
    Trtllm,
    /// All three behind one router.
    Mixed,
}

impl Engines {
    /// The kind of a worker of this number; equal numbers of two roles hand over to each other.
    pub fn kind(self, number: usize) -> Kind {
        match self {
            Self::Vllm => Kind::Vllm,
            Self::Sglang => Kind::Sglang,
            Self::Trtllm => Kind::Trtllm,
            Self::Mixed => [Kind::Vllm, Kind::Sglang, Kind::Trtllm][number % 3],
        }
    }

    /// Workers of each role: whatever leaves, one of its kind must be left.
    pub fn of_each_role(self) -> usize {
        match self {
            Self::Mixed => 3,
            _ => 2,
        }
    }

    /// The number of who takes the place of this one: one of its kind.
    pub fn after(self, number: usize) -> usize {
        match self {
            Self::Mixed => number + 3,
            _ => number + 1,
        }
    }
}

/// Where a worker is.
#[derive(Debug, Clone)]
pub struct Place {
    /// The engine's HTTP API.
    pub http: SocketAddr,
    /// Its side channel, or its bootstrap server.
    pub meeting: SocketAddr,
    /// Folder for what it reads.
    pub folder: PathBuf,
    /// What it is called.
    pub id: String,
}

/// The commands of an engine and of its sidecar, as far as they depend on the kind.
#[derive(Debug)]
pub struct Commands {
    /// The engine's.
    pub engine: Command,
    /// The sidecar's.
    pub sidecar: Command,
}

/// Those of this kind; programs are in this folder.
pub fn commands(kind: Kind, role: Role, place: &Place, binaries: &Path) -> Result<Commands> {
    let name = match kind {
        Kind::Vllm => "vllm",
        Kind::Sglang => "sglang",
        Kind::Trtllm => "trtllm",
    };
    let mut commands = Commands {
        engine: Command::new(binaries.join(format!("baton-emulated-{name}"))),
        sidecar: Command::new(binaries.join(kind.sidecar())),
    };
    match kind {
        Kind::Vllm => vllm(&mut commands, role, place),
        Kind::Sglang => sglang(&mut commands, role, place),
        Kind::Trtllm => trtllm(&mut commands, role, place)?,
    }
    let port = place.http.port().to_string();
    commands
        .engine
        .args(["--host", "127.0.0.1", "--port", &port]);
    commands.engine.args(EMULATED);
    commands
        .sidecar
        .args(["--engine", &format!("http://{}", place.http)]);
    Ok(commands)
}

fn vllm(commands: &mut Commands, role: Role, place: &Place) {
    let Commands { engine, sidecar } = commands;
    engine
        .args([
            "--model",
            MODEL,
            "--block-size",
            BLOCK,
            "--max-model-len",
            LONGEST,
        ])
        .args([
            "--num-gpu-blocks-override",
            "4096",
            "--max-num-batched-tokens",
            STEP,
        ])
        .arg("--enable-prompt-tokens-details")
        .env("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
        .env(
            "VLLM_NIXL_SIDE_CHANNEL_PORT",
            place.meeting.port().to_string(),
        );
    sidecar.args(["--side-channel", &place.meeting.to_string()]);
    let kv_role = match role {
        Role::Prefill => "kv_producer",
        Role::Decode => "kv_consumer",
        Role::Aggregated => return,
    };
    // A decode engine that meets an engine_id again believes it is the same process.
    let config =
        json!({"kv_connector": "NixlConnector", "kv_role": kv_role, "engine_id": hex_id()})
            .to_string();
    for command in [engine, sidecar] {
        command.args(["--kv-transfer-config", &config]);
    }
}

fn sglang(commands: &mut Commands, role: Role, place: &Place) {
    let mode = match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Aggregated => "null",
    };
    let events = json!({
        "publisher": "zmq", "topic": "kv", "endpoint": format!("tcp://*:{}", ports::free().port()),
        "replay_endpoint": format!("tcp://*:{}", ports::free().port()),
    });
    commands
        .engine
        .args([
            "--model-path",
            MODEL,
            "--page-size",
            BLOCK,
            "--context-length",
            LONGEST,
        ])
        .args(["--max-total-tokens", CACHE, "--chunked-prefill-size", STEP])
        .args(["--enable-cache-report", "--enable-metrics"])
        .args(["--kv-events-config", &events.to_string()])
        .args([
            "--disaggregation-mode",
            mode,
            "--disaggregation-decode-enable-radix-cache",
        ])
        .args([
            "--disaggregation-bootstrap-port",
            &place.meeting.port().to_string(),
        ]);
}

/// Its options are a file.
fn trtllm(commands: &mut Commands, role: Role, place: &Place) -> Result<()> {
    let file = place.folder.join(format!("options-{}.yaml", place.id));
    let options = json!({
        "kv_cache_config": {"event_buffer_max_size": 65_536, "tokens_per_block": 16, "max_tokens": 65_536},
        "cache_transceiver_config": {"backend": "NIXL", "kv_transfer_timeout_ms": 60_000},
        "enable_iter_perf_stats": true,
    });
    fs::write(&file, options.to_string())
        .with_context(|| format!("could not write {}", file.display()))?;
    commands
        .engine
        .args([
            "serve",
            MODEL,
            "--emulate-era",
            "main",
            "--max_seq_len",
            LONGEST,
        ])
        .args(["--max_num_tokens", STEP, "--config"])
        .arg(&file);
    let role = match role {
        Role::Prefill => "prefill",
        Role::Decode => "any",
        Role::Aggregated => "local",
    };
    commands
        .sidecar
        .args(["--role", role, "--kv-transfer-timeout-ms", "60000"])
        .args(["--event-buffer-max-size", "65536"]);
    Ok(())
}

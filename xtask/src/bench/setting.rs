//! Everything that `bench overhead` loads: engines, Baton in front of them, and the minimal relay with the same hops.
//!
//! Ports are fixed: nobody else is there.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::process::Process;
use crate::progress::Progress;
use crate::{http, workspace};

/// What routers and sidecars of a run share. Nobody else can reach them.
const TOKEN: &str = "the-token-of-this-run-alone";

/// An emulated engine is there in no time, and a worker joins within a heartbeat or two.
const BOUND: Duration = Duration::from_secs(30);

/// The model that all engines serve.
const MODEL: &str = "emulated";

/// An engine: its name, `kv_role`, and ports.
struct Engine {
    name: &'static str,
    role: Option<&'static str>,
    port: u16,
    side_channel: u16,
}

const PREFILL: Engine = Engine {
    name: "prefill",
    role: Some("kv_producer"),
    port: 8301,
    side_channel: 8401,
};
const DECODE: Engine = Engine {
    name: "decode",
    role: Some("kv_consumer"),
    port: 8302,
    side_channel: 8402,
};
const LOCAL: Engine = Engine {
    name: "local",
    role: None,
    port: 8303,
    side_channel: 8403,
};

/// Ports of Baton and, at the same places, of the relay.
struct Ports {
    split_router: u16,
    prefill: u16,
    decode: u16,
    local_router: u16,
    local: u16,
}

const BATON: Ports = Ports {
    split_router: 8500,
    prefill: 8501,
    decode: 8502,
    local_router: 8510,
    local: 8511,
};
const RELAY: Ports = Ports {
    split_router: 8600,
    prefill: 8601,
    decode: 8602,
    local_router: 8610,
    local: 8611,
};

/// All processes; dropping it ends them.
pub(super) struct Setting {
    processes: Vec<(String, Process)>,
}

impl Setting {
    /// Starts everything and waits until all of it serves.
    pub(super) fn start(engine: &Path, logs: &Path) -> Result<Self> {
        ensure!(
            engine.is_file(),
            "there is no engine at {}: name one with --engine-binary",
            engine.display()
        );
        let mut setting = Self {
            processes: Vec::new(),
        };
        let mut progress = Progress::start("start");
        let mut start = |name: &str, command: &mut Command| -> Result<()> {
            let process = Process::start(name, command, logs)?;
            setting.processes.push((name.to_owned(), process));
            Ok(())
        };
        for kind in [PREFILL, DECODE, LOCAL] {
            start(&format!("engine-{}", kind.name), &mut kind.command(engine))?;
        }
        for (name, port, force) in [
            ("split", BATON.split_router, "split"),
            ("local", BATON.local_router, "local"),
        ] {
            start(&format!("router-{name}"), &mut router(port, force))?;
        }
        for (kind, port, at) in [
            (PREFILL, BATON.prefill, BATON.split_router),
            (DECODE, BATON.decode, BATON.split_router),
            (LOCAL, BATON.local, BATON.local_router),
        ] {
            start(
                &format!("sidecar-{}", kind.name),
                &mut kind.sidecar(port, at),
            )?;
        }
        let split = [("--prefill", RELAY.prefill), ("--decode", RELAY.decode)];
        start("relay-split", &mut relay(RELAY.split_router, &split))?;
        for (name, port, to) in [
            ("relay-prefill", RELAY.prefill, PREFILL.port),
            ("relay-decode", RELAY.decode, DECODE.port),
            ("relay-local-router", RELAY.local_router, RELAY.local),
            ("relay-local", RELAY.local, LOCAL.port),
        ] {
            start(name, &mut relay(port, &[("--to", to)]))?;
        }
        setting.wait(&mut progress)?;
        progress.done("everything serves");
        Ok(setting)
    }

    fn wait(&mut self, progress: &mut Progress) -> Result<()> {
        let probes = [PREFILL.port, DECODE.port, LOCAL.port].map(|port| (port, "/health"));
        let routers = [BATON.split_router, BATON.local_router].map(|port| (port, "/readyz"));
        for (port, path) in probes.into_iter().chain(routers) {
            let url = format!("http://{}{path}", address(port));
            progress.note(&format!("waiting for {url}"));
            http::wait_for(&url, BOUND, || {
                self.check_running()?;
                Ok(http::is_ok(&url).then_some(()))
            })?;
        }
        for port in [
            RELAY.split_router,
            RELAY.prefill,
            RELAY.decode,
            RELAY.local_router,
            RELAY.local,
        ] {
            http::wait_for("a relay listens", BOUND, || {
                self.check_running()?;
                let connected = TcpStream::connect_timeout(&address(port), BOUND);
                Ok(connected.is_ok().then_some(()))
            })?;
        }
        Ok(())
    }

    /// Fails, with the end of its log, if a process has ended.
    pub(super) fn check_running(&mut self) -> Result<()> {
        self.processes
            .iter_mut()
            .try_for_each(|(_, process)| process.check_running())
    }

    /// Addresses and process ids, as `baton-bench` reads them.
    pub(super) fn plan(&self) -> Result<Value> {
        let id = |name: &str| {
            let found = self.processes.iter().find(|(known, _)| known == name);
            found
                .map(|(_, process)| process.id())
                .with_context(|| format!("{name} was not started"))
        };
        let pair = [id("engine-prefill")?, id("engine-decode")?];
        let local = [id("engine-local")?];
        Ok(json!({
            "model": MODEL,
            "split": {
                "baton": {"address": address(BATON.split_router), "engines": pair, "processes": {
                    "router": id("router-split")?,
                    "prefill_sidecar": id("sidecar-prefill")?,
                    "decode_sidecar": id("sidecar-decode")?,
                }},
                "relay": {"address": address(RELAY.split_router), "engines": pair, "processes": {
                    "router": id("relay-split")?,
                    "prefill_sidecar": id("relay-prefill")?,
                    "decode_sidecar": id("relay-decode")?,
                }},
                "direct": {"address": address(DECODE.port), "engines": [pair[1]]},
            },
            "local": {
                "baton": {"address": address(BATON.local_router), "engines": local, "processes": {
                    "router": id("router-local")?, "sidecar": id("sidecar-local")?,
                }},
                "relay": {"address": address(RELAY.local_router), "engines": local, "processes": {
                    "router": id("relay-local-router")?, "sidecar": id("relay-local")?,
                }},
                "direct": {"address": address(LOCAL.port), "engines": local},
            },
        }))
    }
}

impl Engine {
    fn kv_transfer_config(&self) -> Option<String> {
        let engine_id = format!("bench-{}", self.name);
        let config = |role| json!({"kv_connector": "NixlConnector", "kv_role": role, "engine_id": engine_id});
        self.role.map(|role| config(role).to_string())
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.args(["--model", MODEL, "--host", "127.0.0.1"]);
        command.args(["--port", &self.port.to_string()]);
        // Room for 64 of the longest prompts on both sides of a handoff, however small the tokens.
        command.args(["--block-size", "32", "--num-gpu-blocks-override", "262144"]);
        command.args(["--max-model-len", "131072", "--max-num-seqs", "256"]);
        command.args([
            "--emulate-speed",
            "instant",
            "--emulate-kv-bytes-per-token",
            "8",
        ]);
        if let Some(config) = self.kv_transfer_config() {
            command.args(["--kv-transfer-config", &config]);
        }
        command
            .env("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
            .env("VLLM_NIXL_SIDE_CHANNEL_PORT", self.side_channel.to_string());
        command
    }

    fn sidecar(&self, port: u16, router: u16) -> Command {
        let mut command = Command::new(workspace::release_binary("baton-sidecar-vllm"));
        command.args([
            "--worker-id",
            self.name,
            "--listen",
            &address(port).to_string(),
        ]);
        command.args(["--router", &format!("http://{}", address(router))]);
        command.args(["--engine", &format!("http://{}", address(self.port))]);
        if let Some(config) = self.kv_transfer_config() {
            let side_channel = address(self.side_channel).to_string();
            command.args([
                "--kv-transfer-config",
                &config,
                "--side-channel",
                &side_channel,
            ]);
        }
        command.env("BATON_TOKEN", TOKEN);
        command
    }
}

fn router(port: u16, force: &str) -> Command {
    let mut command = Command::new(workspace::release_binary("baton-router"));
    command
        .args(["--listen", &address(port).to_string(), "--force", force])
        .env("BATON_TOKEN", TOKEN);
    command
}

fn relay(port: u16, peers: &[(&str, u16)]) -> Command {
    let mut command = Command::new(workspace::release_binary("baton-bench-relay"));
    command.args(["--listen", &address(port).to_string()]);
    for (flag, port) in peers {
        command.args([flag, address(*port).to_string().as_str()]);
    }
    command
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

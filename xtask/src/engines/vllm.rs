//! vLLM on the CPU: installing it by the recipe in `integration/engines/vllm`, and the command line of one engine.
//!
//! What each setting is for is written beside it; facts about 0.32.0 are from the project's wire notes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::namespace::SCRATCH;
use crate::progress::Progress;
use crate::system::{self, Missing, Need};
use crate::{engines, workspace};

/// The name that clients use for the tiny model.
pub(crate) const MODEL: &str = "tiny";

/// Booting four engines on two busy cores takes up to some minutes; longer is a hang.
pub(crate) const BOOT_BOUND: Duration = Duration::from_mins(10);

/// Flags of every engine. Without a tool parser a named `tool_choice` is refused.
const SWITCHES: [&str; 4] = [
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
];

/// The recipe's folder.
pub(crate) fn recipe() -> PathBuf {
    workspace::root().join("integration/engines/vllm")
}

/// An installed engine.
#[derive(Clone)]
pub(crate) struct Installation {
    directory: PathBuf,
    venv: PathBuf,
}

/// What an engine does in a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything alone, without a KV connector: the reference.
    Aggregated,
    /// Produces KV.
    Prefill,
    /// Consumes KV.
    Decode,
}

/// One engine to start, on 127.0.0.1.
#[derive(Clone, Copy)]
pub(crate) struct Engine {
    /// Part of the names of its log and its worker.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) role: Role,
    /// Where it serves HTTP.
    pub(crate) port: u16,
    /// Where its connector tells others about itself.
    pub(crate) side_channel: u16,
}

impl Engine {
    /// Its base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `--kv-transfer-config`. Without an engine id a launching sidecar adds one; an engine started by hand needs one that
    /// no earlier boot had, since decode engines remember the NIXL agent of an engine id.
    pub(crate) fn kv_transfer_config(&self, engine_id: Option<&str>) -> Option<String> {
        let kv_role = match self.role {
            Role::Aggregated => return None,
            Role::Prefill => "kv_producer",
            Role::Decode => "kv_consumer",
        };
        let mut config = json!({
            "kv_connector": "NixlConnector",
            "kv_role": kv_role,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"kv_lease_duration": 30},
        });
        if let Some(engine_id) = engine_id {
            config["engine_id"] = engine_id.into();
        }
        Some(config.to_string())
    }
}

/// An engine id that no other boot has.
pub(crate) fn fresh_engine_id(name: &str) -> Result<String> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")
        .context("the kernel gave no random UUID")?;
    Ok(format!("{name}-{}", random.trim()))
}

impl Installation {
    /// The Python that the engine runs in; the official `openai` client is there too.
    pub(crate) fn python(&self) -> PathBuf {
        self.venv.join("bin/python")
    }

    /// The environment that it is installed in.
    pub(crate) fn venv(&self) -> &Path {
        &self.venv
    }

    /// Where the tiny model is.
    pub(crate) fn model_directory(&self) -> PathBuf {
        self.directory.join("model")
    }

    /// Words of the command that starts an engine with the tiny model, to which flags are added.
    pub(crate) fn bare_command(&self) -> Vec<String> {
        let model = self.model_directory().display().to_string();
        let python = self.python().display().to_string();
        let words = [
            python.as_str(),
            // `vllm serve` asks for the metadata of a distribution that the CPU wheel does not have.
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            &model,
            // Greedy text must not depend on batching; on a CPU this is also faster than half precision.
            "--dtype",
            "float32",
            "--enforce-eager",
            "--disable-uvicorn-access-log",
        ];
        words.map(str::to_owned).into()
    }

    /// Words of the command that starts an engine.
    pub(crate) fn command(&self, engine: &Engine, kv_transfer_config: Option<&str>) -> Vec<String> {
        let mut words = self.bare_command();
        let port = engine.port.to_string();
        let settings = [
            ("--served-model-name", MODEL.to_owned()),
            ("--host", "127.0.0.1".to_owned()),
            ("--port", port),
            ("--max-model-len", "2048".to_owned()),
            // The CPU backend takes multiples of 32 only.
            ("--block-size", "32".to_owned()),
            ("--num-gpu-blocks-override", "2048".to_owned()),
            ("--max-num-seqs", "16".to_owned()),
            ("--max-num-batched-tokens", "2048".to_owned()),
        ];
        words.extend(
            settings
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        words.extend(SWITCHES.map(str::to_owned));
        if let Some(config) = kv_transfer_config {
            words.extend(["--kv-transfer-config".to_owned(), config.to_owned()]);
        }
        words
    }

    /// Environment of an engine, or of a sidecar that launches it.
    pub(crate) fn environment(&self, engine: &Engine) -> Vec<(&'static str, String)> {
        vec![
            ("VLLM_CPU_KVCACHE_SPACE", "1".to_owned()),
            // Engines share the cores with each other, with the router and with the client.
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind".to_owned()),
            ("OMP_NUM_THREADS", "1".to_owned()),
            ("VLLM_HOST_IP", "127.0.0.1".to_owned()),
            ("VLLM_NO_USAGE_STATS", "1".to_owned()),
            // `--enforce-eager` leaves some of the sampler to a compiler: most of a minute at the first logprobs.
            ("TORCH_COMPILE_DISABLE", "1".to_owned()),
            ("HF_HUB_OFFLINE", "1".to_owned()),
            ("TRANSFORMERS_OFFLINE", "1".to_owned()),
            // Cache resets, between two runs that must do the same work.
            ("VLLM_SERVER_DEV_MODE", "1".to_owned()),
            // What an engine learns about a model at its first boot makes the next one faster.
            (
                "VLLM_CACHE_ROOT",
                self.directory.join("cache").display().to_string(),
            ),
            ("TMPDIR", SCRATCH.to_owned()),
            ("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1".to_owned()),
            (
                "VLLM_NIXL_SIDE_CHANNEL_PORT",
                engine.side_channel.to_string(),
            ),
            ("UCX_NET_DEVICES", "lo".to_owned()),
            ("UCX_LOG_LEVEL", "warn".to_owned()),
        ]
    }
}

/// Installs the engine and makes its model, unless this very recipe is installed.
pub(crate) fn install(missing: Missing) -> Result<()> {
    system::ensure_present(&[Need::CxxCompiler, Need::Binutils, Need::Python], missing)?;
    let python =
        system::python().context("no Python that can make virtual environments was found")?;
    let directory = engines::directory().join("vllm");
    let mut command = Command::new(python);
    command.arg(recipe().join("install.py")).arg(&directory);
    if let Some(venv) = given_venv() {
        ensure!(
            venv.join("bin/python").exists(),
            "BATON_VLLM_VENV names no virtual environment: {}",
            venv.display()
        );
        command.arg("--venv").arg(venv);
    }
    run_installer(&mut command)
}

/// The engine that [`install`] left, for a process that cannot install anything any more.
pub(crate) fn installed() -> Result<Installation> {
    let directory = std::path::absolute(engines::directory().join("vllm"))?;
    let venv = given_venv().map_or_else(|| Ok(directory.join("venv")), std::path::absolute)?;
    Ok(Installation { directory, venv })
}

fn given_venv() -> Option<PathBuf> {
    std::env::var_os("BATON_VLLM_VENV").map(PathBuf::from)
}

/// Shows what the installer says it does; what goes wrong it says in one sentence.
fn run_installer(command: &mut Command) -> Result<()> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut installer = command
        .spawn()
        .context("could not start the engine's installer")?;
    let mut progress = Progress::start("vLLM installation");
    if let Some(output) = installer.stdout.take() {
        for line in BufReader::new(output).lines() {
            show(&mut progress, &line?);
        }
    }
    let mut reason = String::new();
    if let Some(mut errors) = installer.stderr.take() {
        errors.read_to_string(&mut reason)?;
    }
    if !installer.wait()?.success() {
        bail!("vLLM was not installed: {}", reason.trim());
    }
    progress.done("ready");
    Ok(())
}

/// `step N/M NAME` or `package N/M NAME`.
fn show(progress: &mut Progress, line: &str) {
    let mut words = line.splitn(3, ' ');
    let (kind, count, name) = (words.next(), words.next(), words.next().unwrap_or_default());
    let numbers = count.and_then(|count| count.split_once('/'));
    match (kind, numbers) {
        (Some("step"), Some(_)) => progress.note(name),
        (Some("package"), Some((done, total))) => {
            progress.at(done.parse().unwrap_or(0), total.parse().unwrap_or(0), name);
        }
        _ => {}
    }
}

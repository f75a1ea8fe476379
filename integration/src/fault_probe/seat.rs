//! One engine with its sidecar beside it: where both listen, and how the engine is launched.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::stand::{LEASE_S, Parts, TOKEN};
use crate::ports;
use crate::real::engine::Kind;
use crate::real::process::Process;

/// Tokens in a block. vLLM's CPU backend takes multiples of 32.
pub const BLOCK: usize = 32;

/// Blocks of the prefill engine, the null block included: two of the longest prompts fill it.
pub const PREFILL_BLOCKS: usize = 96;

/// Sequences that a decode engine runs at once.
const DECODE_PLACES: usize = 4;

/// Longest sequence.
pub const MAX_LENGTH: usize = 2048;

/// The same of SGLang: longer than what its prefill engine has room for, so that it refuses some prompts by itself.
pub const SGLANG_MAX_LENGTH: usize = 4096;

/// What an engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Computes prompts for others.
    Prefill,
    /// Generates from the KV of others.
    Decode,
    /// The same, and it refuses prompts that others take.
    SmallDecode,
    /// Answers alone; nobody but the probe knows it.
    Reference,
}

/// What a part is given: blocks, sequences and tokens a step.
struct Size {
    blocks: usize,
    sequences: usize,
    step: usize,
}

impl Part {
    /// It generates from the KV of others.
    pub fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::SmallDecode)
    }

    fn size(self) -> Size {
        match self {
            // Small steps, so that a long prompt takes several of them and can be given up in between.
            Self::Prefill => Size {
                blocks: PREFILL_BLOCKS,
                sequences: 8,
                step: 128,
            },
            Self::Decode => Size {
                blocks: 256,
                sequences: DECODE_PLACES,
                step: 512,
            },
            Self::SmallDecode => Size {
                blocks: 64,
                sequences: DECODE_PLACES,
                step: 512,
            },
            Self::Reference => Size {
                blocks: 256,
                sequences: 4,
                step: 2048,
            },
        }
    }

    fn disaggregation_mode(self) -> Option<&'static str> {
        match self {
            Self::Prefill => Some("prefill"),
            Self::Decode | Self::SmallDecode => Some("decode"),
            Self::Reference => None,
        }
    }

    fn kv_role(self) -> Option<&'static str> {
        match self {
            Self::Prefill => Some("kv_producer"),
            Self::Decode | Self::SmallDecode => Some("kv_consumer"),
            Self::Reference => None,
        }
    }
}

/// An engine and its sidecar, either of which may not be running.
#[derive(Debug)]
pub struct Seat {
    /// The worker.
    pub name: &'static str,
    /// What it does.
    pub part: Part,
    engine_at: SocketAddr,
    meeting_at: SocketAddr,
    sidecar_at: SocketAddr,
    /// Where its sidecar says that others find it, if it is one of SGLang's.
    pub told_host: &'static str,
    /// What a decode engine does with a request whose KV it could not fetch.
    on_failed_load: &'static str,
    /// One for each boot, unless it is kept on purpose.
    boots: u32,
    /// The engine.
    pub engine: Option<Process>,
    /// Its sidecar.
    pub sidecar: Option<Process>,
}

impl Seat {
    /// Nothing runs yet.
    pub fn new(name: &'static str, part: Part, on_failed_load: &'static str) -> Self {
        Self {
            name,
            part,
            engine_at: ports::free(),
            meeting_at: ports::free(),
            sidecar_at: ports::free(),
            told_host: "127.0.0.1",
            on_failed_load,
            boots: 0,
            engine: None,
            sidecar: None,
        }
    }

    /// Base URL of the engine.
    pub fn engine_url(&self) -> String {
        format!("http://{}", self.engine_at)
    }

    /// Base URL of the sidecar.
    pub fn sidecar_url(&self) -> String {
        format!("http://{}", self.sidecar_at)
    }

    /// From now on the engine has another engine id.
    pub fn renew(&mut self) {
        self.boots += 1;
    }

    fn kv_transfer_config(&self) -> Option<String> {
        let config = json!({
            "kv_connector": "NixlConnector",
            "kv_role": self.part.kv_role()?,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": self.on_failed_load,
            "engine_id": format!("{}-{}", self.name, self.boots),
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        });
        Some(config.to_string())
    }

    /// The engine's command, with the environment that is its own.
    pub fn engine_command(&self, parts: &Parts) -> Result<Command> {
        let (program, arguments) = parts
            .engine
            .split_first()
            .context("there is no engine command")?;
        let mut command = Command::new(program);
        command.args(arguments).args([
            "--served-model-name",
            &parts.model,
            "--host",
            &self.engine_at.ip().to_string(),
            "--port",
            &self.engine_at.port().to_string(),
        ]);
        match parts.kind {
            Kind::Vllm => self.vllm(&mut command),
            Kind::Sglang => self.sglang(&mut command),
        }
        Ok(command)
    }

    fn vllm(&self, command: &mut Command) {
        let Size {
            blocks,
            sequences,
            step,
        } = self.part.size();
        command.args([
            "--max-model-len",
            &MAX_LENGTH.to_string(),
            "--block-size",
            &BLOCK.to_string(),
            "--num-gpu-blocks-override",
            &blocks.to_string(),
            "--max-num-seqs",
            &sequences.to_string(),
            "--max-num-batched-tokens",
            &step.to_string(),
        ]);
        if let Some(config) = self.kv_transfer_config() {
            command.args(["--kv-transfer-config", &config]);
        }
        let (host, port) = (self.meeting_at.ip(), self.meeting_at.port());
        command.env("VLLM_NIXL_SIDE_CHANNEL_HOST", host.to_string());
        command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", port.to_string());
        // As a sidecar launches it.
        command.env("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1");
    }

    /// Its own bounds on waiting for the other side stay what they are: 300 s.
    fn sglang(&self, command: &mut Command) {
        let Size {
            blocks,
            sequences,
            step,
        } = self.part.size();
        command.args([
            "--context-length",
            &SGLANG_MAX_LENGTH.to_string(),
            "--page-size",
            &BLOCK.to_string(),
            "--max-total-tokens",
            &(blocks * BLOCK).to_string(),
            "--max-running-requests",
            &sequences.to_string(),
            "--chunked-prefill-size",
            &step.to_string(),
        ]);
        let Some(mode) = self.part.disaggregation_mode() else {
            return;
        };
        command.args(["--disaggregation-mode", mode]);
        command.args(["--disaggregation-transfer-backend", "nixl"]);
        match self.part {
            Part::Prefill => command.args([
                "--disaggregation-bootstrap-port",
                &self.meeting_at.port().to_string(),
            ]),
            // The usual place for what is put aside is memory that only a GPU's driver can pin.
            _ => command.args(["--disaggregation-decode-retraction-backup", "cpu_tensor"]),
        };
    }

    /// The command of a sidecar beside the engine.
    pub fn sidecar_command(&self, parts: &Parts, router: &str) -> Command {
        let mut command = Command::new(parts.binaries.join(parts.kind.sidecar()));
        command.env("BATON_TOKEN", TOKEN);
        command.args(["--worker-id", self.name, "--router", router]);
        command.args(["--listen", &self.sidecar_at.to_string()]);
        command.args(["--engine", &self.engine_url()]);
        match (parts.kind, self.kv_transfer_config()) {
            (Kind::Vllm, config) => {
                command.args(["--side-channel", &self.meeting_at.to_string()]);
                if let Some(config) = config {
                    command.args(["--kv-transfer-config", &config]);
                }
            }
            (Kind::Sglang, _) => {
                command.args(["--bootstrap-host", self.told_host]);
            }
        }
        command
    }
}

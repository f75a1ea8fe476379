//! Real engines: how each is installed ([`install`]) and started ([`vllm`], [`sglang`]).
//!
//! Everybody else asks an [`Installation`] and needs not know which engine it is of.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::{EngineKind, workspace};

mod install;
mod sglang;
mod vllm;

pub(crate) use install::{install, installed};

/// The name that clients use for the tiny model.
pub(crate) const MODEL: &str = "tiny";

/// Booting four engines takes minutes on two cores, and several times as many where others use these, too; longer is a hang.
pub(crate) const BOOT_BOUND: Duration = Duration::from_mins(20);

/// Where engines are installed: big, kept between runs, never committed.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("BATON_ENGINES_DIR")
        .map_or_else(|| workspace::target_dir().join("engines"), PathBuf::from)
}

/// Where the recipes and the clients of all engines are.
pub(crate) fn recipes() -> PathBuf {
    workspace::root().join("integration/engines")
}

/// A program in Python that checks something through the router.
pub(crate) fn client(name: &str) -> PathBuf {
    recipes().join("e2e").join(name)
}

/// What an engine does in a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything alone: the reference.
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
    /// Where other engines learn how to get at its KV: vLLM's side channel, SGLang's bootstrap server.
    pub(crate) meeting_port: u16,
}

impl Engine {
    /// Its base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// How an engine is started without a sidecar, and how a sidecar joins it.
pub(crate) struct ByHand {
    /// Words of the engine's command.
    pub(crate) command: Vec<String>,
    /// Flags of the sidecar, beside the engine's address.
    pub(crate) beside: Vec<String>,
}

/// An installed engine.
#[derive(Clone)]
pub(crate) struct Installation {
    kind: EngineKind,
    directory: PathBuf,
    venv: PathBuf,
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

    /// The sidecar's binary.
    pub(crate) fn sidecar(&self) -> PathBuf {
        workspace::release_binary(match self.kind {
            EngineKind::Vllm => "baton-sidecar-vllm",
            EngineKind::Sglang => "baton-sidecar-sglang",
        })
    }

    /// What an engine answers with 200 as soon as it serves.
    pub(crate) fn readiness(&self) -> &'static str {
        match self.kind {
            EngineKind::Vllm => "health",
            EngineKind::Sglang => "ready",
        }
    }

    /// Words of the command that starts an engine with the tiny model, to which flags are added.
    pub(crate) fn bare_command(&self) -> Vec<String> {
        let model = self.model_directory().display().to_string();
        let python = self.python().display().to_string();
        let words = match self.kind {
            EngineKind::Vllm => vllm::bare_command(&python, &model),
            EngineKind::Sglang => sglang::bare_command(&python, &model),
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Words of the command of an engine that a sidecar launches; the sidecar adds what it needs.
    pub(crate) fn launched(&self, engine: &Engine) -> Vec<String> {
        let flags = match self.kind {
            EngineKind::Vllm => vllm::launched(engine),
            EngineKind::Sglang => sglang::launched(engine),
        };
        self.with_flags(flags)
    }

    /// The same for an engine that is started by hand.
    pub(crate) fn by_hand(&self, engine: &Engine) -> Result<ByHand> {
        let (flags, beside) = match self.kind {
            EngineKind::Vllm => vllm::by_hand(engine)?,
            EngineKind::Sglang => (sglang::by_hand(engine), Vec::new()),
        };
        Ok(ByHand {
            command: self.with_flags(flags),
            beside,
        })
    }

    fn with_flags(&self, flags: Vec<String>) -> Vec<String> {
        let mut words = self.bare_command();
        words.extend(flags);
        words
    }

    /// Environment of an engine, or of a sidecar that launches it.
    pub(crate) fn environment(&self, engine: &Engine) -> Vec<(&'static str, String)> {
        match self.kind {
            EngineKind::Vllm => vllm::environment(&self.directory.join("cache"), engine),
            EngineKind::Sglang => sglang::environment(),
        }
    }
}

/// Flags and their values, as words of a command.
fn words<const N: usize>(settings: [(&str, String); N]) -> Vec<String> {
    settings
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

//! An emulated engine of either kind, as a fleet needs it.

use std::ops::Deref;

use crate::emulated::Process;
use crate::emulated::sglang::{self, EmulatedSglang};
use crate::emulated::vllm::{self, EmulatedVllm, EngineId};

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Kind {
    /// The name of its sidecar's binary.
    pub fn sidecar(self) -> &'static str {
        match self {
            Self::Vllm => "baton-sidecar-vllm",
            Self::Sglang => "baton-sidecar-sglang",
        }
    }
}

/// How an engine is started.
#[derive(Debug, Clone)]
pub enum EngineConfig {
    /// vLLM.
    Vllm(Box<vllm::Config>),
    /// SGLang.
    Sglang(Box<sglang::Config>),
}

impl From<vllm::Config> for EngineConfig {
    fn from(config: vllm::Config) -> Self {
        Self::Vllm(Box::new(config))
    }
}

impl From<sglang::Config> for EngineConfig {
    fn from(config: sglang::Config) -> Self {
        Self::Sglang(Box::new(config))
    }
}

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub enum Emulated {
    /// vLLM.
    Vllm(EmulatedVllm),
    /// SGLang.
    Sglang(EmulatedSglang),
}

impl From<&EmulatedVllm> for Emulated {
    fn from(engine: &EmulatedVllm) -> Self {
        Self::Vllm(engine.clone())
    }
}

impl Deref for Emulated {
    type Target = Process;

    fn deref(&self) -> &Process {
        match self {
            Self::Vllm(engine) => engine,
            Self::Sglang(engine) => engine,
        }
    }
}

impl Emulated {
    /// An engine that is not running yet, at ports of its own.
    pub fn new(config: EngineConfig) -> Self {
        match config {
            EngineConfig::Vllm(config) => Self::Vllm(EmulatedVllm::new(*config)),
            EngineConfig::Sglang(config) => Self::Sglang(EmulatedSglang::new(*config)),
        }
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Vllm(_) => Kind::Vllm,
            Self::Sglang(_) => Kind::Sglang,
        }
    }

    /// Starts the process.
    pub async fn start(&self) {
        match self {
            Self::Vllm(engine) => engine.start().await,
            Self::Sglang(engine) => engine.start().await,
        }
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory. SGLang has no name that could stay.
    pub async fn restart(&self, id: EngineId) {
        match self {
            Self::Vllm(engine) => engine.restart(id).await,
            Self::Sglang(engine) => engine.restart().await,
        }
    }

    /// Forgets all rules and goes on if it was frozen.
    pub fn behave(&self) {
        match self {
            Self::Vllm(engine) => engine.behave(),
            Self::Sglang(engine) => engine.behave(),
        }
    }

    /// Tokens of a block of its KV cache.
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().block_size,
            Self::Sglang(engine) => engine.config().page_size,
        }
    }

    /// Whether it notices at once that whoever asked has gone. vLLM always does.
    pub fn watch_connections(&self, watches: bool) {
        match self {
            Self::Vllm(_) => {}
            Self::Sglang(engine) => engine.watch_connections(watches),
        }
    }

    /// Flags that tell a sidecar about this engine.
    pub fn sidecar_flags(&self) -> Vec<String> {
        match self {
            Self::Vllm(engine) => engine.sidecar_flags(),
            Self::Sglang(engine) => engine.sidecar_flags(),
        }
    }

    /// Whether a frame was sent to its side channel, if it has one, that ends the real listener.
    pub fn listener_was_killed(&self) -> bool {
        match self {
            Self::Vllm(engine) => engine.listener_was_killed(),
            Self::Sglang(_) => false,
        }
    }
}

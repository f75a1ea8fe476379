//! An emulated engine of any kind, as a fleet needs it.

use std::ops::Deref;

use crate::emulated::Process;
use crate::emulated::sglang::{self, EmulatedSglang};
use crate::emulated::trtllm::{self, EmulatedTrtllm};
use crate::emulated::vllm::publisher::EventFault;
use crate::emulated::vllm::{self, EmulatedVllm, EngineId};

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl Kind {
    /// The name of its sidecar's binary.
    pub fn sidecar(self) -> &'static str {
        match self {
            Self::Vllm => "baton-sidecar-vllm",
            Self::Sglang => "baton-sidecar-sglang",
            Self::Trtllm => "baton-sidecar-trtllm",
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
    /// TensorRT-LLM.
    Trtllm(Box<trtllm::Config>),
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

impl From<trtllm::Config> for EngineConfig {
    fn from(config: trtllm::Config) -> Self {
        Self::Trtllm(Box::new(config))
    }
}

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub enum Emulated {
    /// vLLM.
    Vllm(EmulatedVllm),
    /// SGLang.
    Sglang(EmulatedSglang),
    /// TensorRT-LLM.
    Trtllm(EmulatedTrtllm),
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
            Self::Trtllm(engine) => engine,
        }
    }
}

impl Emulated {
    /// An engine that is not running yet, at ports of its own.
    pub fn new(config: EngineConfig) -> Self {
        match config {
            EngineConfig::Vllm(config) => Self::Vllm(EmulatedVllm::new(*config)),
            EngineConfig::Sglang(config) => Self::Sglang(EmulatedSglang::new(*config)),
            EngineConfig::Trtllm(config) => Self::Trtllm(EmulatedTrtllm::new(*config)),
        }
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Vllm(_) => Kind::Vllm,
            Self::Sglang(_) => Kind::Sglang,
            Self::Trtllm(_) => Kind::Trtllm,
        }
    }

    /// Starts the process.
    pub async fn start(&self) {
        match self {
            Self::Vllm(engine) => engine.start().await,
            Self::Sglang(engine) => engine.start().await,
            Self::Trtllm(engine) => engine.start().await,
        }
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory. Only vLLM has a name that could stay.
    pub async fn restart(&self, id: EngineId) {
        match self {
            Self::Vllm(engine) => engine.restart(id).await,
            Self::Sglang(engine) => engine.restart().await,
            Self::Trtllm(engine) => engine.restart().await,
        }
    }

    /// Forgets all rules and goes on if it was frozen.
    pub fn behave(&self) {
        match self {
            Self::Vllm(engine) => engine.behave(),
            Self::Sglang(engine) => engine.behave(),
            Self::Trtllm(engine) => engine.behave(),
        }
    }

    /// Tokens of a block of its KV cache.
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().block_size,
            Self::Sglang(engine) => engine.config().page_size,
            Self::Trtllm(engine) => engine.config().tokens_per_block,
        }
    }

    /// Flags that tell a sidecar about this engine.
    pub fn sidecar_flags(&self) -> Vec<String> {
        match self {
            Self::Vllm(engine) => engine.sidecar_flags(),
            Self::Sglang(engine) => engine.sidecar_flags(),
            Self::Trtllm(engine) => engine.sidecar_flags(),
        }
    }

    /// The next of what its first rank tells of its KV cache is lost: so many batches, or events where nothing is told in
    /// batches. With or without a gap in their numbers.
    pub fn lose_events(&self, count: usize, silently: bool) {
        if let Self::Trtllm(engine) = self {
            let events = count;
            return engine.raise_event_fault(if silently {
                trtllm::EventFault::LoseSilently { events }
            } else {
                trtllm::EventFault::Lose { events }
            });
        }
        let batches = count;
        let fault = if silently {
            EventFault::LoseSilently { batches }
        } else {
            EventFault::Lose {
                batches,
                replayable: true,
            }
        };
        if let Some(faults) = self.event_faults(0) {
            faults.raise(fault);
        }
    }

    /// Nothing goes wrong any more with what its first rank tells.
    pub fn clear_event_faults(&self) {
        match self {
            Self::Trtllm(engine) => engine.clear_event_faults(),
            Self::Vllm(_) | Self::Sglang(_) => {
                if let Some(faults) = self.event_faults(0) {
                    faults.clear();
                }
            }
        }
    }

    /// Blocks of KV that it held, in all of its lives, until it did not wait any more; `None` if that is not counted.
    pub fn timed_out_blocks(&self) -> Option<u64> {
        match self {
            Self::Trtllm(engine) => Some(engine.timed_out_blocks()),
            Self::Vllm(_) | Self::Sglang(_) => None,
        }
    }

    /// Whether a frame was sent to its side channel, if it has one, that ends the real listener.
    pub fn listener_was_killed(&self) -> bool {
        match self {
            Self::Vllm(engine) => engine.listener_was_killed(),
            Self::Sglang(_) | Self::Trtllm(_) => false,
        }
    }
}

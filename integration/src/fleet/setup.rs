//! What a fleet is made of, before it starts.

use super::emulated::EngineConfig;
use super::{Fleet, Router, start_logs};
use crate::emulated::{sglang, trtllm, vllm};
use crate::{panics, ports};

/// What to start.
#[derive(Debug, Clone)]
pub struct Setup {
    workers: Vec<(String, EngineConfig)>,
    router_flags: Vec<String>,
    sidecar_flags: Vec<String>,
    routers: usize,
    absent: Vec<String>,
}

impl Setup {
    /// No workers, no flags, one router.
    pub fn new() -> Self {
        Self {
            workers: Vec::new(),
            router_flags: Vec::new(),
            sidecar_flags: Vec::new(),
            routers: 1,
            absent: Vec::new(),
        }
    }

    /// One prefill worker `p0` and one decode worker `d0`, everything split that can be.
    pub fn split() -> Self {
        Self::new()
            .prefill("p0")
            .decode("d0")
            .router(&["--force", "split"])
    }

    /// The same with SGLang's: [`Setup::split`] of another kind.
    pub fn split_sglang() -> Self {
        Self::new()
            .worker("p0", sglang::Config::new(sglang::Mode::Prefill))
            .worker("d0", sglang::Config::new(sglang::Mode::Decode))
            .router(&["--force", "split"])
    }

    /// The same with TensorRT-LLM's of this era.
    pub fn split_trtllm(era: trtllm::Era) -> Self {
        let used = |role| trtllm::Config {
            role,
            ..trtllm::Config::new(era)
        };
        Self::new()
            .worker("p0", used(trtllm::ServerRole::Context))
            .worker("d0", used(trtllm::ServerRole::Generation))
            .router(&["--force", "split"])
    }

    /// A worker with this engine.
    #[must_use]
    pub fn worker(mut self, name: &str, config: impl Into<EngineConfig>) -> Self {
        self.workers.push((name.to_owned(), config.into()));
        self
    }

    /// A prefill worker.
    #[must_use]
    pub fn prefill(self, name: &str) -> Self {
        self.worker(name, vllm::Config::new(Some("kv_producer")))
    }

    /// A decode worker.
    #[must_use]
    pub fn decode(self, name: &str) -> Self {
        self.worker(name, vllm::Config::new(Some("kv_consumer")))
    }

    /// A worker without a connector.
    #[must_use]
    pub fn plain(self, name: &str) -> Self {
        self.worker(name, vllm::Config::new(None))
    }

    /// The engine of this worker is not started.
    #[must_use]
    pub fn absent(mut self, name: &str) -> Self {
        self.absent.push(name.to_owned());
        self
    }

    /// Flags of all routers.
    #[must_use]
    pub fn router(mut self, flags: &[&str]) -> Self {
        self.router_flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Flags of all sidecars.
    #[must_use]
    pub fn sidecars(mut self, flags: &[&str]) -> Self {
        self.sidecar_flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// So many routers.
    #[must_use]
    pub fn routers(self, routers: usize) -> Self {
        Self { routers, ..self }
    }

    /// Starts everything and waits until every worker is ready at every router.
    pub async fn start(self) -> Fleet {
        let fleet = self.start_without_waiting().await;
        fleet.all_ready().await;
        fleet
    }

    /// Starts everything.
    pub async fn start_without_waiting(self) -> Fleet {
        start_logs();
        panics::watch();
        let mut fleet = Fleet {
            routers: Vec::new(),
            sidecars: Vec::new(),
            router_flags: self.router_flags.clone(),
            sidecar_flags: self.sidecar_flags.clone(),
        };
        for _ in 0..self.routers {
            fleet.routers.push(Router {
                address: ports::free(),
                daemon: None,
            });
            fleet.start_router(fleet.routers.len() - 1).await;
        }
        for (name, config) in self.workers {
            let present = !self.absent.contains(&name);
            fleet.add_worker(&name, config, present).await;
        }
        fleet
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

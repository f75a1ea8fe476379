//! A whole fleet in one process: routers and sidecars, each on a runtime of its own so that it can be stopped in order or
//! killed as a process is, around emulated engines of any kind.

mod daemon;
mod emulated;
mod rest;
mod setup;

use std::net::SocketAddr;
use std::sync::Once;
use std::time::Duration;

use serde_json::Value;

pub use self::daemon::{Daemon, Pause};
pub use self::emulated::{Emulated, EngineConfig, Kind};
pub use self::setup::Setup;
use crate::client::{self, Answer, Exchange};
use crate::emulated::sglang::EmulatedSglang;
use crate::emulated::trtllm::EmulatedTrtllm;
use crate::emulated::vllm::EmulatedVllm;
use crate::page::Page;
use crate::ports;
use crate::wait::{until, until_some};

/// The fleet's secret.
pub const TOKEN: &str = "integration-fleet-token";

#[derive(Debug)]
struct Router {
    address: SocketAddr,
    daemon: Option<Daemon>,
}

struct Sidecar {
    name: String,
    address: SocketAddr,
    engine: Emulated,
    daemon: Option<Daemon>,
}

/// A running fleet.
pub struct Fleet {
    routers: Vec<Router>,
    sidecars: Vec<Sidecar>,
    router_flags: Vec<String>,
    sidecar_flags: Vec<String>,
}

impl Fleet {
    /// Starts a router that does not run.
    pub async fn start_router(&mut self, number: usize) {
        let address = self.routers[number].address;
        let own = [
            "baton-router",
            "--listen",
            &address.to_string(),
            "--token",
            TOKEN,
            "--drain-s",
            "5",
        ]
        .map(str::to_owned);
        let lingers = self.router_flags.iter().any(|flag| flag == "--linger-s");
        let linger = ["--linger-s", "0"].map(str::to_owned);
        let own = own
            .into_iter()
            .chain(linger.into_iter().filter(|_| !lingers));
        let own: Vec<String> = own.collect();
        is_free(address).await;
        let flags = own.into_iter().chain(self.router_flags.iter().cloned());
        let daemon = Daemon::router(&format!("router-{number}"), flags);
        self.routers[number].daemon = Some(daemon);
        listens(address).await;
    }

    /// Adds a worker: its engine, if it is to be started, and its sidecar.
    pub async fn add_worker(
        &mut self,
        name: &str,
        config: impl Into<EngineConfig>,
        engine_present: bool,
    ) {
        let engine = Emulated::new(config.into());
        if engine_present {
            engine.start().await;
        }
        self.sidecars.push(Sidecar {
            name: name.to_owned(),
            address: ports::free(),
            engine,
            daemon: None,
        });
        self.start_sidecar(name).await;
    }

    /// Starts a sidecar that does not run.
    pub async fn start_sidecar(&mut self, name: &str) {
        let at = self.position(name);
        let (address, engine) = (self.sidecars[at].address, self.sidecars[at].engine.clone());
        is_free(address).await;
        let daemon = self.sidecar_daemon(name, address, &engine);
        self.sidecars[at].daemon = Some(daemon);
        listens(address).await;
    }

    /// A sidecar of this worker id at this address, beside this engine.
    pub fn sidecar_daemon(&self, name: &str, address: SocketAddr, engine: &Emulated) -> Daemon {
        let routers: Vec<String> = self
            .routers
            .iter()
            .map(|router| format!("http://{}", router.address))
            .collect();
        let own = [
            engine.kind().sidecar(),
            "--worker-id",
            name,
            "--listen",
            &address.to_string(),
            "--router",
            &routers.join(","),
            "--token",
            TOKEN,
            "--drain-s",
            "10",
        ]
        .map(str::to_owned);
        let flags = own.into_iter().chain(engine.sidecar_flags());
        Daemon::sidecar_of(
            engine.kind(),
            name,
            flags.chain(self.sidecar_flags.iter().cloned()),
        )
    }

    fn position(&self, name: &str) -> usize {
        let found = self
            .sidecars
            .iter()
            .position(|sidecar| sidecar.name == name);
        found.unwrap_or_else(|| panic!("there is no worker {name}"))
    }

    fn sidecar(&self, name: &str) -> &Sidecar {
        &self.sidecars[self.position(name)]
    }

    /// A worker's engine, whatever it is.
    pub fn emulated(&self, name: &str) -> &Emulated {
        &self.sidecar(name).engine
    }

    /// A worker's engine, which is vLLM.
    pub fn engine(&self, name: &str) -> &EmulatedVllm {
        match self.emulated(name) {
            Emulated::Vllm(engine) => engine,
            _ => panic!("the engine of {name} is no vLLM"),
        }
    }

    /// A worker's engine, which is SGLang.
    pub fn sglang(&self, name: &str) -> &EmulatedSglang {
        match self.emulated(name) {
            Emulated::Sglang(engine) => engine,
            _ => panic!("the engine of {name} is no SGLang"),
        }
    }

    /// A worker's engine, which is TensorRT-LLM.
    pub fn trtllm(&self, name: &str) -> &EmulatedTrtllm {
        match self.emulated(name) {
            Emulated::Trtllm(engine) => engine,
            _ => panic!("the engine of {name} is no TensorRT-LLM"),
        }
    }

    /// Where a worker's sidecar is.
    pub fn sidecar_address(&self, name: &str) -> SocketAddr {
        self.sidecar(name).address
    }

    /// A worker's sidecar process.
    pub fn sidecar_process(&self, name: &str) -> &Daemon {
        self.sidecar(name)
            .daemon
            .as_ref()
            .expect("the sidecar runs")
    }

    /// Takes a worker's sidecar process out of the fleet's hands.
    pub fn take_sidecar(&mut self, name: &str) -> Daemon {
        let at = self.position(name);
        self.sidecars[at].daemon.take().expect("the sidecar runs")
    }

    /// A router's process.
    pub fn router_process(&self, number: usize) -> &Daemon {
        let daemon = self.routers[number].daemon.as_ref();
        daemon.expect("the router runs")
    }

    /// Takes a router process out of the fleet's hands.
    pub fn take_router(&mut self, number: usize) -> Daemon {
        self.routers[number].daemon.take().expect("the router runs")
    }

    /// The first router's address.
    pub fn address(&self) -> SocketAddr {
        self.routers[0].address
    }

    /// A router's address.
    pub fn router_address(&self, number: usize) -> SocketAddr {
        self.routers[number].address
    }

    /// POSTs JSON to the first router.
    pub async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.begin(path, body).await.finish().await
    }

    /// Starts to POST JSON to the first router.
    pub async fn begin(&self, path: &str, body: impl AsRef<[u8]>) -> Exchange {
        client::start(
            self.address(),
            "POST",
            path,
            &[("content-type", "application/json")],
            body,
        )
        .await
    }

    /// A completion.
    pub async fn complete(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/v1/completions", body).await
    }

    /// A chat.
    pub async fn chat(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    /// The first router's view of the fleet.
    pub async fn view(&self) -> Value {
        view(self.address()).await
    }

    /// One worker in that view, or null.
    pub async fn worker_view(&self, name: &str) -> Value {
        let view = self.view().await;
        let workers = view["workers"].as_array().cloned().unwrap_or_default();
        workers
            .into_iter()
            .find(|worker| worker["id"] == name)
            .unwrap_or_default()
    }

    /// Waits until the first router sees a worker in this state.
    pub async fn worker_is(&self, name: &str, state: &str) {
        until(&format!("worker {name} to be {state}"), || async {
            self.worker_view(name).await["state"] == state
        })
        .await;
    }

    /// Waits until the first router has forgotten a worker.
    pub async fn worker_is_gone(&self, name: &str) {
        until(&format!("worker {name} to be gone"), || async {
            self.worker_view(name).await.is_null()
        })
        .await;
    }

    /// Waits until every router that runs sees every worker ready.
    pub async fn all_ready(&self) {
        for router in self.routers.iter().filter(|router| router.daemon.is_some()) {
            let wanted = self
                .sidecars
                .iter()
                .filter(|sidecar| sidecar.daemon.is_some())
                .count();
            until(&format!("{wanted} workers to be ready"), || async {
                let answer = client::call(router.address, "GET", "/readyz", &[], "").await;
                answer.json()["workers_ready"] == wanted
            })
            .await;
        }
    }
}

/// Waits until nobody listens any more: what was killed here ends on threads of its own, where a process would be gone.
pub async fn is_free(address: SocketAddr) {
    until_some(&format!("{address} to be free"), || async {
        tokio::net::TcpListener::bind(address).await.ok()
    })
    .await;
}

/// Waits until somebody listens.
pub async fn listens(address: SocketAddr) {
    until_some(&format!("somebody to listen at {address}"), || async {
        let connected = tokio::net::TcpStream::connect(address);
        tokio::time::timeout(Duration::from_secs(1), connected)
            .await
            .ok()?
            .ok()
    })
    .await;
}

/// A metrics page.
pub async fn page(address: SocketAddr) -> Page {
    let answer = client::call(address, "GET", "/metrics", &[], "").await;
    Page::new(answer.served().text().to_owned())
}

/// A router's view of the fleet.
pub async fn view(router: SocketAddr) -> Value {
    let bearer = format!("Bearer {TOKEN}");
    let answer = client::call(router, "GET", "/fleet", &[("authorization", &bearer)], "").await;
    answer.served().json()
}

/// `BATON_TEST_LOG=info` shows what the daemons say.
pub(crate) fn start_logs() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if let Ok(filter) = std::env::var("BATON_TEST_LOG") {
            let lines = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_thread_names(true);
            let _ = lines.with_test_writer().try_init();
        }
    });
}

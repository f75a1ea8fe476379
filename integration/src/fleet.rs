//! A whole fleet in one process: routers and sidecars, each on a runtime of its own so that it can be stopped in order or
//! killed as a process is, around fake engines.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::Duration;

use baton_daemon::Exit;
use baton_router::args::RouterArgs;
use baton_sidecar_vllm::args::VllmArgs;
use baton_sidecar_vllm::engine::VllmEngine;
use clap::Parser;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{self, Answer, Exchange};
use crate::emulated::vllm::{Config, EmulatedVllm};
use crate::page::Page;
use crate::wait::{bounded, until, until_some};
use crate::{panics, ports};

/// The fleet's secret.
pub const TOKEN: &str = "integration-fleet-token";

/// Threads of each process.
const THREADS: usize = 2;

/// Longest that a process is kept from running.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A router's or a sidecar's whole process, but for its main.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    runtime: Option<Runtime>,
    stop: CancellationToken,
    ended: Option<JoinHandle<Result<(), Exit>>>,
}

impl Daemon {
    /// Starts it.
    pub fn start<F>(name: &str, body: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), Exit>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let ended = runtime.spawn(body(stop.clone()));
        Self {
            name: name.to_owned(),
            runtime: Some(runtime),
            stop,
            ended: Some(ended),
        }
    }

    /// Starts a router with this command line.
    pub fn router(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = RouterArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| baton_router::run::run(args, stop))
    }

    /// Starts a sidecar with this command line.
    pub fn sidecar(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = VllmArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| async move {
            let (config, launch) = baton_sidecar_vllm::attach::plan(&args)?;
            let engine = VllmEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        })
    }

    /// Asks it to stop, as SIGTERM does, without waiting for it.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.ended
            .as_ref()
            .is_some_and(|ended| !ended.is_finished())
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> Result<(), Exit> {
        let ended = self.ended.take().expect("it was not waited for before");
        bounded(&format!("{} to end", self.name), ended)
            .await
            .unwrap_or_else(|error| panic!("{} ended badly: {error}", self.name))
    }

    /// Asks it to stop and waits for that.
    pub async fn stop(mut self) -> Result<(), Exit> {
        self.ask_to_stop();
        self.ended().await
    }

    /// Stops it as SIGSTOP does: it runs nothing, and its sockets stay open. It goes on when the pause is dropped.
    pub async fn pause(&self) -> Pause {
        let runtime = self.runtime.as_ref().expect("the process runs");
        let pause = Pause(Arc::default());
        let (held, mut all) = tokio::sync::mpsc::channel(THREADS);
        for _ in 0..THREADS {
            let (pause, held) = (Arc::clone(&pause.0), held.clone());
            runtime.spawn(async move {
                let _ = held.try_send(());
                pause.hold();
            });
        }
        for _ in 0..THREADS {
            bounded("every thread to stop", all.recv()).await;
        }
        pause
    }

    /// Ends it as SIGKILL does: nothing in it runs any more, and the kernel closes its sockets.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A process that stands still.
#[derive(Debug)]
pub struct Pause(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    /// Keeps a thread until the pause is over, or a test that forgot it would never end.
    fn hold(&self) {
        let over = self.over.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(over, LONGEST_PAUSE, |over| !*over);
        drop(wait.unwrap());
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        *self.0.over.lock().unwrap() = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What to start.
#[derive(Debug, Clone)]
pub struct Setup {
    workers: Vec<(String, Config)>,
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

    /// A worker with this engine.
    #[must_use]
    pub fn worker(mut self, name: &str, config: Config) -> Self {
        self.workers.push((name.to_owned(), config));
        self
    }

    /// A prefill worker.
    #[must_use]
    pub fn prefill(self, name: &str) -> Self {
        self.worker(name, Config::new(Some("kv_producer")))
    }

    /// A decode worker.
    #[must_use]
    pub fn decode(self, name: &str) -> Self {
        self.worker(name, Config::new(Some("kv_consumer")))
    }

    /// A worker without a connector.
    #[must_use]
    pub fn plain(self, name: &str) -> Self {
        self.worker(name, Config::new(None))
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

#[derive(Debug)]
struct Router {
    address: SocketAddr,
    daemon: Option<Daemon>,
}

struct Sidecar {
    name: String,
    address: SocketAddr,
    engine: EmulatedVllm,
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
    pub async fn add_worker(&mut self, name: &str, config: Config, engine_present: bool) {
        let engine = EmulatedVllm::new(config);
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

    /// A sidecar of this worker id at this address.
    pub fn sidecar_daemon(&self, name: &str, address: SocketAddr, engine: &EmulatedVllm) -> Daemon {
        let routers: Vec<String> = self
            .routers
            .iter()
            .map(|router| format!("http://{}", router.address))
            .collect();
        let own = [
            "baton-sidecar-vllm",
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
        Daemon::sidecar(name, flags.chain(self.sidecar_flags.iter().cloned()))
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

    /// A worker's engine.
    pub fn engine(&self, name: &str) -> &EmulatedVllm {
        &self.sidecar(name).engine
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

    /// The first router's metrics.
    pub async fn router_page(&self) -> Page {
        page(self.address()).await
    }

    /// A sidecar's metrics.
    pub async fn sidecar_page(&self, name: &str) -> Page {
        page(self.sidecar_address(name)).await
    }

    /// Waits until an engine holds nothing for decode, and its sidecar has no ticket left. None of them was stranded.
    pub async fn gave_back(&self, name: &str) {
        until(&format!("{name} to have its KV back"), || async {
            let page = self.sidecar_page(name).await;
            self.engine(name).holds() == 0 && page.sum("baton_sidecar_tickets", &[]) == 0
        })
        .await;
        assert_eq!(self.stranded(name).await, 0);
    }

    /// A sidecar's count of handoffs that nobody wanted and that its engine held until their leases ended.
    pub async fn stranded(&self, name: &str) -> i64 {
        self.sidecar_page(name)
            .await
            .sum("baton_sidecar_tickets_stranded_total", &[])
    }

    /// What must be true whenever nobody wants anything: nothing is in flight anywhere, nothing is reserved, no ticket is
    /// open, and no engine works.
    pub async fn quiet(&self) {
        for router in self.routers.iter().filter(|router| router.daemon.is_some()) {
            until("the router's gauges to return to 0", || async {
                page(router.address)
                    .await
                    .sum("baton_router_in_flight", &[])
                    == 0
            })
            .await;
            until("the router's reservations to be given back", || async {
                let view = view(router.address).await;
                view["workers"].as_array().is_some_and(|workers| {
                    workers.iter().all(|worker| {
                        worker["reserved"]["requests"] == 0
                            && worker["reserved"]["prompt_tokens"] == 0
                    })
                })
            })
            .await;
        }
        for sidecar in self
            .sidecars
            .iter()
            .filter(|sidecar| sidecar.daemon.is_some())
        {
            until(
                &format!("the gauges of {} to return to 0", sidecar.name),
                || async {
                    let page = page(sidecar.address).await;
                    let open = ["running", "claimed"]
                        .map(|state| page.sum("baton_sidecar_tickets", &[("state", state)]));
                    page.sum("baton_sidecar_in_flight", &[]) == 0
                        && page.sum("baton_sidecar_queued", &[]) == 0
                        && open == [0, 0]
                },
            )
            .await;
            until(
                &format!("the engine of {} to be idle", sidecar.name),
                || async { sidecar.engine.working_on() == 0 },
            )
            .await;
        }
    }

    /// Ends the fleet and judges it: everything came to rest, every process lived and stops in order, no engine was given
    /// what ends it, nothing panicked.
    pub async fn finish(mut self) {
        self.quiet().await;
        let alive: Vec<SocketAddr> = self
            .routers
            .iter()
            .filter(|router| router.daemon.is_some())
            .map(|router| router.address)
            .chain(
                self.sidecars
                    .iter()
                    .filter(|sidecar| sidecar.daemon.is_some())
                    .map(|sidecar| sidecar.address),
            )
            .collect();
        for address in alive {
            let live = client::call(address, "GET", "/livez", &[], "").await;
            assert_eq!(live.status, 200, "{address} lives");
        }
        for sidecar in &self.sidecars {
            let died_of: Vec<String> = sidecar
                .engine
                .died_of()
                .into_iter()
                .filter(|of| of != "its script")
                .collect();
            assert!(
                died_of.is_empty(),
                "the engine of {} was killed: {died_of:?}",
                sidecar.name
            );
            assert!(
                !sidecar.engine.listener_was_killed(),
                "the side channel of {} was killed",
                sidecar.name
            );
        }
        for sidecar in &mut self.sidecars {
            if let Some(daemon) = sidecar.daemon.take() {
                let ended = daemon.stop().await;
                assert!(ended.is_ok(), "{} ended with {ended:?}", sidecar.name);
            }
        }
        for router in &mut self.routers {
            if let Some(daemon) = router.daemon.take() {
                let ended = daemon.stop().await;
                assert!(ended.is_ok(), "a router ended with {ended:?}");
            }
        }
        for sidecar in &self.sidecars {
            sidecar.engine.kill().await;
        }
        let panics = panics::seen();
        assert!(panics.is_empty(), "something panicked: {panics:?}");
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

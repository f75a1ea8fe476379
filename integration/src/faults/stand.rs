//! The fleet that faults befall: routers, and workers with proxies on both sides of each sidecar.
//!
//! ```text
//! client → router → front → sidecar → back → engine
//! ```
//! A liar stands behind a proxy where there is one.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::liar::Liar;
use super::schedule::ROUTERS;
use super::seat::RouterSeat;
use super::subject::{self, Engines, Place, Side, Subject};
use crate::client;
use crate::emulated::vllm::EngineId;
use crate::fleet::{Daemon, Emulated, Kind, TOKEN, is_free, listens};
use crate::kv_scene::proxy::{Proxy, Way};
use crate::ports;

/// Longest that an engine may take to answer somebody who is no sidecar.
const ASKS: Duration = Duration::from_secs(1);

/// One protection that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// What a sidecar lets through once comes twice at the engine.
    Fence,
    /// Handoffs are said to be settled without asking.
    Settle,
    /// Engines do not hear that KV is given back, or have no end to how long they hold it.
    Release,
    /// Lost KV events leave no gap in their numbers.
    Gap,
    /// What the two legs of a handoff meet by, a room or an id, comes again and again.
    Rooms,
    /// An answer that was aborted or failed is taken for a whole one.
    Verdict,
}

/// An engine, its sidecar, and what stands between them and others.
pub struct Worker {
    /// Its id.
    pub name: String,
    engine: Emulated,
    sidecar: SocketAddr,
    front: Proxy,
    back: Proxy,
    liar: Option<Liar>,
    routers: Vec<SocketAddr>,
    daemon: Mutex<Option<Daemon>>,
    /// One at a time starts or ends the engine.
    booting: Mutex<()>,
    deaf: bool,
}

/// The fleet.
pub struct Stand {
    /// Routers.
    pub routers: Vec<RouterSeat>,
    /// Prefill workers.
    pub prefill: Vec<Worker>,
    /// Decode workers.
    pub decode: Vec<Worker>,
    /// What is switched off.
    pub sabotage: Option<Sabotage>,
}

impl Stand {
    /// Starts all of it.
    pub async fn start(engines: Engines, sabotage: Option<Sabotage>) -> Self {
        crate::fleet::start_logs();
        crate::panics::watch();
        let cast = engines.cast();
        let workers = cast.len();
        let routers: Vec<RouterSeat> = (0..ROUTERS).map(|_| RouterSeat::new(workers)).collect();
        let addresses: Vec<SocketAddr> = routers.iter().map(RouterSeat::address).collect();
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for (number, kind) in cast.iter().enumerate() {
            let start = |name, side| Worker::start(name, *kind, side, &addresses, sabotage);
            prefill.push(start(format!("p{number}"), Side::Prefill).await);
            decode.push(start(format!("d{number}"), Side::Decode).await);
        }
        for router in &routers {
            router.start().await;
        }
        Self {
            routers,
            prefill,
            decode,
            sabotage,
        }
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.prefill.iter().chain(&self.decode)
    }

    /// Lies told so far.
    pub fn lies(&self) -> u64 {
        let liars = self.workers().filter_map(|worker| worker.liar.as_ref());
        liars.map(Liar::told).sum()
    }

    /// Ends all of it.
    pub async fn stop(self) {
        for worker in self.prefill.into_iter().chain(self.decode) {
            if let Some(daemon) = worker.daemon.into_inner() {
                daemon.kill();
            }
            worker.engine.kill().await;
        }
        for router in &self.routers {
            router.kill().await;
        }
    }
}

impl Worker {
    async fn start(
        name: String,
        kind: Kind,
        side: Side,
        routers: &[SocketAddr],
        sabotage: Option<Sabotage>,
    ) -> Self {
        let subject = subject::of(kind);
        let engine = Emulated::new(subject.config(side, sabotage));
        let sidecar = ports::free();
        let (mut front_to, mut back_to, mut liar) = (sidecar, engine.address(), None);
        if let Some((place, lie)) = subject.lie(side, sabotage) {
            let passes_on_to = match place {
                Place::BeforeSidecar => &mut front_to,
                Place::BeforeEngine => &mut back_to,
            };
            let stands = Liar::before(*passes_on_to, lie).await;
            *passes_on_to = stands.address();
            liar = Some(stands);
        }
        let worker = Self {
            name,
            front: Proxy::to(front_to, Way::Through).await,
            back: Proxy::to(back_to, Way::Through).await,
            engine,
            sidecar,
            liar,
            routers: routers.to_vec(),
            daemon: Mutex::default(),
            booting: Mutex::default(),
            deaf: subject.is_deaf(sabotage),
        };
        worker.boot(EngineId::New).await;
        worker.start_sidecar().await;
        worker
    }

    /// What is known of engines of its kind.
    pub fn subject(&self) -> &'static dyn Subject {
        subject::of(self.engine.kind())
    }

    /// Its engine.
    pub fn engine(&self) -> &Emulated {
        &self.engine
    }

    /// Where its sidecar is, past all proxies.
    pub fn sidecar(&self) -> SocketAddr {
        self.sidecar
    }

    /// What stands between routers and the sidecar.
    pub fn front(&self) -> &Proxy {
        &self.front
    }

    /// What stands between the sidecar and the engine.
    pub fn back(&self) -> &Proxy {
        &self.back
    }

    /// Ends the engine as SIGKILL does.
    pub async fn kill_engine(&self) {
        let _alone = self.booting.lock().await;
        self.engine.kill().await;
    }

    /// Starts the engine anew, after ending it if it runs.
    pub async fn boot(&self, id: EngineId) {
        let _alone = self.booting.lock().await;
        self.engine.kill().await;
        sleep(self.subject().boot()).await;
        self.engine.restart(id).await;
        self.engine.deafen(self.deaf);
    }

    /// Starts the engine if it does not run.
    pub async fn revive(&self) {
        if !self.engine.is_alive() {
            self.boot(EngineId::New).await;
        }
    }

    /// So many batches of KV events are lost on their way, with or without a gap in their numbers.
    pub async fn lose_events(&self, batches: usize, silently: bool) {
        let _alone = self.booting.lock().await;
        if self.engine.is_alive() {
            self.engine.lose_events(batches, silently);
        }
    }

    async fn clear_event_faults(&self) {
        let _alone = self.booting.lock().await;
        if self.engine.is_alive() {
            self.engine.clear_event_faults();
        }
    }

    /// Starts the sidecar if it does not run.
    pub async fn start_sidecar(&self) {
        let mut daemon = self.daemon.lock().await;
        if daemon.is_some() {
            return;
        }
        is_free(self.sidecar).await;
        let (kind, flags) = (self.engine.kind(), self.command_line());
        *daemon = Some(Daemon::sidecar_of(kind, &self.name, flags));
        listens(self.sidecar).await;
    }

    fn command_line(&self) -> impl Iterator<Item = String> {
        let routers: Vec<String> = self
            .routers
            .iter()
            .map(|at| format!("http://{at}"))
            .collect();
        let own = format!(
            "{} --worker-id {} --listen {} --advertise http://{} --router {} --token {TOKEN} --drain-s 3",
            self.engine.kind().sidecar(),
            self.name,
            self.sidecar,
            self.front.address(),
            routers.join(",")
        );
        let engine = format!("http://{}", self.engine.address());
        let back = format!("http://{}", self.back.address());
        let flags = self.engine.sidecar_flags().into_iter();
        // Alone, or behind the flag's name.
        let flags = flags.map(move |flag| flag.replace(&engine, &back));
        let own: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
        own.into_iter().chain(flags)
    }

    /// Ends the sidecar as SIGKILL does.
    pub async fn kill_sidecar(&self) {
        if let Some(daemon) = self.daemon.lock().await.take() {
            daemon.kill();
        }
    }

    /// Ends the sidecar as SIGTERM does: it drains.
    pub async fn drain(&self) {
        if let Some(daemon) = self.daemon.lock().await.take() {
            let _ = daemon.stop().await;
        }
    }

    /// Somebody has the engine drop all that it works on.
    pub async fn abort_all(&self) {
        if self.engine.is_alive() {
            let json = [("content-type", "application/json")];
            let all = r#"{"abort_all":true}"#;
            let address = self.engine.address();
            let asked = client::call(address, "POST", "/abort_request", &json, all);
            let _ = tokio::time::timeout(ASKS, asked).await;
        }
    }

    /// Nothing is wrong with it any more.
    pub async fn lift(&self) {
        self.revive().await;
        self.engine.freeze(false);
        self.engine.stall_link(false);
        self.clear_event_faults().await;
        for proxy in [&self.front, &self.back] {
            proxy.set(Way::Through);
        }
        self.start_sidecar().await;
    }
}

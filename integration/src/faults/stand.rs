//! The fleet that faults befall: routers, and workers with proxies on both sides of each sidecar.
//!
//! ```text
//! client → router → front → sidecar → back → engine
//! ```
//! A liar stands behind a proxy where there is one.

use std::net::SocketAddr;
use std::time::Duration;

use baton_sidecar_core::relay::vigil::BOOT;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::liar::{Liar, Lie};
use super::schedule::{ROUTERS, WORKERS};
use super::seat::RouterSeat;
use crate::emulated::speed::Speed;
use crate::emulated::vllm::events::HashForm;
use crate::emulated::vllm::publisher::EventFault;
use crate::emulated::vllm::{Config, EmulatedVllm, EngineId, EventsConfig};
use crate::fleet::{Daemon, TOKEN, is_free, listens};
use crate::kv_scene::proxy::{Proxy, Way};
use crate::ports;

/// Blocks of an engine.
const BLOCKS: u32 = 1024;

/// An engine that takes milliseconds for a prompt and one for a token: long enough to be interrupted in.
const SPEED: Speed = Speed {
    step: 1.0e6,
    prefill_token: 10.0e3,
    attention_pair: 0.0,
    decode_sequence: 20.0e3,
    decode_context: 0.0,
    jitter: 0.1,
};

/// One protection that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// What a sidecar lets through once comes twice at the engine.
    Fence,
    /// Handoffs are said to be settled without asking.
    Settle,
    /// Engines do not hear that KV is given back.
    Release,
    /// Lost KV events leave no gap in their numbers.
    Gap,
}

/// An engine, its sidecar, and what stands between them and others.
pub struct Worker {
    /// Its id.
    pub name: String,
    engine: EmulatedVllm,
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
    pub async fn start(sabotage: Option<Sabotage>) -> Self {
        crate::fleet::start_logs();
        crate::panics::watch();
        let routers: Vec<RouterSeat> = (0..ROUTERS).map(|_| RouterSeat::new()).collect();
        let addresses: Vec<SocketAddr> = routers.iter().map(RouterSeat::address).collect();
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for number in 0..WORKERS {
            let (p, d) = (format!("p{number}"), format!("d{number}"));
            prefill.push(Worker::start(p, "kv_producer", &addresses, sabotage).await);
            decode.push(Worker::start(d, "kv_consumer", &addresses, sabotage).await);
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
        role: &str,
        routers: &[SocketAddr],
        sabotage: Option<Sabotage>,
    ) -> Self {
        let engine = EmulatedVllm::new(config(role));
        let sidecar = ports::free();
        let is_prefill = role == "kv_producer";
        let (before_sidecar, before_engine) = lies(is_prefill, sabotage);
        let (mut front_to, mut back_to, mut liar) = (sidecar, engine.address(), None);
        if let Some(lie) = before_sidecar {
            let stands = Liar::before(sidecar, lie).await;
            (front_to, liar) = (stands.address(), Some(stands));
        } else if let Some(lie) = before_engine {
            let stands = Liar::before(engine.address(), lie).await;
            (back_to, liar) = (stands.address(), Some(stands));
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
            deaf: sabotage == Some(Sabotage::Release),
        };
        worker.boot(EngineId::New).await;
        worker.start_sidecar().await;
        worker
    }

    /// Its engine.
    pub fn engine(&self) -> &EmulatedVllm {
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

    /// Starts the engine anew, after ending it if it runs. It takes as long as the fastest of real engines at least.
    pub async fn boot(&self, id: EngineId) {
        let _alone = self.booting.lock().await;
        self.engine.kill().await;
        sleep(BOOT + Duration::from_millis(500)).await;
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
        let fault = if silently {
            EventFault::LoseSilently { batches }
        } else {
            let replayable = true;
            EventFault::Lose {
                batches,
                replayable,
            }
        };
        let _alone = self.booting.lock().await;
        if self.engine.is_alive()
            && let Some(faults) = self.engine.event_faults(0)
        {
            faults.raise(fault);
        }
    }

    async fn clear_event_faults(&self) {
        let _alone = self.booting.lock().await;
        if self.engine.is_alive()
            && let Some(faults) = self.engine.event_faults(0)
        {
            faults.clear();
        }
    }

    /// Starts the sidecar if it does not run.
    pub async fn start_sidecar(&self) {
        let mut daemon = self.daemon.lock().await;
        if daemon.is_some() {
            return;
        }
        is_free(self.sidecar).await;
        *daemon = Some(Daemon::sidecar(&self.name, self.command_line()));
        listens(self.sidecar).await;
    }

    fn command_line(&self) -> impl Iterator<Item = String> {
        let routers: Vec<String> = self
            .routers
            .iter()
            .map(|at| format!("http://{at}"))
            .collect();
        let own = format!(
            "baton-sidecar-vllm --worker-id {} --listen {} --advertise http://{} --router {} --token {TOKEN} --drain-s 3",
            self.name,
            self.sidecar,
            self.front.address(),
            routers.join(",")
        );
        let engine = format!("http://{}", self.engine.address());
        let back = format!("http://{}", self.back.address());
        let flags = self.engine.sidecar_flags().into_iter();
        let flags = flags.map(move |flag| if flag == engine { back.clone() } else { flag });
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

/// Who lies before the sidecar and who before the engine. Where nothing is switched off, decode calls are repeated
/// before the fence.
fn lies(is_prefill: bool, sabotage: Option<Sabotage>) -> (Option<Lie>, Option<Lie>) {
    match (is_prefill, sabotage) {
        (true, Some(Sabotage::Settle)) => (Some(Lie::SettlesUnasked), None),
        (false, Some(Sabotage::Fence)) => (None, Some(Lie::RepeatsDecodeLegs)),
        (false, _) => (Some(Lie::RepeatsDecodeCalls), None),
        (true, _) => (None, None),
    }
}

fn config(role: &str) -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://{}", ports::free())),
            topic: String::new(),
            buffer_steps: 1000,
            hash_form: HashForm::Int,
        }),
        blocks: BLOCKS,
        max_model_len: 2048,
        speed: SPEED,
        // As a sidecar launches it.
        plain_ids: true,
        ..Config::new(Some(role))
    }
}

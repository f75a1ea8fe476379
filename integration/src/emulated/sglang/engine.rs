//! The emulated SGLang: what it is beside a process, and how a life of it begins.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use baton_transfer::AgentConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::core::{Core, Listener, Mortal};
use super::super::process::{Death, Life, Process, Rank};
use super::super::publisher::{Publisher, PublisherConfig};
use super::super::reach::{self, Reader, Regions};
use super::super::server::{self, After, Api, Connection, Request};
use super::super::tokenizer::Tokenizer;
use super::bootstrap::Bootstrap;
use super::config::{Config, Mode};
use super::load;
use super::peers::Peers;
use super::request::{Ask, Refused};
use super::rooms::Rooms;
use super::routes;
use super::telling::Telling;
use super::transfer::{self, Transfer};
use crate::wait::until_some;

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub struct EmulatedSglang {
    inner: Arc<Inner>,
}

struct Inner {
    process: Arc<Process>,
    config: Config,
    bootstrap: SocketAddr,
    /// What each rank of the current life has for handoffs.
    seats: Mutex<Vec<Arc<Seat>>>,
    /// Whether it looks all the time whether clients are still there.
    watches: watch::Sender<bool>,
    /// So many aborts come before what they are about.
    early_aborts: AtomicUsize,
    /// Requests that can be aborted by name.
    named: Mutex<HashMap<u64, (String, CancellationToken)>>,
}

/// What a rank has for handoffs.
struct Seat {
    rooms: Arc<Rooms>,
    /// Whom decode has met.
    peers: Arc<Peers>,
    transfer: Transfer,
    regions: Regions,
    /// Where decode calls.
    address: SocketAddr,
}

/// A request that can be aborted by its name as long as this lives.
pub(super) struct Named {
    engine: EmulatedSglang,
    key: u64,
    pub(super) cancel: CancellationToken,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.engine.inner.named.lock().unwrap().remove(&self.key);
    }
}

impl Deref for EmulatedSglang {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.inner.process
    }
}

impl Api for EmulatedSglang {
    fn process(&self) -> &Process {
        self
    }

    async fn route(
        &self,
        connection: &mut Connection,
        life: &Arc<Life>,
        request: &Request,
    ) -> After {
        routes::route(connection, self, life, request).await
    }
}

impl EmulatedSglang {
    /// An engine that is not running yet, at ports of its own.
    pub fn new(config: Config) -> Self {
        let (http, bootstrap) = (crate::ports::free(), crate::ports::free());
        let config = Config {
            bootstrap_port: bootstrap.port(),
            ..config
        };
        Self::at(config, http).expect("the tokenizer can be read")
    }

    /// The same with HTTP at this address. Fails if its tokenizer cannot be read.
    pub fn at(config: Config, http: SocketAddr) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::of_model(&config.model)?;
        let inner = Inner {
            process: Process::new(http, tokenizer, config.remember),
            bootstrap: SocketAddr::new(http.ip(), config.bootstrap_port),
            config,
            seats: Mutex::default(),
            watches: watch::Sender::default(),
            early_aborts: AtomicUsize::new(0),
            named: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        &self.inner.process
    }

    /// How it was started.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Where its bootstrap server is, if it computes prompts for others.
    pub fn bootstrap(&self) -> SocketAddr {
        self.inner.bootstrap
    }

    /// Flags that tell a sidecar about this engine: the engine says the rest itself.
    pub fn sidecar_flags(&self) -> Vec<String> {
        let mut flags = vec!["--engine".to_owned(), format!("http://{}", self.address())];
        if let Some(key) = &self.inner.config.api_key {
            flags.extend(["--engine-api-key".to_owned(), key.clone()]);
        }
        flags
    }

    /// Starts the process. Nothing that a life before it said of itself is true of this one.
    pub async fn start(&self) {
        let inner = &self.inner;
        let death = Death::of(&inner.process);
        let mut seats = Vec::new();
        let mut ranks = Vec::new();
        for rank in 0..inner.config.dp_size {
            let (booted, seat) = self.boot_rank(rank, &death).await;
            ranks.push(booted);
            seats.push(Arc::new(seat));
        }
        let addresses = seats.iter().map(|seat| seat.address).collect();
        *inner.seats.lock().unwrap() = seats;
        let started = 1_796_006_723.0 + f64::from(rand::random::<u32>()) / 65_536.0;
        let life = Life::new(reach::uuid(), started, ranks, death, Vec::new());
        if inner.config.mode == Mode::Prefill {
            self.serve_bootstrap(&life, addresses).await;
        }
        inner.process.live(self.clone(), life).await;
    }

    async fn serve_bootstrap(&self, life: &Arc<Life>, ranks: Vec<SocketAddr>) {
        let listener = until_some("the bootstrap port to be free", || async {
            TcpListener::bind(self.inner.bootstrap).await.ok()
        })
        .await;
        let api = Bootstrap::new(self.process(), self.inner.config.page_size, ranks);
        tokio::spawn(server::serve(api, Arc::clone(life), listener));
    }

    async fn boot_rank(&self, rank: u32, death: &Arc<Death>) -> (Rank, Seat) {
        let config = &self.inner.config;
        let core_config = config.core(rank);
        let (blocks, block_bytes) = (core_config.blocks, core_config.block_bytes());
        let agent = AgentConfig {
            bandwidth: config.kv_bandwidth,
            ..AgentConfig::new(reach::uuid())
        };
        let (agent, memory, regions) = reach::memory(&config.fabric, agent, blocks, block_bytes)
            .await
            .expect("an agent and memory");
        let reader = Reader::new(&agent, block_bytes, blocks).await;
        let transfer = Transfer::new(reader, config.page_size);
        let publisher = self.publisher(rank).await;
        let telling = Arc::new(Telling::new(publisher.clone(), config));
        let core = Core::within(
            memory,
            core_config,
            Arc::clone(&self.tokenizer),
            Arc::new(transfer.clone()),
            Arc::clone(&telling) as Arc<dyn Listener>,
            Arc::clone(death) as Arc<dyn Mortal>,
        );
        work(config, &core, death);
        load::start(&self.inner.config, rank, &core, death).await;
        let (rooms, address) = rooms(&agent, &core, death).await;
        let rank = Rank {
            core,
            publisher,
            agent,
            texts: telling.texts(),
        };
        let seat = Seat {
            rooms,
            peers: Peers::new(config.patience, death.dead.clone()),
            transfer,
            regions,
            address,
        };
        (rank, seat)
    }

    async fn publisher(&self, rank: u32) -> Option<Arc<Publisher>> {
        let events = self.inner.config.events.as_ref()?;
        let config = PublisherConfig {
            endpoint: events.endpoint.clone(),
            replay_endpoint: events.replay_endpoint.clone(),
            topic: events.topic.clone(),
            buffer_steps: events.buffer_steps,
            ..PublisherConfig::default()
        };
        Some(Publisher::start_when_free(&config, rank).await)
    }

    /// What its first rank takes for the engine with this bootstrap server; `None` if it knows of none there.
    pub fn knows_of(&self, bootstrap: SocketAddr) -> Option<SocketAddr> {
        self.peers(0).known(bootstrap)
    }

    /// It looks all the time whether clients are still there, or again every now and then only.
    pub fn watch_connections(&self, watches: bool) {
        self.inner.watches.send_replace(watches);
    }

    /// Resolves while it looks all the time.
    pub(super) async fn watches(&self) {
        let mut watches = self.inner.watches.subscribe();
        let watching = watches.wait_for(|watches| *watches);
        watching.await.expect("its other end is the engine's");
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self) {
        self.kill().await;
        self.start().await;
    }

    fn seat(&self, rank: usize) -> Arc<Seat> {
        Arc::clone(&self.inner.seats.lock().unwrap()[rank])
    }

    pub(super) fn rooms(&self, rank: usize) -> Arc<Rooms> {
        Arc::clone(&self.seat(rank).rooms)
    }

    pub(super) fn peers(&self, rank: usize) -> Arc<Peers> {
        Arc::clone(&self.seat(rank).peers)
    }

    pub(super) fn transfer(&self, rank: usize) -> Transfer {
        self.seat(rank).transfer.clone()
    }

    pub(super) fn regions(&self, rank: usize) -> Regions {
        self.seat(rank).regions.clone()
    }

    /// Makes a request known by its name.
    pub(super) fn name(&self, rid: &str) -> Named {
        let cancel = CancellationToken::new();
        let mut named = self.inner.named.lock().unwrap();
        let key = rand::random();
        named.insert(key, (rid.to_owned(), cancel.clone()));
        Named {
            engine: self.clone(),
            key,
            cancel,
        }
    }

    /// The next so many aborts come before what they are about: they end nothing.
    pub fn hear_too_early(&self, aborts: usize) {
        self.inner.early_aborts.store(aborts, Ordering::Relaxed);
    }

    /// Aborts every request whose name begins so.
    pub(super) fn abort(&self, rid: &str) {
        let early = &self.inner.early_aborts;
        let one_less = |left: usize| left.checked_sub(1);
        let was_early = early.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        if was_early.is_ok() {
            return;
        }
        let named = self.inner.named.lock().unwrap();
        let meant = named.values().filter(|(known, _)| known.starts_with(rid));
        meant.for_each(|(_, cancel)| cancel.cancel());
    }

    /// The rank that works on a request.
    pub(super) fn rank_for(
        &self,
        life: &Life,
        ask: &Ask,
        room: Option<u64>,
    ) -> Result<usize, Refused> {
        let ranks = life.ranks.len() as u64;
        let by_room = room
            .filter(|_| self.inner.config.mode == Mode::Prefill)
            .map(|room| room % ranks);
        let named = ask.routed_dp_rank.or(by_room.and(ask.prefill_dp_rank));
        if let (Some(named), Some(by_room), None) = (named, by_room, ask.prefill_dp_rank)
            && named != by_room
        {
            return Err(Refused::bad("follow_bootstrap_room conflict"));
        }
        match named.or(by_room) {
            None => Ok(life.least_busy()),
            Some(rank) if rank < ranks => Ok(usize::try_from(rank).unwrap_or(0)),
            Some(rank) => Err(Refused::bad(format!("there is no rank {rank}"))),
        }
    }
}

/// A rank begins to work, and does so until the process is dead.
fn work(config: &Config, core: &Arc<Core>, death: &Death) {
    if config.has_cache() {
        // The real one begins with an empty tree, and says so.
        core.reset_prefix_cache();
    }
    let work = Arc::clone(core).run();
    let dead = death.dead.clone();
    tokio::spawn(async move { dead.run_until_cancelled(work).await });
}

/// The rooms of a rank, and where decode calls.
async fn rooms(
    agent: &baton_transfer::Agent,
    core: &Arc<Core>,
    death: &Arc<Death>,
) -> (Arc<Rooms>, SocketAddr) {
    let rooms = Arc::new(Rooms::default());
    tokio::spawn(transfer::listen(
        agent.clone(),
        Arc::clone(core),
        Arc::clone(&rooms),
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("the kernel has a port");
    let address = listener.local_addr().expect("it is bound");
    let (listening, dead) = (Arc::clone(&rooms), death.dead.clone());
    tokio::spawn(async move {
        let listen = Arc::clone(&listening).listen(listener);
        dead.run_until_cancelled(listen).await;
        listening.close();
    });
    (rooms, address)
}

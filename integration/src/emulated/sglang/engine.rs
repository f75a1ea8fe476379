//! The emulated SGLang: what it is beside a process, and how a life of it begins.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::super::core::{Core, Listener};
use super::super::process::{Death, Life, Process, Rank};
use super::super::publisher::{Publisher, PublisherConfig};
use super::super::reach::{self, Regions};
use super::super::rooms::Rooms;
use super::super::seat::Seat;
use super::super::server::{self, After, Api, Connection, Request};
use super::super::tokenizer::Tokenizer;
use super::super::transfer::Transfer;
use super::bootstrap::Bootstrap;
use super::config::{Config, Mode};
use super::load;
use super::peers::Peers;
use super::request::{Ask, Refused};
use super::routes;
use super::telling::Telling;
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
    places: Mutex<Vec<Arc<Place>>>,
    /// So many aborts come before what they are about.
    early_aborts: AtomicUsize,
    /// Requests that can be aborted by name.
    named: Mutex<HashMap<u64, (String, CancellationToken)>>,
}

/// What a rank has for handoffs.
struct Place {
    seat: Seat,
    /// Whom decode has met.
    peers: Arc<Peers>,
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
            places: Mutex::default(),
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
        let mut places = Vec::new();
        let mut ranks = Vec::new();
        for rank in 0..inner.config.dp_size {
            let (booted, place) = self.boot_rank(rank, &death).await;
            ranks.push(booted);
            places.push(Arc::new(place));
        }
        let addresses = places.iter().map(|place| place.seat.address).collect();
        *inner.places.lock().unwrap() = places;
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

    async fn boot_rank(&self, rank: u32, death: &Arc<Death>) -> (Rank, Place) {
        let config = &self.inner.config;
        let publisher = self.publisher(rank).await;
        let telling = Arc::new(Telling::new(publisher.clone(), config));
        let (core, agent, seat) = Seat::take(
            &config.fabric,
            config.core(rank),
            Arc::clone(&self.tokenizer),
            Arc::clone(&telling) as Arc<dyn Listener>,
            death,
        )
        .await;
        work(config, &core, death);
        load::start(config, rank, &core, death).await;
        let rank = Rank {
            core,
            publisher,
            agent,
            texts: telling.texts(),
        };
        let place = Place {
            seat,
            peers: Peers::new(config.patience, death.dead.clone()),
        };
        (rank, place)
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

    /// Whether either leg of a handoff is in a room of the first rank's.
    pub fn has_open(&self, room: u64) -> bool {
        self.rooms(0).is_open(room)
    }

    /// What its first rank takes for the engine with this bootstrap server; `None` if it knows of none there.
    pub fn knows_of(&self, bootstrap: SocketAddr) -> Option<SocketAddr> {
        self.peers(0).known(bootstrap)
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self) {
        self.kill().await;
        self.start().await;
    }

    fn place(&self, rank: usize) -> Arc<Place> {
        Arc::clone(&self.inner.places.lock().unwrap()[rank])
    }

    pub(super) fn rooms(&self, rank: usize) -> Arc<Rooms> {
        Arc::clone(&self.place(rank).seat.rooms)
    }

    pub(super) fn peers(&self, rank: usize) -> Arc<Peers> {
        Arc::clone(&self.place(rank).peers)
    }

    pub(super) fn transfer(&self, rank: usize) -> Transfer {
        self.place(rank).seat.transfer.clone()
    }

    pub(super) fn regions(&self, rank: usize) -> Regions {
        self.place(rank).seat.regions.clone()
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

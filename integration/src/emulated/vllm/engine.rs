//! The emulated vLLM: what it is beside a process, and how a life of it begins.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use baton_transfer::AgentConfig;
use rand::Rng;

use super::super::core::{Core, Listener, Mortal, Pending};
use super::super::process::{Death, Life, Process, Rank};
use super::super::publisher::{Publisher, PublisherConfig};
use super::super::reach::{self, Reader};
use super::super::server::{After, Api, Connection, Request};
use super::super::tokenizer::Tokenizer;
use super::config::{Config, EventsConfig};
use super::events::{Event, Form};
use super::routes;
use super::side_channel::{self, HandshakeFacts, SideChannel};
use super::telling::Telling;
use super::transfer::{self, Transfer};
use crate::wait::until_some;

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub struct EmulatedVllm {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    process: Arc<Process>,
    config: Config,
    side_channel: SocketAddr,
    lives: AtomicU64,
    /// What each rank of the current life tells of itself.
    pub(super) tellings: Mutex<Vec<Arc<Telling>>>,
    side_mode: Arc<Mutex<SideChannel>>,
    listener_killed: Arc<AtomicBool>,
}

impl Deref for EmulatedVllm {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.inner.process
    }
}

impl Api for EmulatedVllm {
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

/// The `engine_id` of the next life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineId {
    /// As in the last life.
    Same,
    /// A new one.
    New,
}

impl EmulatedVllm {
    /// An engine that is not running yet, at ports of its own.
    pub fn new(config: Config) -> Self {
        let (http, side_channel) = (crate::ports::free(), crate::ports::free());
        Self::at(config, http, side_channel).expect("the tokenizer can be read")
    }

    /// The same at these ports; rank `n` has the side channel `n` ports further. Fails if its tokenizer cannot be read.
    pub fn at(config: Config, http: SocketAddr, side_channel: SocketAddr) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::of_model(&config.model)?;
        let inner = Inner {
            process: Process::new(http, tokenizer, config.remember),
            config,
            side_channel,
            lives: AtomicU64::new(0),
            tellings: Mutex::default(),
            side_mode: Arc::default(),
            listener_killed: Arc::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        &self.inner.process
    }

    /// Starts the process.
    pub async fn start(&self) {
        self.boot(EngineId::New).await;
    }

    async fn boot(&self, id: EngineId) {
        let inner = &self.inner;
        let number = match id {
            EngineId::New => inner.lives.fetch_add(1, Ordering::Relaxed) + 1,
            EngineId::Same => inner.lives.load(Ordering::Relaxed),
        };
        let engine_id = inner
            .config
            .engine_id
            .clone()
            .unwrap_or_else(|| format!("engine-{}-{number}", inner.side_channel.port()));
        let death = Death::of(&inner.process);
        inner.tellings.lock().unwrap().clear();
        let (mut ranks, mut doors) = (Vec::new(), Vec::new());
        for rank in 0..inner.config.ranks {
            let booted = self.boot_rank(rank, &engine_id, &death, &mut doors);
            ranks.push(booted.await);
        }
        let started = 1_796_006_723.0 + f64::from(rand::rng().random::<u16>());
        let life = Life::new(engine_id, started, ranks, death, doors);
        inner.process.live(self.clone(), life).await;
    }

    async fn boot_rank(
        &self,
        rank: u32,
        engine_id: &str,
        death: &Arc<Death>,
        doors: &mut Vec<Pending<()>>,
    ) -> Rank {
        let config = &self.inner.config;
        let block_bytes = config.core(rank).block_bytes();
        let agent = AgentConfig {
            bandwidth: config.kv_bandwidth,
            ..AgentConfig::new(reach::uuid())
        };
        let (agent, memory, regions) =
            reach::memory(&config.fabric, agent, config.blocks, block_bytes)
                .await
                .expect("an agent and memory");
        let facts = HandshakeFacts::of(config, engine_id, regions);
        let reader = Reader::new(&agent, block_bytes, config.blocks).await;
        let publisher = match &config.events {
            None => None,
            Some(events) => Some(publisher(events, rank).await),
        };
        let telling = Arc::new(Telling::new(publisher.clone(), config));
        let core = Core::within(
            memory,
            config.core(rank),
            Arc::clone(&self.tokenizer),
            Arc::new(Transfer::new(facts.clone(), reader)),
            Arc::clone(&telling) as Arc<dyn Listener>,
            Arc::clone(death) as Arc<dyn Mortal>,
        );
        let dead = death.dead.clone();
        tokio::spawn(transfer::listen(agent.clone(), Arc::clone(&core)));
        let work = Arc::clone(&core).run();
        tokio::spawn(async move { dead.run_until_cancelled(work).await });
        if config.role.is_some() {
            let listener = self.listen(rank, &facts).await;
            doors.push(Box::pin(listener.stop()));
        }
        let texts = telling.texts();
        self.inner.tellings.lock().unwrap().push(telling);
        Rank {
            core,
            publisher,
            agent,
            texts,
        }
    }

    async fn listen(&self, rank: u32, facts: &HandshakeFacts) -> side_channel::Listener {
        let inner = &self.inner;
        let port = inner.side_channel.port() + u16::try_from(rank).expect("few ranks");
        let address = SocketAddr::new(inner.side_channel.ip(), port);
        until_some("the side channel's port to be free", || async {
            let (mode, killed) = (
                Arc::clone(&inner.side_mode),
                Arc::clone(&inner.listener_killed),
            );
            side_channel::Listener::start(address, facts, mode, killed).ok()
        })
        .await
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self, id: EngineId) {
        self.kill().await;
        self.boot(id).await;
    }

    /// Forgets all rules and goes on if it was frozen.
    pub fn behave(&self) {
        self.inner.process.behave();
        *self.inner.side_mode.lock().unwrap() = SideChannel::Normal;
    }

    /// What the side channel says from now on.
    pub fn side_channel_mode(&self, mode: SideChannel) {
        *self.inner.side_mode.lock().unwrap() = mode;
    }

    /// Tells of blocks that the engine does not hold: for who measures what is made of that. `None` if the rank publishes no
    /// events.
    pub fn publish(&self, rank: usize, events: Vec<Event>) -> Option<()> {
        let hash_form = self.inner.config.events.as_ref()?.hash_form;
        self.tell(rank, Event::write(events, Form::Maps, hash_form))
    }

    /// Its `engine_id`.
    pub fn engine_id(&self) -> String {
        self.life().engine_id.clone()
    }

    /// The same while it runs.
    pub fn running_engine_id(&self) -> Option<String> {
        self.running_life().map(|life| life.engine_id.clone())
    }

    /// Whether a frame was sent to the side channel that ends the real listener.
    pub fn listener_was_killed(&self) -> bool {
        self.inner.listener_killed.load(Ordering::Relaxed)
    }

    /// How it was started.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(super) fn side_channel(&self) -> SocketAddr {
        self.inner.side_channel
    }

    /// Flags that tell a sidecar about this engine.
    pub fn sidecar_flags(&self) -> Vec<String> {
        let config = &self.inner.config;
        let mut flags = vec!["--engine".to_owned(), format!("http://{}", self.address())];
        if let Some(role) = &config.role {
            let lease = config.lease.as_secs_f64();
            flags.extend([
                "--kv-transfer-config".to_owned(),
                format!(
                    r#"{{"kv_connector":"NixlConnector","kv_role":"{role}","kv_connector_extra_config":{{"kv_lease_duration":{lease}}}}}"#
                ),
                "--side-channel".to_owned(),
                self.inner.side_channel.to_string(),
            ]);
        }
        if let Some(key) = &config.api_key {
            flags.extend(["--engine-api-key".to_owned(), key.clone()]);
        }
        flags
    }
}

async fn publisher(config: &EventsConfig, rank: u32) -> Arc<Publisher> {
    let config = PublisherConfig {
        endpoint: config.endpoint.clone(),
        replay_endpoint: config.replay_endpoint.clone(),
        topic: config.topic.clone(),
        buffer_steps: config.buffer_steps,
        ..PublisherConfig::default()
    };
    Publisher::start_when_free(&config, rank).await
}

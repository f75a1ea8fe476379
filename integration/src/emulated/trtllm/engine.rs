//! The emulated TensorRT-LLM: what it is beside a process, and how a life of it begins.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::super::core::Listener;
use super::super::process::{Death, Life, Process, Rank};
use super::super::reach;
use super::super::seat::Seat;
use super::super::server::{After, Api, Connection, Request};
use super::super::tokenizer::Tokenizer;
use super::answers::Answer;
use super::config::{Auth, Config, ServerRole};
use super::iterations::Iterations;
use super::outbox::{EventFault, Outbox};
use super::routes;
use super::telling::Telling;

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub struct EmulatedTrtllm {
    inner: Arc<Inner>,
}

struct Inner {
    process: Arc<Process>,
    config: Config,
    /// Of requests that nobody else numbers: below 2^40, so that none of those is taken for one.
    next_id: AtomicU64,
    /// Blocks of KV that was held until nobody was waited for any more.
    timed_out_blocks: AtomicU64,
    current: Mutex<Current>,
}

/// What the current life has beside its ranks.
#[derive(Clone)]
struct Current {
    seats: Vec<Arc<Seat>>,
    outbox: Option<Arc<Outbox>>,
    iterations: Arc<Iterations>,
}

impl Current {
    fn new(config: &Config) -> Self {
        let events = config.events.as_ref();
        Self {
            seats: Vec::new(),
            outbox: events.map(|events| Arc::new(Outbox::new(config, events))),
            iterations: Iterations::new(config),
        }
    }
}

impl Deref for EmulatedTrtllm {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.inner.process
    }
}

impl Api for EmulatedTrtllm {
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

impl EmulatedTrtllm {
    /// An engine that is not running yet, at a port of its own.
    pub fn new(config: Config) -> Self {
        Self::at(config, crate::ports::free()).expect("the tokenizer can be read")
    }

    /// The same with HTTP at this address. Fails if its tokenizer cannot be read.
    pub fn at(config: Config, http: SocketAddr) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::of_model(&config.model)?;
        let inner = Inner {
            process: Process::new(http, tokenizer, config.remember),
            current: Mutex::new(Current::new(&config)),
            config,
            next_id: AtomicU64::new(1),
            timed_out_blocks: AtomicU64::new(0),
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

    /// Flags that tell a sidecar about this engine: it says hardly anything of itself.
    pub fn sidecar_flags(&self) -> Vec<String> {
        let config = self.config();
        let role = match config.role {
            ServerRole::Context => "prefill",
            ServerRole::Generation => "decode",
            ServerRole::Any => "any",
            ServerRole::Alone => "local",
        };
        let mut flags = vec![
            format!("--engine=http://{}", self.address()),
            format!("--role={role}"),
            format!("--tokens-per-block={}", config.tokens_per_block),
            format!("--attention-dp-ranks={}", config.ranks()),
        ];
        flags.push(match config.patience.transfer {
            Some(timeout) => format!("--kv-transfer-timeout-ms={}", timeout.as_millis().max(1)),
            None => "--allow-unbounded-transfer".to_owned(),
        });
        if let Some(events) = &config.events {
            flags.push(format!("--event-buffer-max-size={}", events.buffer));
        }
        if let Auth::Key(key) = &config.auth {
            flags.push(format!("--internal-request-auth-key={key}"));
        }
        flags
    }

    /// Starts the process. Nothing that a life before it said of itself is true of this one; its events begin at 0.
    pub async fn start(&self) {
        let inner = &self.inner;
        let death = Death::of(&inner.process);
        let mut current = Current::new(&inner.config);
        let mut ranks = Vec::new();
        for rank in 0..inner.config.ranks() {
            let (booted, seat) = self.boot_rank(rank, &current, &death).await;
            ranks.push(booted);
            current.seats.push(Arc::new(seat));
        }
        *inner.current.lock().unwrap() = current;
        let started = 1_796_006_723.0 + f64::from(rand::random::<u32>()) / 65_536.0;
        let life = Life::new(reach::uuid(), started, ranks, death, Vec::new());
        inner.process.live(self.clone(), life).await;
    }

    async fn boot_rank(&self, rank: u32, current: &Current, death: &Arc<Death>) -> (Rank, Seat) {
        let config = &self.inner.config;
        let (outbox, iterations) = (current.outbox.clone(), Arc::clone(&current.iterations));
        let telling = Arc::new(Telling::new(rank, config, outbox, iterations));
        let (core, agent, seat) = Seat::take(
            &config.fabric,
            config.core(rank),
            Arc::clone(&self.tokenizer),
            Arc::clone(&telling) as Arc<dyn Listener>,
            death,
        )
        .await;
        telling.of(&core);
        let work = Arc::clone(&core).run();
        let dead = death.dead.clone();
        tokio::spawn(async move { dead.run_until_cancelled(work).await });
        let rank = Rank {
            core,
            publisher: None,
            agent,
            texts: telling.texts(),
        };
        (rank, seat)
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self) {
        self.kill().await;
        self.start().await;
    }

    fn current(&self) -> Current {
        self.inner.current.lock().unwrap().clone()
    }

    pub(super) fn seat(&self, rank: usize) -> Arc<Seat> {
        Arc::clone(&self.inner.current.lock().unwrap().seats[rank])
    }

    /// Where ranks are asked for their KV.
    pub(super) fn seats(&self) -> Vec<Arc<Seat>> {
        self.current().seats
    }

    pub(super) fn outbox(&self) -> Option<Arc<Outbox>> {
        self.current().outbox
    }

    pub(super) fn iterations(&self) -> Arc<Iterations> {
        self.current().iterations
    }

    pub(super) fn next_id(&self) -> u64 {
        self.inner.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// What every handoff that it computed says of where it is, while it runs.
    pub fn opaque_state(&self) -> Option<String> {
        self.is_alive()
            .then(|| super::params::opaque_state(self.seat(0).address))
    }

    /// So many blocks were held until nobody was waited for any more.
    pub(super) fn timed_out(&self, blocks: usize) {
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        let counted = &self.inner.timed_out_blocks;
        counted.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Blocks of KV that nobody fetched within `kv_transfer_timeout_ms`, in all lives.
    pub fn timed_out_blocks(&self) -> u64 {
        self.inner.timed_out_blocks.load(Ordering::Relaxed)
    }

    /// A request has its whole answer.
    pub(super) fn finished(&self, answer: &Answer<'_>, started: Instant) {
        let context = answer.ask.params.as_ref();
        let context = context.and_then(super::params::Params::request_id);
        self.iterations().finish(context, started.elapsed());
    }

    /// From now on, or for the next events and polls of this life.
    pub fn raise_event_fault(&self, fault: EventFault) {
        self.outbox().expect("it has events").raise(fault);
    }

    /// Nothing goes wrong with events any more.
    pub fn clear_event_faults(&self) {
        self.outbox().expect("it has events").clear();
    }

    /// Events of this life that found no room.
    pub fn discarded_events(&self) -> u64 {
        self.outbox().expect("it has events").discarded()
    }
}

//! One rank of an emulated engine: a scheduler over a paged KV cache.
//!
//! Sequences that run get one more token in each step; what is left of the step's token budget goes to prompts, cut into
//! chunks, in the order in which they came. A step takes the time that [`Speed`] says. Nothing here knows HTTP, ZeroMQ or
//! an engine's wire: what an engine says is made of [`Output`]s and of the pool's [`Change`]s.

mod handoff;
mod network;
mod sequence;
mod state;
mod step;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use baton_transfer::Link;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use self::handoff::{HeldKv, Remote};
pub use self::network::{Failure, Network, Pending};
pub use self::sequence::{CacheUse, Finish, Handoff, Output, Request, Sampling, Submitted};
use self::state::State;
pub use self::state::Stats;
use self::step::{Fetch, Planned};
use super::memory::Memory;
use super::pool::{BlockHash, BlockId, CacheKeys, Change, HostMemory, Pool};
use super::speed::Speed;
use super::tokenizer::Tokenizer;

/// How a rank is made.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks, the null block among them.
    pub blocks: u32,
    /// Bytes of KV that a token leaves.
    pub row_bytes: usize,
    /// Tokens that a step computes at most.
    pub max_batched_tokens: usize,
    /// Sequences that run at a time.
    pub max_sequences: usize,
    /// How long a step takes.
    pub speed: Speed,
    /// Bytes per second at which KV leaves; `None` is as fast as the machine.
    pub kv_bandwidth: Option<f64>,
    /// Of jitter and unseeded sampling.
    pub seed: u64,
    /// Which rank of its engine.
    pub rank: u32,
    /// Whether it has a connector to other engines' KV.
    pub connected: bool,
    /// How long finished KV is held for decode.
    pub lease: Duration,
    /// Compute what could not be pulled, instead of failing the request.
    pub recompute_failed_loads: bool,
    /// When full blocks can be found, and are told of.
    pub told: Told,
    /// What the host's memory is for.
    pub host: HostMemory,
    /// The engine's hash of a full block.
    pub hash: fn(Option<&BlockHash>, &[u32], &CacheKeys) -> BlockHash,
}

/// When full blocks can be found, and are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// As soon as they are full, and each copy of one. A cleared cache is told of with the next step (vLLM).
    WhenFull,
    /// The prompt's with the step that computes them, the answer's when it ends, and each once: what is there already is used
    /// instead of a copy. A cleared cache is told of at once (SGLang's radix tree).
    WhenInserted,
    /// The same, and with the end of a sequence its last block, too, as full as it is (TensorRT-LLM).
    WithTails,
}

impl Told {
    fn inserts(self) -> bool {
        self != Self::WhenFull
    }
}

/// Where a rank tells what happened, once a step.
pub trait Listener: Send + Sync {
    /// To its cache, in the order in which it happened.
    fn changed(&self, changes: Vec<Change>);

    /// To its requests, for distributions.
    fn measured(&self, measured: Vec<Measured>);
}

/// Something that belongs into a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measured {
    /// A request left the queue after so long.
    Queued(Duration),
    /// A request got its first token so long after it came.
    FirstToken(Duration),
    /// A request got its next token after so long.
    NextToken(Duration),
    /// A step.
    Step {
        /// Tokens that it computed.
        computed: usize,
        /// Tokens that it is said to have computed: those that came out, and the whole prompts before the first ones.
        told: usize,
    },
    /// KV came from another engine.
    Transfer {
        /// Since it was asked for.
        took: Duration,
        /// All of it.
        bytes: usize,
        /// In so many of this engine's blocks.
        blocks: usize,
    },
    /// A request ended by itself.
    Request {
        /// Since it came.
        took: Duration,
        /// Tokens of its prompt.
        prompt: usize,
        /// Of these, how many were cached nowhere.
        computed: usize,
        /// Tokens that it got.
        generated: usize,
        /// Tokens that it might have got.
        limit: usize,
    },
}

/// Why an engine ended, and that it did.
pub trait Mortal: Send + Sync {
    /// The whole process dies of this.
    fn die(&self, of: &str);
}

impl CoreConfig {
    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_size as usize * self.row_bytes
    }
}

/// One rank.
pub struct Core {
    config: CoreConfig,
    tokenizer: Arc<Tokenizer>,
    network: Arc<dyn Network>,
    listener: Arc<dyn Listener>,
    process: Arc<dyn Mortal>,
    state: Mutex<State>,
    wake: Notify,
    frozen: watch::Sender<bool>,
    deaf: AtomicBool,
    link: Link,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// A rank with an empty cache in memory of its own. It works while [`Core::run`] does.
    pub fn new(
        config: CoreConfig,
        tokenizer: Arc<Tokenizer>,
        network: Arc<dyn Network>,
        listener: Arc<dyn Listener>,
        process: Arc<dyn Mortal>,
    ) -> Arc<Self> {
        let pool = Pool::new(config.blocks, config.block_bytes());
        Self::with(pool, config, tokenizer, network, listener, process)
    }

    /// The same with its cache in this memory, which has room for it.
    pub fn within(
        memory: Memory,
        config: CoreConfig,
        tokenizer: Arc<Tokenizer>,
        network: Arc<dyn Network>,
        listener: Arc<dyn Listener>,
        process: Arc<dyn Mortal>,
    ) -> Arc<Self> {
        let pool = Pool::within(memory, config.blocks, config.block_bytes());
        Self::with(pool, config, tokenizer, network, listener, process)
    }

    fn with(
        pool: Pool,
        config: CoreConfig,
        tokenizer: Arc<Tokenizer>,
        network: Arc<dyn Network>,
        listener: Arc<dyn Listener>,
        process: Arc<dyn Mortal>,
    ) -> Arc<Self> {
        let mut pool = pool;
        pool.use_host(config.host);
        Arc::new(Self {
            state: Mutex::new(State::new(pool, &config)),
            link: Link::new(config.kv_bandwidth),
            wake: Notify::new(),
            frozen: watch::Sender::new(false),
            deaf: AtomicBool::new(false),
            config,
            tokenizer,
            network,
            listener,
            process,
        })
    }

    /// How it was made.
    pub fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The way on which its KV leaves, where no agent gives it away.
    pub fn link(&self) -> &Link {
        &self.link
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Takes a request. Dropping what comes back aborts it.
    pub fn submit(self: &Arc<Self>, request: Request) -> Submitted {
        let (key, outputs) = self.state().admit(request, &self.config);
        self.wake.notify_one();
        Submitted::new(Arc::clone(self), key, outputs)
    }

    fn abort(self: &Arc<Self>, key: u64) {
        let aborted = self.state().abort(key);
        match aborted {
            Some(handoff) if handoff.kills_when_given_up() => {
                self.process
                    .die("KeyError 'remote_request_id' at the end of a request without one");
            }
            Some(Handoff::Fetch(remote)) => self.tell_holder(remote),
            _ => {}
        }
        self.wake.notify_one();
    }

    /// A decode leg that ends before it has pulled gives the KV back all the same.
    fn tell_holder(&self, remote: Remote) {
        let message = format!("{}:1", remote.request_id);
        tokio::spawn(self.network.notify(remote, message));
    }

    /// Ends the requests of this id as an abort does that comes from outside; their answers say so.
    pub fn abort_by_id(&self, id: &str) {
        self.state().abort_by_id(id);
        self.wake.notify_one();
    }

    /// A notification came over the data plane.
    pub fn notified(&self, message: &[u8]) {
        if self.deaf.load(Ordering::Relaxed) {
            return;
        }
        let outcome = self
            .state()
            .notified(message, Instant::now(), self.config.lease);
        match outcome {
            Ok(()) => self.wake.notify_one(),
            Err(of) => self.process.die(of),
        }
    }

    /// Bytes of a block, whoever it belongs to.
    pub fn read_block(&self, id: BlockId) -> Option<Vec<u8>> {
        self.state().pool.block(id)
    }

    /// Forgets all cached blocks.
    pub fn reset_prefix_cache(&self) {
        self.state().pool.clear();
        self.wake.notify_one();
    }

    /// Stops making progress, or goes on. What is not the scheduler goes on answering.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Takes no notice of notifications any more, or does again: what it holds for decode stays until its lease ends.
    pub fn deafen(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::Relaxed);
    }

    /// Hashes of all blocks that can be found.
    pub fn cached(&self) -> Vec<BlockHash> {
        self.state().pool.held()
    }

    /// Hashes of all blocks that could be brought back from the host's memory.
    pub fn copied(&self) -> Vec<BlockHash> {
        self.state().pool.held_by_host()
    }

    /// Requests whose KV is held for decode.
    pub fn holds(&self) -> usize {
        let mut state = self.state();
        state.expire(Instant::now());
        state.held.len()
    }

    /// The same by id, with how many blocks each has.
    pub fn held(&self) -> Vec<(String, usize)> {
        let mut state = self.state();
        state.expire(Instant::now());
        let held = state.held.iter();
        held.map(|(id, held)| (id.clone(), held.blocks.len()))
            .collect()
    }

    /// Writes nonsense over every block that nobody uses, as other requests do sooner or later.
    pub fn overwrite_free(&self) {
        self.state().pool.overwrite_free();
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.state().stats()
    }

    /// Works until the process dies.
    pub async fn run(self: Arc<Self>) {
        let mut heartbeat = Instant::now();
        loop {
            self.thawed().await;
            let planned = self.state().plan(&self.config, Instant::now());
            match planned {
                Planned::Death(of) => return self.process.die(of),
                Planned::Step(step, fetches) => {
                    for fetch in fetches {
                        self.start_fetch(fetch);
                    }
                    self.pass_time(step.takes).await;
                    let outputs = self.state().apply(&step, &self.config, &self.tokenizer);
                    // As in the real engine, whoever has an answer can have the events that led to it.
                    self.tell(false);
                    for output in outputs {
                        output.deliver();
                    }
                }
                Planned::Idle { until } => {
                    self.tell(true);
                    self.idle(until).await;
                }
            }
            if heartbeat.elapsed() >= self.config.lease / 6 {
                heartbeat = Instant::now();
                self.send_heartbeats();
            }
        }
    }

    /// Waits until it is not frozen.
    pub async fn thawed(&self) {
        let mut frozen = self.frozen.subscribe();
        // Fails only if the sender is gone, which is part of `self`.
        let _ = frozen.wait_for(|frozen| !frozen).await;
    }

    async fn pass_time(&self, takes: Duration) {
        if takes.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(takes).await;
        }
    }

    async fn idle(&self, until: Option<Instant>) {
        let woken = self.wake.notified();
        match until {
            None => woken.await,
            Some(until) => {
                let _ = tokio::time::timeout_at(until, woken).await;
            }
        }
    }

    /// Tells what happened. A cache that was only cleared may be told of with the next step: an idle vLLM says nothing.
    fn tell(&self, idle: bool) {
        let (changes, measured) = {
            let mut state = self.state();
            let waits = self.config.told == Told::WhenFull;
            let untold = idle && waits && state.pool.was_only_cleared();
            let changes = if untold {
                Vec::new()
            } else {
                state.pool.take_changes()
            };
            (changes, std::mem::take(&mut state.measured))
        };
        if !changes.is_empty() {
            self.listener.changed(changes);
        }
        if !measured.is_empty() {
            self.listener.measured(measured);
        }
    }

    fn start_fetch(self: &Arc<Self>, fetch: Fetch) {
        let core = Arc::clone(self);
        let started = Instant::now();
        let rows = self
            .network
            .fetch(fetch.remote, fetch.first_token, fetch.tokens);
        tokio::spawn(async move {
            let rows = rows.await;
            core.state()
                .fetched(fetch.key, rows, started.elapsed(), &core.config);
            core.wake.notify_one();
        });
    }

    fn send_heartbeats(&self) {
        for (remote, ids) in self.state().heartbeats() {
            let message = format!("HB:{}", ids.join(","));
            tokio::spawn(self.network.notify(remote, message));
        }
    }
}

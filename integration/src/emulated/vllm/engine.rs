//! The engine's process: its lives, its ports, how it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use baton_transfer::Agent;
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::super::core::{Core, Listener, Mortal, Stats};
use super::super::tokenizer::Tokenizer;
use super::config::{Config, EventsConfig};
use super::publisher::{Faults, Publisher, PublisherConfig};
use super::script::{Http, Leg, Rule};
use super::seen::{Fate, Seen};
use super::server;
use super::side_channel::{self, HandshakeFacts, SideChannel};
use super::telling::Telling;
use super::texts::Text;
use super::transfer::{self, Transfer};
use crate::wait::until_some;

/// From the death of the scheduler to the end of the process; the real one takes up to a second.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// One rank of one life.
pub(super) struct Rank {
    pub(super) core: Arc<Core>,
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) telling: Arc<Telling>,
    agent: Agent,
    side_channel: Mutex<Option<side_channel::Listener>>,
}

/// One life of the engine's process.
pub struct Life {
    pub(super) engine_id: String,
    pub(super) started: f64,
    pub(super) ranks: Vec<Rank>,
    pub(super) running: AtomicI64,
    pub(super) death: Arc<Death>,
}

/// How a life ends.
pub(super) struct Death {
    engine: Weak<Inner>,
    /// The scheduler is dead: requests get their last words.
    pub(super) dying: CancellationToken,
    /// The process is gone.
    pub(super) dead: CancellationToken,
}

impl Mortal for Death {
    fn die(&self, of: &str) {
        let Some(inner) = self.engine.upgrade() else {
            return;
        };
        if !self.dying.is_cancelled() {
            inner.died_of.lock().unwrap().push(of.to_owned());
            self.dying.cancel();
        }
        let engine = EmulatedVllm { inner };
        let dead = self.dead.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LAST_WORDS).await;
            dead.cancel();
            engine.kill().await;
        });
    }
}

/// An emulated engine. Clones are the same engine.
#[derive(Clone)]
pub struct EmulatedVllm {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) config: Config,
    pub(super) tokenizer: Arc<Tokenizer>,
    http: SocketAddr,
    side_channel: SocketAddr,
    lives: AtomicU64,
    running: Mutex<Option<Arc<Life>>>,
    rules: Mutex<Vec<Rule>>,
    pub(super) seen: Mutex<Vec<Seen>>,
    pub(super) http_mode: Mutex<Http>,
    side_mode: Arc<Mutex<SideChannel>>,
    listener_killed: Arc<AtomicBool>,
    died_of: Mutex<Vec<String>>,
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
        let inner = Inner {
            tokenizer: Arc::new(Tokenizer::of_model(&config.model)?),
            config,
            http,
            side_channel,
            lives: AtomicU64::new(0),
            running: Mutex::default(),
            rules: Mutex::default(),
            seen: Mutex::default(),
            http_mode: Mutex::default(),
            side_mode: Arc::default(),
            listener_killed: Arc::default(),
            died_of: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
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
        let death = Arc::new(Death {
            engine: Arc::downgrade(inner),
            dying: CancellationToken::new(),
            dead: CancellationToken::new(),
        });
        let mut ranks = Vec::new();
        for rank in 0..inner.config.ranks {
            ranks.push(self.boot_rank(rank, &engine_id, &death).await);
        }
        let life = Arc::new(Life {
            engine_id,
            started: 1_796_006_723.0 + f64::from(rand::rng().random::<u16>()),
            ranks,
            running: AtomicI64::new(0),
            death,
        });
        let listener = until_some("the engine's port to be free", || async {
            tokio::net::TcpListener::bind(inner.http).await.ok()
        })
        .await;
        tokio::spawn(server::serve(self.clone(), Arc::clone(&life), listener));
        *inner.running.lock().unwrap() = Some(life);
    }

    async fn boot_rank(&self, rank: u32, engine_id: &str, death: &Arc<Death>) -> Rank {
        let config = &self.inner.config;
        let (agent, memory, facts) = transfer::memory(config, engine_id, uuid())
            .await
            .expect("an agent and memory");
        let landing = agent.register(config.core(rank).block_bytes(), config.blocks as usize);
        let landing = landing.await.expect("as much memory again");
        let publisher = match &config.events {
            None => None,
            Some(events) => Some(publisher(events, rank).await),
        };
        let telling = Arc::new(Telling::new(
            publisher.clone(),
            config.block_size,
            config.remember,
        ));
        let core = Core::within(
            memory,
            config.core(rank),
            Arc::clone(&self.inner.tokenizer),
            Arc::new(Transfer::new(facts.clone(), agent.clone(), landing)),
            Arc::clone(&telling) as Arc<dyn Listener>,
            Arc::clone(death) as Arc<dyn Mortal>,
        );
        let dead = death.dead.clone();
        tokio::spawn(transfer::listen(agent.clone(), Arc::clone(&core)));
        let work = Arc::clone(&core).run();
        tokio::spawn(async move { dead.run_until_cancelled(work).await });
        let side_channel = match config.role {
            None => None,
            Some(_) => Some(self.listen(rank, &facts).await),
        };
        Rank {
            core,
            publisher,
            telling,
            agent,
            side_channel: Mutex::new(side_channel),
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

    /// Ends the process as a SIGKILL does: every connection is reset, every port is free.
    pub async fn kill(&self) {
        let running = self.inner.running.lock().unwrap().take();
        let Some(life) = running else {
            return;
        };
        life.death.dying.cancel();
        life.death.dead.cancel();
        for rank in &life.ranks {
            rank.agent.end();
            let side_channel = rank.side_channel.lock().unwrap().take();
            if let Some(side_channel) = side_channel {
                side_channel.stop().await;
            }
            if let Some(publisher) = &rank.publisher {
                publisher.stop().await;
            }
        }
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self, id: EngineId) {
        self.kill().await;
        self.boot(id).await;
    }

    /// Waits until the process dies of a request, and says of what.
    pub async fn died(&self) -> String {
        let dead = self.life().death.dead.clone();
        dead.cancelled().await;
        self.died_of().pop().unwrap_or_default()
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.inner.running.lock().unwrap().is_some()
    }

    /// The current life.
    pub(super) fn life(&self) -> Arc<Life> {
        let running = self.inner.running.lock().unwrap();
        Arc::clone(running.as_ref().expect("the engine runs"))
    }

    fn cores<T>(&self, of: impl Fn(&Core) -> T) -> Vec<T> {
        self.life()
            .ranks
            .iter()
            .map(|rank| of(&rank.core))
            .collect()
    }

    /// Does this to every rank, if the engine runs.
    fn to_ranks(&self, what: impl Fn(&Rank)) {
        let running = self.inner.running.lock().unwrap().clone();
        let ranks = running.iter().flat_map(|life| &life.ranks);
        ranks.for_each(what);
    }

    /// Adds a rule; the first one that fits a request and is not used up counts.
    pub fn script(&self, rule: Rule) {
        self.inner.rules.lock().unwrap().push(rule);
    }

    /// Forgets all rules and goes on if it was frozen.
    pub fn behave(&self) {
        self.inner.rules.lock().unwrap().clear();
        *self.inner.http_mode.lock().unwrap() = Http::Normal;
        *self.inner.side_mode.lock().unwrap() = SideChannel::Normal;
        self.freeze(false);
    }

    /// How the HTTP server behaves from now on.
    pub fn http_mode(&self, mode: Http) {
        *self.inner.http_mode.lock().unwrap() = mode;
    }

    /// What the side channel says from now on.
    pub fn side_channel_mode(&self, mode: SideChannel) {
        *self.inner.side_mode.lock().unwrap() = mode;
    }

    /// The scheduler stands still, as if stopped by a signal or a hung device, while HTTP and health go on answering.
    pub fn freeze(&self, frozen: bool) {
        self.to_ranks(|rank| rank.core.freeze(frozen));
    }

    /// Its ranks take no notice of notifications any more, or do again, in this life: what they hold stays held.
    pub fn deafen(&self, deaf: bool) {
        self.to_ranks(|rank| rank.core.deafen(deaf));
    }

    /// Its network carries no KV to other engines any more, or does again, in this life.
    pub fn stall_link(&self, stalled: bool) {
        self.to_ranks(|rank| rank.agent.stall(stalled));
    }

    /// What can go wrong with the events of a rank; `None` if it publishes none.
    pub fn event_faults(&self, rank: usize) -> Option<Faults> {
        let life = self.life();
        life.ranks[rank]
            .publisher
            .as_ref()
            .map(|publisher| publisher.faults())
    }

    /// `GET /kv_event_sources` of a rank: where its events can be had.
    pub fn event_source(&self, rank: usize) -> Option<serde_json::Value> {
        let life = self.life();
        life.ranks[rank]
            .publisher
            .as_ref()
            .map(|publisher| publisher.sources())
    }

    pub(super) fn rule_for(&self, leg: Leg, body: &str) -> Option<Rule> {
        let mut rules = self.inner.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| rule.fits(leg, body))?;
        rule.times -= 1;
        Some(rule.clone())
    }

    /// Tells of blocks that the engine does not hold: for who measures what is made of that. `None` if the rank publishes no
    /// events.
    pub fn publish(&self, rank: usize, events: Vec<super::events::Event>) -> Option<()> {
        let life = self.life();
        life.ranks[rank].publisher.as_ref()?.publish(events);
        Some(())
    }

    /// Number of the next message of a rank's events; `None` if it publishes none.
    pub fn next_event(&self, rank: usize) -> Option<u64> {
        let life = self.life();
        let publisher = life.ranks[rank].publisher.as_ref();
        publisher.map(|publisher| publisher.next_sequence())
    }

    /// What is in all blocks that a rank could find now. Only an engine that is told to remember knows.
    pub fn cached(&self, rank: usize) -> Vec<Text> {
        let life = self.life();
        let rank = &life.ranks[rank];
        rank.telling.texts_of(&rank.core.cached())
    }

    /// Forgets all cached blocks of all ranks, as `POST /reset_prefix_cache` does.
    pub fn reset_prefix_cache(&self) {
        self.cores(Core::reset_prefix_cache);
    }

    /// Requests that reached it so far, in all lives.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// The same, which are then forgotten.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.inner.seen.lock().unwrap())
    }

    /// Those of one leg.
    pub fn seen_of(&self, leg: Leg) -> Vec<Seen> {
        self.seen()
            .into_iter()
            .filter(|seen| seen.leg == leg)
            .collect()
    }

    /// The only request of a leg.
    #[track_caller]
    pub fn only(&self, leg: Leg) -> Seen {
        let seen = self.seen_of(leg);
        assert_eq!(seen.len(), 1, "{leg:?} legs: {seen:?}");
        seen.into_iter().next().unwrap()
    }

    /// Waits until the last request of a leg has this fate.
    pub async fn saw(&self, leg: Leg, fate: Fate) {
        crate::wait::until(&format!("a {leg:?} leg to be {fate:?}"), || async {
            self.seen_of(leg)
                .last()
                .is_some_and(|seen| seen.fate() == fate)
        })
        .await;
    }

    /// Requests it works on now.
    pub fn working_on(&self) -> i64 {
        let running = self.inner.running.lock().unwrap();
        running
            .as_ref()
            .map_or(0, |life| life.running.load(Ordering::Relaxed))
    }

    /// Requests whose KV it holds for decode.
    pub fn holds(&self) -> usize {
        self.cores(Core::holds).into_iter().sum()
    }

    /// The same by id, with how many blocks each has.
    pub fn held(&self) -> Vec<(String, usize)> {
        self.cores(Core::held).into_iter().flatten().collect()
    }

    /// Prompt tokens whose KV it has pulled from other engines, in this life.
    pub fn transferred_tokens(&self) -> u64 {
        self.stats().iter().map(|stats| stats.external_tokens).sum()
    }

    /// Counts of every rank.
    pub fn stats(&self) -> Vec<Stats> {
        self.cores(Core::stats)
    }

    /// Writes nonsense over every block that nobody uses, as other requests do sooner or later.
    pub fn overwrite_free(&self) {
        self.cores(Core::overwrite_free);
    }

    /// Name of its first rank's NIXL agent.
    pub fn agent(&self) -> String {
        self.life().ranks[0].agent.name().to_owned()
    }

    /// Its `engine_id`.
    pub fn engine_id(&self) -> String {
        self.life().engine_id.clone()
    }

    /// The same while it runs.
    pub fn running_engine_id(&self) -> Option<String> {
        let running = self.inner.running.lock().unwrap();
        running.as_ref().map(|life| life.engine_id.clone())
    }

    /// What ended its scheduler, in words. Baton never sends such a body.
    pub fn died_of(&self) -> Vec<String> {
        self.inner.died_of.lock().unwrap().clone()
    }

    /// Whether a frame was sent to the side channel that ends the real listener.
    pub fn listener_was_killed(&self) -> bool {
        self.inner.listener_killed.load(Ordering::Relaxed)
    }

    /// How it was started.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Where its HTTP server is.
    pub fn address(&self) -> SocketAddr {
        self.inner.http
    }

    pub(super) fn side_channel(&self) -> SocketAddr {
        self.inner.side_channel
    }

    /// Flags that tell a sidecar about this engine.
    pub fn sidecar_flags(&self) -> Vec<String> {
        let config = &self.inner.config;
        let mut flags = vec!["--engine".to_owned(), format!("http://{}", self.inner.http)];
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
    until_some("the ports of KV events to be free", || async {
        let config = PublisherConfig {
            endpoint: config.endpoint.clone(),
            replay_endpoint: config.replay_endpoint.clone(),
            topic: config.topic.clone(),
            buffer_steps: config.buffer_steps,
            hash_form: config.hash_form,
            ..PublisherConfig::default()
        };
        Publisher::start(config, rank).ok().map(Arc::new)
    })
    .await
}

fn uuid() -> String {
    let hex = format!("{:032x}", rand::rng().random::<u128>());
    let cuts = [0, 8, 12, 16, 20, 32];
    let parts: Vec<&str> = cuts.windows(2).map(|cut| &hex[cut[0]..cut[1]]).collect();
    parts.join("-")
}

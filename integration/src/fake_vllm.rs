//! A small scripted vLLM for fault tests, in this process.
//!
//! It is built from what was recorded of vLLM 0.32.0 with its `NixlConnector` (pull): statuses, key sets, the handshake,
//! what a handoff does to the KV on both sides, and which bodies end the engine. It is deterministic and thin: no batching,
//! no time behaviour, a prefix cache of whole prompts. What goes wrong is said by [`script::Rule`]s, and every request
//! that reached it is remembered byte for byte ([`Seen`]).

mod answers;
mod generate;
pub mod kv;
pub mod model;
pub mod script;
mod server;
pub mod side_channel;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::kv::{Pool, Wire};
use self::script::{Leg, Rule};
use self::side_channel::{Listener, SideChannel};
use crate::wait::until_some;

/// Tokens per KV block, as recorded.
pub const BLOCK_SIZE: u32 = 32;

/// Blocks of an engine, as recorded.
pub const BLOCKS: usize = 256;

/// The model that every fake serves.
pub const MODEL: &str = "tiny";

/// How an engine was started.
#[derive(Debug, Clone)]
pub struct Config {
    /// `kv_role`; `None` for an engine without a connector.
    pub role: Option<&'static str>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// What the handshake's hash is.
    pub compatibility_hash: &'static str,
    /// What the handshake calls the layout.
    pub layout: &'static str,
    /// Added to every token id: another tokenizer.
    pub token_offset: u32,
    /// How long KV is held for decode.
    pub lease: Duration,
    /// Its `--api-key`.
    pub api_key: Option<&'static str>,
    /// Its `engine_id`, if it is given one; else it takes a new one as told.
    pub engine_id: Option<String>,
}

impl Config {
    /// An engine of this role.
    pub fn new(role: Option<&'static str>) -> Self {
        Self {
            role,
            block_size: BLOCK_SIZE,
            compatibility_hash: "2b99002e67ae07159c7f0b1a8477b52881665113f0649995de773a219769682e",
            layout: "LBHNC",
            token_offset: 0,
            lease: Duration::from_secs(30),
            api_key: None,
            engine_id: None,
        }
    }
}

/// How the HTTP server as a whole behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Http {
    /// As it should.
    #[default]
    Normal,
    /// It answers every request with bytes that are no HTTP.
    Garbage,
    /// It accepts and never answers.
    Mute,
    /// It answers every request with HTML.
    OtherServer,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The engine works on it.
    Running,
    /// It was answered as far as the script allowed.
    Answered,
    /// Whoever asked went away before that.
    Aborted,
}

/// A request that reached the engine.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which leg.
    pub leg: Leg,
    /// Path.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, byte for byte.
    pub body: String,
    fate: Arc<Mutex<Fate>>,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Seen {
    /// First header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("what reaches an engine is JSON")
    }

    /// What became of it.
    pub fn fate(&self) -> Fate {
        *self.fate.lock().unwrap()
    }

    /// All bytes that were sent in answer, head and framing included.
    pub fn sent(&self) -> Vec<u8> {
        self.sent.lock().unwrap().clone()
    }

    /// The answer as it was sent.
    pub fn answer(&self) -> crate::client::Answer {
        crate::client::Answer::parse(&self.sent())
    }

    fn ended(&self, fate: Fate) {
        let mut known = self.fate.lock().unwrap();
        if *known == Fate::Running {
            *known = fate;
        }
    }
}

/// One life of the engine's process.
#[derive(Debug)]
pub struct Life {
    /// Name of its NIXL agent.
    pub agent: String,
    /// Its `engine_id`.
    pub engine_id: String,
    started: f64,
    pool: Mutex<Pool>,
    agents: Mutex<HashMap<String, String>>,
    running: AtomicI64,
    transferred_tokens: AtomicU64,
    dead: CancellationToken,
}

struct Running {
    life: Arc<Life>,
    _side_channel: Option<Listener>,
}

/// A fake engine. Clones are the same engine.
#[derive(Clone)]
pub struct FakeVllm {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    http: SocketAddr,
    side_channel: SocketAddr,
    wire: Wire,
    lives: AtomicU64,
    running: Mutex<Option<Running>>,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    http_mode: Mutex<Http>,
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

impl FakeVllm {
    /// An engine that is not running yet, at ports of its own.
    pub fn new(config: Config, wire: &Wire) -> Self {
        Self::at(config, wire, crate::ports::free(), crate::ports::free())
    }

    /// The same at these ports.
    pub fn at(config: Config, wire: &Wire, http: SocketAddr, side_channel: SocketAddr) -> Self {
        let inner = Inner {
            config,
            http,
            side_channel,
            wire: wire.clone(),
            lives: AtomicU64::new(0),
            running: Mutex::default(),
            rules: Mutex::default(),
            seen: Mutex::default(),
            http_mode: Mutex::default(),
            side_mode: Arc::default(),
            listener_killed: Arc::default(),
            died_of: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
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
        let life = Arc::new(Life {
            agent: uuid(),
            engine_id: inner
                .config
                .engine_id
                .clone()
                .unwrap_or_else(|| format!("engine-{}-{number}", inner.side_channel.port())),
            started: 1_796_006_723.0 + f64::from(rand::rng().random::<u16>()),
            pool: Mutex::new(Pool::new(BLOCKS)),
            agents: Mutex::default(),
            running: AtomicI64::new(0),
            transferred_tokens: AtomicU64::new(0),
            dead: CancellationToken::new(),
        });
        let listen = || {
            Listener::start(
                inner.side_channel.port(),
                side_channel::handshake(&inner.config, &life),
                Arc::clone(&inner.side_mode),
                Arc::clone(&inner.listener_killed),
            )
        };
        let side_channel = match inner.config.role {
            None => None,
            Some(_) => {
                Some(until_some("the side channel's port to be free", || async { listen() }).await)
            }
        };
        inner.wire.plug_in(inner.side_channel.port(), &life);
        let listener = until_some("the engine's port to be free", || async {
            tokio::net::TcpListener::bind(inner.http).await.ok()
        })
        .await;
        tokio::spawn(server::serve(self.clone(), Arc::clone(&life), listener));
        *inner.running.lock().unwrap() = Some(Running {
            life,
            _side_channel: side_channel,
        });
    }

    /// Ends the process as a SIGKILL does: every connection is reset, every port is free.
    pub async fn kill(&self) {
        let running = self.inner.running.lock().unwrap().take();
        if let Some(running) = running {
            running.life.dead.cancel();
            self.inner.wire.unplug(self.inner.side_channel.port());
            // Waits for a thread to end.
            tokio::task::spawn_blocking(move || drop(running))
                .await
                .unwrap();
        }
    }

    /// The engine dies of a request. Its ports are free a moment later.
    fn die(&self, life: &Life, of: &str) {
        life.dead.cancel();
        self.inner.died_of.lock().unwrap().push(of.to_owned());
        let engine = self.clone();
        tokio::spawn(async move { engine.kill().await });
    }

    /// Ends the process if it runs, and starts it again with nothing in its memory.
    pub async fn restart(&self, id: EngineId) {
        self.kill().await;
        self.boot(id).await;
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.inner.running.lock().unwrap().is_some()
    }

    fn life(&self) -> Arc<Life> {
        let running = self.inner.running.lock().unwrap();
        Arc::clone(&running.as_ref().expect("the engine runs").life)
    }

    /// Adds a rule; the first one that fits a request and is not used up counts.
    pub fn script(&self, rule: Rule) {
        self.inner.rules.lock().unwrap().push(rule);
    }

    /// Forgets all rules.
    pub fn behave(&self) {
        self.inner.rules.lock().unwrap().clear();
        *self.inner.http_mode.lock().unwrap() = Http::Normal;
        *self.inner.side_mode.lock().unwrap() = SideChannel::Normal;
    }

    /// How the HTTP server behaves from now on.
    pub fn http_mode(&self, mode: Http) {
        *self.inner.http_mode.lock().unwrap() = mode;
    }

    /// What the side channel says from now on.
    pub fn side_channel_mode(&self, mode: SideChannel) {
        *self.inner.side_mode.lock().unwrap() = mode;
    }

    fn rule_for(&self, leg: Leg) -> Option<Rule> {
        let mut rules = self.inner.rules.lock().unwrap();
        let rule = rules
            .iter_mut()
            .find(|rule| rule.times > 0 && rule.leg.is_none_or(|wanted| wanted == leg))?;
        rule.times -= 1;
        Some(rule.clone())
    }

    /// Requests that reached it so far, in all lives.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
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
            .map_or(0, |running| running.life.running.load(Ordering::Relaxed))
    }

    /// Requests whose KV it holds for decode.
    pub fn holds(&self) -> usize {
        self.life().pool.lock().unwrap().held()
    }

    /// Prompt tokens whose KV it has pulled from other engines, in this life.
    pub fn transferred_tokens(&self) -> u64 {
        self.life().transferred_tokens.load(Ordering::Relaxed)
    }

    /// Overwrites the KV it holds for decode without telling anybody.
    pub fn overwrite_held(&self) {
        self.life().pool.lock().unwrap().overwrite_held();
    }

    /// Name of its NIXL agent.
    pub fn agent(&self) -> String {
        self.life().agent.clone()
    }

    /// Its `engine_id`.
    pub fn engine_id(&self) -> String {
        self.life().engine_id.clone()
    }

    /// Bodies that ended it, in words. Baton never sends one.
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

    /// Flags that tell a sidecar about this engine.
    pub fn sidecar_flags(&self) -> Vec<String> {
        let mut flags = vec!["--engine".to_owned(), format!("http://{}", self.inner.http)];
        if let Some(role) = self.inner.config.role {
            let lease = self.inner.config.lease.as_secs_f64();
            flags.extend([
                "--kv-transfer-config".to_owned(),
                format!(
                    r#"{{"kv_connector":"NixlConnector","kv_role":"{role}","kv_connector_extra_config":{{"kv_lease_duration":{lease}}}}}"#
                ),
                "--side-channel".to_owned(),
                self.inner.side_channel.to_string(),
            ]);
        }
        if let Some(key) = self.inner.config.api_key {
            flags.extend(["--engine-api-key".to_owned(), key.to_owned()]);
        }
        flags
    }
}

fn uuid() -> String {
    let hex = format!("{:032x}", rand::rng().random::<u128>());
    let cuts = [0, 8, 12, 16, 20, 32];
    let parts: Vec<&str> = cuts.windows(2).map(|cut| &hex[cut[0]..cut[1]]).collect();
    parts.join("-")
}

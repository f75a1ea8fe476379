//! The process of an emulated engine, whatever its wire: its lives and how they end, what goes wrong in it on purpose, and
//! what reached it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use baton_transfer::Agent;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Mortal, Pending, Stats};
use super::pool::BlockHash;
use super::publisher::{Faults, Publisher, Told};
use super::script::{Http, Leg, Rule};
use super::seen::{Fate, Seen};
use super::server::{self, Api, Request};
use super::texts::{Text, Texts};
use super::tokenizer::Tokenizer;
use crate::wait::until_some;

/// From the death of the scheduler to the end of the process; the real ones take up to a second.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// One rank of one life.
pub(super) struct Rank {
    pub(super) core: Arc<Core>,
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) agent: Agent,
    /// All that was ever in its cache, if that is to be remembered.
    pub(super) texts: Option<Arc<Mutex<Texts>>>,
}

/// One life of the process.
pub struct Life {
    /// What tells it from the lives before, where the engine tells that at all.
    pub(super) engine_id: String,
    /// Seconds since 1970.
    pub(super) started: f64,
    pub(super) ranks: Vec<Rank>,
    pub(super) running: AtomicI64,
    pub(super) death: Arc<Death>,
    /// What ends with it, beside its connections: each frees a port before it is done.
    doors: Mutex<Vec<Pending<()>>>,
}

/// How a life ends.
pub(super) struct Death {
    process: Weak<Process>,
    /// The scheduler is dead: requests get their last words.
    pub(super) dying: CancellationToken,
    /// The process is gone.
    pub(super) dead: CancellationToken,
}

impl Death {
    /// That of a life that is about to begin.
    pub(super) fn of(process: &Arc<Process>) -> Arc<Self> {
        Arc::new(Self {
            process: Arc::downgrade(process),
            dying: CancellationToken::new(),
            dead: CancellationToken::new(),
        })
    }
}

impl Mortal for Death {
    fn die(&self, of: &str) {
        let Some(process) = self.process.upgrade() else {
            return;
        };
        if !self.dying.is_cancelled() {
            process.died_of.lock().unwrap().push(of.to_owned());
            self.dying.cancel();
        }
        let dead = self.dead.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LAST_WORDS).await;
            dead.cancel();
            process.kill().await;
        });
    }
}

impl Life {
    pub(super) fn new(
        engine_id: String,
        started: f64,
        ranks: Vec<Rank>,
        death: Arc<Death>,
        doors: Vec<Pending<()>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine_id,
            started,
            ranks,
            running: AtomicI64::new(0),
            death,
            doors: Mutex::new(doors),
        })
    }

    /// The rank that works on the fewest requests.
    pub(super) fn least_busy(&self) -> usize {
        let busy = |rank: &usize| {
            let stats = self.ranks[*rank].core.stats();
            stats.running + stats.waiting + stats.fetching
        };
        match self.ranks.len() {
            1 => 0,
            ranks => (0..ranks).min_by_key(busy).unwrap_or(0),
        }
    }
}

/// What an emulated engine is beside its wire.
pub struct Process {
    http: SocketAddr,
    pub(super) tokenizer: Arc<Tokenizer>,
    remember: bool,
    running: Mutex<Option<Arc<Life>>>,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    pub(super) http_mode: Mutex<Http>,
    /// Whether it looks all the time whether clients are still there.
    watches: watch::Sender<bool>,
    died_of: Mutex<Vec<String>>,
}

impl Process {
    /// One that is not running yet, which will serve HTTP at this address.
    pub(super) fn new(http: SocketAddr, tokenizer: Tokenizer, remember: bool) -> Arc<Self> {
        Arc::new(Self {
            http,
            tokenizer: Arc::new(tokenizer),
            remember,
            running: Mutex::default(),
            rules: Mutex::default(),
            seen: Mutex::default(),
            http_mode: Mutex::default(),
            watches: watch::Sender::default(),
            died_of: Mutex::default(),
        })
    }

    /// Begins a life: its HTTP server answers from now on.
    pub(super) async fn live(&self, api: impl Api, life: Arc<Life>) {
        let listener = until_some("the engine's port to be free", || async {
            tokio::net::TcpListener::bind(self.http).await.ok()
        })
        .await;
        tokio::spawn(server::serve(api, Arc::clone(&life), listener));
        *self.running.lock().unwrap() = Some(life);
    }

    /// It looks all the time whether clients are still there, or again as often as its engine does; vLLM always does.
    pub fn watch_connections(&self, watches: bool) {
        self.watches.send_replace(watches);
    }

    /// Resolves while it looks all the time.
    pub(super) async fn watches(&self) {
        let mut watches = self.watches.subscribe();
        // Fails only if the sender is gone, which is part of `self`.
        let _ = watches.wait_for(|watches| *watches).await;
    }

    /// Ends the process as a SIGKILL does: every connection is reset, every port is free.
    pub async fn kill(&self) {
        let running = self.running.lock().unwrap().take();
        let Some(life) = running else {
            return;
        };
        life.death.dying.cancel();
        life.death.dead.cancel();
        let doors = std::mem::take(&mut *life.doors.lock().unwrap());
        for door in doors {
            door.await;
        }
        for rank in &life.ranks {
            rank.agent.end();
            if let Some(publisher) = &rank.publisher {
                publisher.stop().await;
            }
        }
    }

    /// Waits until the process dies of a request, and says of what.
    pub async fn died(&self) -> String {
        let dead = self.life().death.dead.clone();
        dead.cancelled().await;
        self.died_of().pop().unwrap_or_default()
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.running.lock().unwrap().is_some()
    }

    /// The current life.
    pub(super) fn life(&self) -> Arc<Life> {
        self.running_life().expect("the engine runs")
    }

    /// The same, if there is one.
    pub(super) fn running_life(&self) -> Option<Arc<Life>> {
        self.running.lock().unwrap().clone()
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
        let running = self.running_life();
        let ranks = running.iter().flat_map(|life| &life.ranks);
        ranks.for_each(what);
    }

    /// Adds a rule; the first one that fits a request and is not used up counts.
    pub fn script(&self, rule: Rule) {
        self.rules.lock().unwrap().push(rule);
    }

    /// Forgets all rules and goes on if it was frozen.
    pub fn behave(&self) {
        self.rules.lock().unwrap().clear();
        *self.http_mode.lock().unwrap() = Http::Normal;
        self.freeze(false);
    }

    /// How the HTTP server behaves from now on.
    pub fn http_mode(&self, mode: Http) {
        *self.http_mode.lock().unwrap() = mode;
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
        let publisher = self.publisher(rank)?;
        Some(publisher.faults())
    }

    fn publisher(&self, rank: usize) -> Option<Arc<Publisher>> {
        self.life().ranks[rank].publisher.clone()
    }

    /// Where the events of a rank can be had, as vLLM's `GET /kv_event_sources` tells it.
    pub fn event_source(&self, rank: usize) -> Option<Value> {
        let publisher = self.publisher(rank)?;
        Some(publisher.sources())
    }

    /// Number of the next message of a rank's events; `None` if it publishes none.
    pub fn next_event(&self, rank: usize) -> Option<u64> {
        let publisher = self.publisher(rank)?;
        Some(publisher.next_sequence())
    }

    /// Tells of blocks that the engine does not hold: for who measures what is made of that. `None` if the rank publishes no
    /// events.
    pub(super) fn tell(&self, rank: usize, write: impl FnOnce(Told) -> Vec<u8>) -> Option<()> {
        self.publisher(rank)?.publish(write);
        Some(())
    }

    pub(super) fn rule_for(&self, leg: Leg, body: &str) -> Option<Rule> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| rule.fits(leg, body))?;
        rule.times -= 1;
        Some(rule.clone())
    }

    /// What is in all blocks that a rank could find now. Only an engine that is told to remember knows.
    pub fn cached(&self, rank: usize) -> Vec<Text> {
        self.texts(rank, Core::cached)
    }

    /// The same of what it could bring back from the host's memory.
    pub fn copied(&self, rank: usize) -> Vec<Text> {
        self.texts(rank, Core::copied)
    }

    fn texts(&self, rank: usize, of: impl Fn(&Core) -> Vec<BlockHash>) -> Vec<Text> {
        let life = self.life();
        let rank = &life.ranks[rank];
        let texts = rank.texts.as_ref().expect("the engine remembers");
        let texts = texts.lock().unwrap();
        of(&rank.core).iter().map(|hash| texts.of(hash)).collect()
    }

    /// Forgets all cached blocks of all ranks.
    pub fn reset_prefix_cache(&self) {
        self.cores(Core::reset_prefix_cache);
    }

    /// Remembers a request, if that is to be done.
    pub(super) fn note(&self, leg: Leg, request: &Request) -> Seen {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let seen = Seen::new(leg, &request.path, &request.headers, body);
        if self.remember {
            self.seen.lock().unwrap().push(seen.clone());
        }
        seen
    }

    /// Whether it remembers what reached it.
    pub(super) fn remembers(&self) -> bool {
        self.remember
    }

    /// Requests that reached it so far, in all lives.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The same, which are then forgotten.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
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
        let running = self.running_life();
        running.map_or(0, |life| life.running.load(Ordering::Relaxed))
    }

    /// Requests whose KV it holds for decode.
    pub fn holds(&self) -> usize {
        self.cores(Core::holds).into_iter().sum()
    }

    /// The same by id, with how many blocks each has.
    pub fn held(&self) -> Vec<(String, usize)> {
        self.cores(Core::held).into_iter().flatten().collect()
    }

    /// Prompt tokens whose KV came to it from other engines, in this life.
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

    /// Name of its first rank's agent.
    pub fn agent(&self) -> String {
        self.life().ranks[0].agent.name().to_owned()
    }

    /// What ended its scheduler, in words. Baton never sends such a body.
    pub fn died_of(&self) -> Vec<String> {
        self.died_of.lock().unwrap().clone()
    }

    /// Where its HTTP server is.
    pub fn address(&self) -> SocketAddr {
        self.http
    }
}

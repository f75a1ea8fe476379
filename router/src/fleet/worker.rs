//! One worker, as its sidecar describes it and as this router has experienced it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use baton_index::Index;
use baton_planner::{self as planner, Limits, Place};
use baton_proto::compat::Compatibility;
use baton_proto::load::{LoadReport, Stall};
use baton_proto::watch::{Hello, SidecarState};
use baton_proto::worker::{Role, Tier, WorkerInfo};
use baton_proto::{Epoch, Incarnation, WorkerId};
use http::Uri;
use serde::Serialize;
use tokio::sync::watch;

use super::breaker::Breaker;
use crate::queue::Queue;
use crate::view::{Expected, KnownRank, KvView, Trust};

/// What a worker can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Registered; its engine is not there yet.
    Joining,
    /// Takes work.
    Ready,
    /// Its sidecar or its engine does not answer.
    Suspect,
    /// Takes no new work.
    Draining,
}

impl WorkerState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Joining, Self::Ready, Self::Suspect, Self::Draining];

    /// The word in metrics and in `/fleet`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Draining => "draining",
        }
    }
}

impl From<SidecarState> for WorkerState {
    fn from(state: SidecarState) -> Self {
        match state {
            SidecarState::Starting => Self::Joining,
            SidecarState::Ready => Self::Ready,
            SidecarState::EngineDown | SidecarState::Unknown => Self::Suspect,
            SidecarState::Draining | SidecarState::ServingKv | SidecarState::Drained => {
                Self::Draining
            }
        }
    }
}

/// What a sidecar has told.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) state: WorkerState,
    pub(super) hello: Option<Hello>,
    pub(super) load: LoadReport,
    pub(super) ranks: Arc<[KnownRank]>,
    /// Where it stands.
    pub(super) place: Arc<Place>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            state: WorkerState::Joining,
            hello: None,
            load: LoadReport::default(),
            ranks: Arc::default(),
            place: Arc::default(),
        }
    }
}

impl Told {
    pub(super) fn info(&self) -> Option<&WorkerInfo> {
        self.hello.as_ref()?.info.as_deref()
    }

    /// The index says of each of its ranks what that holds.
    fn is_exactly_known(&self) -> bool {
        let ranks = self.info().map_or(1, |info| info.ranks.max(1));
        let all = u32::try_from(self.ranks.len()).is_ok_and(|known| known >= ranks);
        all && self.ranks.iter().all(|rank| rank.certain)
    }
}

/// One worker. Shared by its session, the snapshots and the requests it serves.
pub struct Worker {
    id: WorkerId,
    epoch: Epoch,
    address: Uri,
    told: ArcSwap<Told>,
    breaker: Breaker,
    /// How often it stalled or fell silent, for requests that wait for it.
    stalls: watch::Sender<u32>,
    quarantine_told: AtomicU64,
    view: Mutex<KvView>,
    expected: Arc<Expected>,
    texts: Arc<Expected>,
    books: Arc<planner::Worker>,
    trust: Trust,
    queue: Arc<Queue>,
}

impl Worker {
    pub(super) fn new(
        id: WorkerId,
        epoch: Epoch,
        address: Uri,
        index: Arc<Index>,
        queue: Arc<Queue>,
        approximate_ttl: Duration,
    ) -> Self {
        Self {
            id,
            epoch,
            address,
            told: ArcSwap::default(),
            breaker: Breaker::default(),
            stalls: watch::Sender::new(0),
            quarantine_told: AtomicU64::new(0),
            view: Mutex::new(KvView::new(index)),
            expected: Expected::new(approximate_ttl),
            texts: Expected::new(approximate_ttl),
            books: planner::Worker::new(),
            trust: Trust::default(),
            queue,
        }
    }

    /// Its name.
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// Which life of its sidecar. Another one is another worker here.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// URL of a path on its sidecar.
    pub fn url(&self, path: &str) -> String {
        let authority = self
            .address
            .authority()
            .map_or("", |authority| authority.as_str());
        format!("http://{authority}{path}")
    }

    pub(super) fn told(&self) -> Arc<Told> {
        self.told.load_full()
    }

    pub(super) fn tell(&self, told: Told) {
        self.told.store(Arc::new(told));
    }

    /// Which life of its engine.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.told().hello.as_ref()?.incarnation.clone()
    }

    /// Number of the last quarantine that its sidecar was told of.
    pub(super) fn quarantine_told(&self) -> u64 {
        self.quarantine_told.load(Ordering::Relaxed)
    }

    /// Its engine began anew.
    pub(super) fn forget_quarantine(&self) {
        self.quarantine_told.store(0, Ordering::Relaxed);
    }

    pub(crate) fn tell_quarantine(&self, number: u64) {
        self.quarantine_told.fetch_max(number, Ordering::Relaxed);
    }

    /// Its sidecar puts a salt of its own into each request: what it holds is of no use, and what it stores has names that
    /// nobody here can tell.
    pub fn is_quarantined(&self) -> bool {
        self.quarantine_told() > 0
    }

    /// What its KV cache holds, by its watch stream.
    pub fn view(&self) -> MutexGuard<'_, KvView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It left: its places in the index are given back, though requests may keep the worker itself for long.
    pub(super) fn leave(&self) {
        self.view().leave();
        let mut told = self.told().as_ref().clone();
        told.ranks = Arc::default();
        told.state = WorkerState::Suspect;
        self.tell(told);
    }

    /// What it should hold though no event says so.
    pub fn expected(&self) -> &Arc<Expected> {
        &self.expected
    }

    /// Pieces of texts that it should hold, of prompts whose tokens were not known.
    pub fn texts(&self) -> &Arc<Expected> {
        &self.texts
    }

    /// The index says of each of its ranks what that holds.
    pub fn is_exactly_known(&self) -> bool {
        self.told().is_exactly_known()
    }

    /// What it has to do and how fast it is, as far as this router knows.
    pub fn books(&self) -> &Arc<planner::Worker> {
        &self.books
    }

    /// It may have room for somebody by now.
    pub fn may_have_room(&self) {
        self.queue.room_in(self.books.number());
    }

    /// Whether what is predicted of it comes true.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// It failed: it is avoided for a while, longer each time, if there are others.
    pub fn failed(&self) {
        self.breaker.failed();
    }

    /// It served: earlier failures are forgotten.
    pub fn served(&self) {
        self.breaker.served();
    }

    /// Whether it is to be asked, and by how many.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Its sidecar said whether its engine makes progress.
    pub(super) fn heard_of_stalls(&self, before: Option<&Stall>, now: Option<&Stall>) {
        let times = |stall: Option<&Stall>| stall.map_or(0, |stall| stall.times);
        if times(now) > times(before) {
            self.breaker.stalled();
            self.stalls.send_modify(|stalls| *stalls += 1);
        } else if now.is_none() && before.is_some() {
            self.breaker.moves_again();
        }
    }

    /// Its sidecar says nothing any more: whatever it was given may wait for ever.
    pub(super) fn fell_silent(&self) {
        self.stalls.send_modify(|stalls| *stalls += 1);
    }

    /// Whether it still stands still or says nothing, as far as is known.
    pub fn is_doubtful(&self) -> bool {
        self.breaker.is_stalled() || self.told().state != WorkerState::Ready
    }

    /// How often it has stalled or fallen silent, and every change of it.
    pub fn stalls(&self) -> watch::Receiver<u32> {
        self.stalls.subscribe()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({} at {})", self.id, self.address)
    }
}

/// A worker at one moment.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// The worker itself, to reserve and to call.
    pub worker: Arc<Worker>,
    told: Arc<Told>,
}

impl WorkerView {
    pub(super) fn of(worker: &Arc<Worker>) -> Self {
        Self {
            worker: Arc::clone(worker),
            told: worker.told(),
        }
    }

    /// Its name.
    pub fn id(&self) -> &WorkerId {
        &self.worker.id
    }

    /// How it stands. One that makes no progress is suspect, though all its probes be green.
    pub fn state(&self) -> WorkerState {
        match self.told.state {
            WorkerState::Ready if self.worker.breaker.is_stalled() => WorkerState::Suspect,
            state => state,
        }
    }

    /// Whether it may be given work at all. One that is suspect only because it makes no progress may, for want of others; one
    /// that is merely observed may not.
    pub fn takes_work(&self) -> bool {
        self.told.state == WorkerState::Ready && self.role().serves()
    }

    /// Whether it may be given work and nothing speaks against it.
    pub fn is_well(&self) -> bool {
        self.state() == WorkerState::Ready && self.role().serves()
    }

    /// Why it is suspect, if so.
    pub fn reason(&self) -> Option<String> {
        match (self.told.state, &self.told.load.stall) {
            (WorkerState::Suspect, _) => Some("it does not answer".to_owned()),
            (WorkerState::Ready, Some(stall)) => Some(stall.value.to_string()),
            (WorkerState::Ready, None) if self.worker.breaker.is_stalled() => {
                Some("its engine made no progress; one request tries it".to_owned())
            }
            _ => None,
        }
    }

    /// What it is, once its engine was seen.
    pub fn info(&self) -> Option<&WorkerInfo> {
        self.told.info()
    }

    /// Ranks whose blocks are in the index.
    pub fn known_ranks(&self) -> &[KnownRank] {
        &self.told.ranks
    }

    /// The index says of each of its ranks what that holds.
    pub fn is_exactly_known(&self) -> bool {
        self.told.is_exactly_known()
    }

    /// Which life of its engine.
    pub fn incarnation(&self) -> Option<&Incarnation> {
        self.told.hello.as_ref()?.incarnation.as_ref()
    }

    /// What its sidecar reports of its load.
    pub fn load(&self) -> &LoadReport {
        &self.told.load
    }

    /// Where it stands.
    pub fn place(&self) -> &Place {
        &self.told.place
    }

    /// How big it is, all ranks together.
    pub fn limits(&self) -> Limits {
        let Some(info) = self.info() else {
            return Limits::default();
        };
        let ranks = u64::from(info.ranks.max(1));
        let device = info.capacity.iter().find(|tier| tier.tier == Tier::Device);
        let blocks = device.map(|tier| tier.blocks.saturating_mul(ranks));
        let sequences = info.max_sequences.map(|most| u64::from(most) * ranks);
        Limits {
            kv_tokens: blocks
                .zip(info.block_size)
                .map(|(blocks, size)| blocks.saturating_mul(size.into())),
            sequences: sequences.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            context: info.context_length.map(u64::from),
            bytes_per_token: info.kv_bytes_per_token,
        }
    }

    /// Which legs it may serve.
    pub fn role(&self) -> Role {
        self.info().map_or(Role::Unknown, |info| info.role)
    }

    /// It serves no request alone.
    pub fn legs_only(&self) -> bool {
        self.info().is_some_and(|info| info.legs_only)
    }

    /// What another engine must share to exchange KV with it.
    pub fn compatibility(&self) -> Option<&Compatibility> {
        self.info()?.compatibility.as_ref()
    }

    /// Whether it serves a model or adapter of this name.
    pub fn serves(&self, model: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == model);
        self.info()
            .is_some_and(|info| named(&info.models) || named(&info.lora_adapters))
    }
}

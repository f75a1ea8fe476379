//! `cargo xtask bench faults`: thousands of split requests while everything fails, and what must never come of it.
//!
//! A fleet in one process ([`stand`]): routers, and prefill and decode workers around emulated engines of one kind or several
//! ([`subject`]), whose tokens are made of the KV that they hold, so that the right answer of every request is known without asking anybody ([`ask`]). A
//! seeded [`schedule`] of faults befalls it ([`lane`]) while clients ask ([`visit`]) and judge every byte they get
//! ([`verdict`]). Between phases all faults are lifted, and after some seconds of quiet nothing may be left over
//! ([`audit`]).
//!
//! Whether any of that would be seen is tried too: with one protection switched off, by a man in the middle ([`liar`]) or
//! by an engine that is deaf or forgetful, the same schedule must raise the counter of that protection ([`Sabotage`]).

pub mod ask;
pub mod audit;
pub mod lane;
pub mod liar;
pub mod schedule;
pub mod seat;
pub mod stand;
pub mod subject;
pub mod tally;
pub mod verdict;
pub mod visit;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::ask::Ask;
use self::schedule::Phase;
pub use self::stand::Sabotage;
use self::stand::Stand;
pub use self::subject::Engines;
use self::tally::Tally;
use crate::bench::figure::Figure;

/// Clients that ask at a time.
const CLIENTS: usize = 32;

/// Requests between two quiet points.
const PHASE: usize = 2500;

/// Among so many requests there are some that are lied about.
const LIES_AMONG: usize = 200;

/// How much is asked, and which faults befall.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Whom they befall.
    pub engines: Engines,
    /// Requests.
    pub requests: usize,
    /// Of requests and faults.
    pub seed: u64,
    /// What is switched off.
    pub sabotage: Option<Sabotage>,
}

impl Extent {
    /// The schedule: the faults of each phase, and how many requests it has.
    pub fn phases(&self) -> Vec<(usize, Phase)> {
        let whole = self.requests.div_ceil(PHASE);
        (0..whole)
            .map(|number| {
                let requests = PHASE.min(self.requests - number * PHASE);
                let faults = schedule::phase(self.engines, self.seed, number, requests);
                (requests, faults)
            })
            .collect()
    }
}

impl Sabotage {
    /// The counter that must rise without this protection.
    pub fn raises(self, tally: &Tally) -> usize {
        match self {
            Self::Fence => tally.double_use,
            Self::Settle | Self::Rooms | Self::Verdict => tally.wrong,
            Self::Release => tally.leaked_blocks,
            Self::Gap => tally.view_wrong,
        }
    }

    /// Whether what it raises is counted at quiet points, and not by clients and engines.
    fn is_seen_in_quiet(self) -> bool {
        matches!(self, Self::Release | Self::Gap)
    }

    /// Its word in names.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::Settle => "settle",
            Self::Release => "release",
            Self::Gap => "gap",
            Self::Rooms => "rooms",
            Self::Verdict => "verdict",
        }
    }
}

/// Runs it all and counts. `progress` is told how many requests have ended.
pub fn run(extent: &Extent, progress: impl Fn(usize) + Send + Sync + 'static) -> Result<Tally> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run_all(*extent, Arc::new(progress)))
}

async fn run_all(extent: Extent, progress: Arc<dyn Fn(usize) + Send + Sync>) -> Result<Tally> {
    let stand = Arc::new(Stand::start(extent.engines, extent.sabotage).await);
    let tally = Arc::new(Mutex::new(Tally::default()));
    audit::all_are_back(&stand, &mut Tally::default()).await;
    let mut first = 0;
    for (requests, faults) in extent.phases() {
        let load = Load {
            stand: Arc::clone(&stand),
            seed: extent.seed,
            numbers: first..first + requests,
            tally: Arc::clone(&tally),
            progress: Arc::clone(&progress),
        };
        let faults = run_phase(load, faults).await;
        first += requests;
        let mut audited = std::mem::take(&mut *tally.lock().unwrap());
        audited.faults += faults;
        if extent.sabotage.is_none_or(Sabotage::is_seen_in_quiet) {
            audit::quiet_point(&stand, &mut audited).await;
        } else {
            audit::forget_requests(&stand, &mut audited);
        }
        *tally.lock().unwrap() = audited;
    }
    let lies = stand.lies();
    ensure!(
        lies > 0 || extent.requests < LIES_AMONG,
        "nobody lied: the man in the middle stands in the wrong place"
    );
    let stand = Arc::into_inner(stand);
    stand.expect("all clients have ended").stop().await;
    let panics = crate::panics::seen();
    ensure!(panics.is_empty(), "something panicked: {panics:?}");
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    Ok(tally)
}

/// Some of the run's requests.
struct Load {
    stand: Arc<Stand>,
    seed: u64,
    numbers: std::ops::Range<usize>,
    tally: Arc<Mutex<Tally>>,
    progress: Arc<dyn Fn(usize) + Send + Sync>,
}

/// Clients ask while faults happen; how many faults there were.
async fn run_phase(load: Load, phase: Phase) -> usize {
    let begun = watch::channel(0).0;
    let due = watch::channel(phase.each_ref().map(|(_, faults)| lane::first_due(faults))).0;
    let over = CancellationToken::new();
    let mut lanes = JoinSet::new();
    for (number, (lane, faults)) in phase.into_iter().enumerate() {
        let (stand, begun, over) = (Arc::clone(&load.stand), begun.subscribe(), over.clone());
        let due = due.clone();
        let next_due = move |next| due.send_modify(|due| due[number] = next);
        lanes.spawn(async move { lane::run(&stand, lane, &faults, begun, next_due, &over).await });
    }
    let turn = Arc::new(Turn {
        next: AtomicUsize::new(0),
        begun,
        due,
    });
    let load = Arc::new(load);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(ask_on(Arc::clone(&load), Arc::clone(&turn)));
    }
    clients.join_all().await;
    over.cancel();
    lanes.join_all().await.into_iter().sum()
}

/// Whose turn it is to ask. Requests wait for faults as faults wait for requests, so that a fast machine meets as many.
struct Turn {
    /// The phase's next request.
    next: AtomicUsize,
    /// How many of them have begun.
    begun: watch::Sender<usize>,
    /// Of each lane, after how many its next fault begins.
    due: watch::Sender<[usize; 4]>,
}

impl Turn {
    /// The next request, of so many, once all faults before it have begun.
    async fn take(&self, requests: usize) -> Option<usize> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= requests {
            return None;
        }
        let mut due = self.due.subscribe();
        let faults_are_there = |due: &[usize; 4]| due.iter().all(|due| number <= *due);
        let waited = due.wait_for(faults_are_there).await;
        waited.expect("this end of it is ours");
        self.begun.send_modify(|begun| *begun += 1);
        Some(number)
    }
}

/// One client after the other.
async fn ask_on(load: Arc<Load>, turn: Arc<Turn>) {
    while let Some(number) = turn.take(load.numbers.len()).await {
        let number = load.numbers.start + number;
        let ask = Ask::new(load.seed, number);
        let visit = visit::visit(&ask, &load.stand.routers).await;
        load.tally.lock().unwrap().visited(number, visit);
        (load.progress)(number);
    }
}

/// What a sabotaged run shows: how often its counter rose.
pub fn figure_of(engines: Engines, sabotage: Sabotage, tally: &Tally) -> Figure {
    let name = format!("seen_without_{}", sabotage.word());
    tally::count(engines, &name, sabotage.raises(tally))
}

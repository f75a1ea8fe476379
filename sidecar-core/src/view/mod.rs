//! The view of the engine's KV cache that routers are told: the mirror and its journal, changed together.
//!
//! An engine's dialect follows its event stream and says what it hears through a [`Feed`]. Each life of the engine has a
//! feed of its own; what comes through an older one is not heard. Watchers read the journal, or a snapshot when they lag
//! behind it ([`crate::watch`]). All of it is one lock, held for as long as one message takes, or one copy of the view.

mod journal;
pub mod metrics;
mod reports;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::frame;
use baton_proto::hash::SequenceHash;
use baton_proto::watch::{ViewDigest, WatchFrame};
use baton_proto::worker::{Tier, WorkerInfo};
use bytes::Bytes;
use tokio::sync::watch;

use crate::mirror::event::BlockEvent;
use crate::mirror::oddity::{Doubts, Oddity};
use crate::mirror::order::{Arrival, Stamp};
use crate::mirror::rank::RankView;
use crate::mirror::{Applied, Mirror, TIERS};
use crate::record::Recorder;

use journal::Journal;
use metrics::ViewMetrics;
pub use reports::ReportGuard;
use reports::Reports;

/// Blocks of one part of a snapshot: half a megabyte.
const PART: usize = 65_536;

/// The view of an engine's KV cache.
#[derive(Debug)]
pub struct KvView {
    inner: Mutex<Inner>,
    news: watch::Sender<u64>,
    metrics: ViewMetrics,
    recorder: Option<Recorder>,
}

#[derive(Debug)]
struct Inner {
    mirror: Mirror,
    journal: Journal,
    reports: Reports,
    /// Which feed is heard.
    life: u64,
}

/// Part of the journal.
#[derive(Debug)]
pub struct More {
    /// Number of the last entry of it.
    pub last: u64,
    /// Its entries, encoded.
    pub entries: Vec<Bytes>,
    /// If there are no more entries: what the view is after the last one.
    pub digests: Option<Vec<ViewDigest>>,
}

/// How a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankStatus {
    /// Data-parallel rank.
    pub rank: u32,
    /// Why its view is a subset of what it holds; empty while it is exact.
    pub doubts: Doubts,
    /// Whether blocks are in it without all that come before them.
    pub broken: bool,
    /// Whether the view is not told, for nothing comes through from the engine.
    pub deaf: bool,
    /// Number of the engine's last message that was applied.
    pub last_seq: Option<u64>,
}

/// A copy of the view, in parts that are encoded as they are sent.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the last journal entry it includes.
    pub seq: u64,
    parts: std::vec::IntoIter<Part>,
}

#[derive(Debug)]
struct Part {
    rank: u32,
    state: ViewState,
    tier: Tier,
    blocks: Vec<SequenceHash>,
}

impl Iterator for Snapshot {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let part = self.parts.next()?;
        Some(frame::encode(&WatchFrame::Snapshot {
            seq: self.seq,
            rank: part.rank,
            state: part.state,
            tier: part.tier,
            blocks: Blocks(part.blocks),
            last: self.parts.as_slice().is_empty(),
        }))
    }
}

impl KvView {
    /// A view of an engine that was not seen yet: nothing is watched.
    pub fn new(metrics: ViewMetrics, recorder: Option<Recorder>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                mirror: Mirror::new("", None),
                journal: Journal::default(),
                reports: Reports::default(),
                life: 0,
            }),
            news: watch::Sender::new(0),
            metrics,
            recorder,
        })
    }

    /// The engine began a life, or is seen for the first time. Its ranks hold nothing that is known of, and only what
    /// comes through the feed of this life is heard from here on.
    pub fn begin(self: &Arc<Self>, info: &WorkerInfo) -> Feed {
        let mut inner = self.lock();
        let before: Vec<(u32, ViewState)> = inner
            .mirror
            .ranks()
            .map(|(rank, view)| (rank, view.state()))
            .collect();
        for (rank, state) in before {
            inner.journal.push(rank, KvEvent::Cleared { tier: None });
            if state.broken {
                inner.journal.push(rank, KvEvent::Whole);
            }
            if !state.uncertain {
                inner.journal.push(rank, KvEvent::Uncertain);
            }
        }
        let model = info.models.first().map_or("", String::as_str);
        inner.mirror = Mirror::new(model, info.block_size);
        inner.life += 1;
        let life = inner.life;
        self.tell(inner);
        Feed {
            view: Arc::clone(self),
            life,
        }
    }

    /// Whether some rank holds blocks that nobody knows of and that the engine would tell again if asked to.
    pub fn wants_reports(&self) -> bool {
        let inner = self.lock();
        let mut ranks = inner.mirror.ranks();
        ranks.any(|(_, view)| view.doubts().can_be_learnt_away())
    }

    /// Whether some rank that was heard may hold blocks that nobody knows of.
    pub fn is_uncertain(&self) -> bool {
        let inner = self.lock();
        let mut ranks = inner.mirror.ranks();
        ranks.any(|(_, view)| view.doubts().iter().any(|doubt| doubt != Oddity::Unheard))
    }

    /// A request is about to be sent that has the engine announce blocks that it reuses. Until some time after the guard
    /// is dropped, what it announces may be such reports.
    pub fn ask_for_reports(self: &Arc<Self>) -> ReportGuard {
        self.lock().reports.begin();
        ReportGuard::new(Arc::clone(self))
    }

    fn reports_ended(&self) {
        self.lock().reports.end();
    }

    /// Number of the last journal entry, and every new one.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// About `most` bytes of journal after an entry; nothing if the journal no longer has what follows that.
    pub fn after(&self, seq: u64, most: usize) -> Option<More> {
        let inner = self.lock();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for entry in inner.journal.after(seq)? {
            if bytes >= most {
                break;
            }
            bytes += entry.len();
            entries.push(entry.clone());
        }
        let last = seq + entries.len() as u64;
        let digests = (last == inner.journal.last()).then(|| inner.mirror.digests());
        Some(More {
            last,
            entries,
            digests,
        })
    }

    /// A copy of all there is.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.lock();
        let mut parts = Vec::new();
        for (rank, view) in inner.mirror.ranks() {
            let part = |tier, blocks| Part {
                rank,
                state: view.state(),
                tier,
                blocks,
            };
            let first = parts.len();
            for tier in TIERS {
                let blocks: Vec<SequenceHash> = view.blocks(tier).collect();
                parts.extend(blocks.chunks(PART).map(|some| part(tier, some.to_vec())));
            }
            if parts.len() == first {
                parts.push(part(Tier::Device, Vec::new()));
            }
        }
        Snapshot {
            seq: inner.journal.last(),
            parts: parts.into_iter(),
        }
    }

    /// What is counted.
    pub fn metrics(&self) -> &ViewMetrics {
        &self.metrics
    }

    /// Where what the engine says is written down, if it is.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// How every watched rank stands.
    pub fn ranks(&self) -> Vec<RankStatus> {
        let inner = self.lock();
        let ranks = inner.mirror.ranks();
        let status = |(rank, view): (u32, &RankView)| RankStatus {
            rank,
            doubts: view.doubts(),
            broken: view.state().broken,
            deaf: view.is_deaf(),
            last_seq: view.last_seq(),
        };
        ranks.map(status).collect()
    }

    fn tell(&self, inner: MutexGuard<'_, Inner>) {
        let last = inner.journal.last();
        self.metrics.show(&inner.mirror);
        drop(inner);
        self.news.send_if_modified(|told| {
            let news = *told < last;
            *told = last.max(*told);
            news
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is heard of one life of an engine.
#[derive(Debug, Clone)]
pub struct Feed {
    view: Arc<KvView>,
    life: u64,
}

impl Feed {
    /// Where what the engine says is written down, if it is.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.view.recorder()
    }

    /// What is counted of the stream.
    pub fn metrics(&self) -> &ViewMetrics {
        self.view.metrics()
    }

    /// Awaits the messages of a rank.
    pub fn watch(&self, rank: u32) {
        self.change(rank, |_| Vec::new());
    }

    /// One message of a rank.
    pub fn apply<'a>(
        &self,
        rank: u32,
        stamp: Stamp,
        events: impl IntoIterator<Item = BlockEvent<'a>>,
    ) -> Option<Arrival> {
        self.message(rank, |mirror| mirror.apply(rank, stamp, events))
    }

    /// One message of a rank that could not be decoded.
    pub fn undecoded(&self, rank: u32, stamp: Stamp) -> Option<Arrival> {
        self.message(rank, |mirror| mirror.undecoded(rank, stamp))
    }

    /// The engine says that it has published nothing of a rank yet.
    pub fn silent(&self, rank: u32) {
        self.change(rank, |mirror| mirror.silent(rank));
    }

    /// Messages of a rank were lost, nobody knows how many.
    pub fn lose(&self, rank: u32) {
        self.change(rank, |mirror| mirror.lose(rank));
    }

    /// Nothing comes through from the engine: what a rank holds is not told until it is heard again.
    pub fn deafen(&self, rank: u32) {
        self.change(rank, |mirror| mirror.deafen(rank));
    }

    /// A rank is heard, and has told again what was missed.
    pub fn hear(&self, rank: u32) {
        self.change(rank, |mirror| mirror.hear(rank));
    }

    /// The rank's messages show that its engine began a new life.
    pub fn restart(&self, rank: u32) {
        self.change(rank, |mirror| mirror.restart(rank));
    }

    fn message(&self, rank: u32, message: impl FnOnce(&mut Mirror) -> Applied) -> Option<Arrival> {
        let mut arrival = None;
        self.change(rank, |mirror| {
            let applied = message(mirror);
            arrival = Some(applied.arrival);
            applied.changes
        });
        arrival
    }

    fn change(&self, rank: u32, change: impl FnOnce(&mut Mirror) -> Vec<KvEvent>) {
        let mut inner = self.view.lock();
        if inner.life != self.life {
            return;
        }
        let mut changes = Vec::new();
        if inner.mirror.rank(rank).is_none() {
            changes = inner.mirror.watch(rank);
        }
        let reports = inner.reports.are_expected();
        inner.mirror.expect_reports(rank, reports);
        changes.extend(change(&mut inner.mirror));
        for change in changes {
            inner.journal.push(rank, change);
        }
        self.view.tell(inner);
    }
}

//! One worker's view, kept by the frames of its watch stream.
//!
//! A view is right or it is given up: whatever does not follow from what came before is a reason ([`Resync`]) to forget
//! all and to ask for a snapshot. A lost connection is none: what was known stays, as something that was true, until the
//! journal goes on where it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_index::Index;
use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::watch::WatchFrame;
use baton_proto::worker::Tier;
use serde_json::{Value, json};

use super::bounds::Bounds;
use super::heartbeat;
use super::rank::{RankKv, TIERS};
use super::resync::Resync;
use super::target::HeldTarget;

/// How far the view has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    /// Nothing was told: no rank is watched, so the snapshot has no part. The journal begins with what comes first.
    Nothing,
    /// In the midst of the snapshot of this journal entry, which has spoken of these ranks.
    Snapshot { seq: u64, ranks: BTreeSet<u32> },
    /// At this journal entry.
    Entry(u64),
}

/// A rank that something is known of, for whoever plans.
#[derive(Debug, Clone)]
pub struct KnownRank {
    /// Its number.
    pub rank: u32,
    /// Its place in the index.
    pub target: Arc<HeldTarget>,
    /// What the index says of it is what it holds. Otherwise it is a part of that, or was true once.
    pub certain: bool,
}

/// One worker's view.
#[derive(Debug)]
pub struct KvView {
    index: Arc<Index>,
    ranks: BTreeMap<u32, RankKv>,
    at: At,
    /// The stream goes on from `at`.
    followed: bool,
    bounds: Bounds,
    resyncs: u64,
}

impl KvView {
    /// The view of a worker that nothing was heard of.
    pub fn new(index: Arc<Index>) -> Self {
        Self {
            index,
            ranks: BTreeMap::new(),
            at: At::Nothing,
            followed: false,
            bounds: Bounds::default(),
            resyncs: 0,
        }
    }

    /// The worker said how much fits in.
    pub fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The journal entry behind which a new stream may go on.
    pub fn resume_after(&self) -> Option<u64> {
        match self.at {
            At::Entry(seq) => Some(seq),
            At::Nothing | At::Snapshot { .. } => None,
        }
    }

    /// Takes a frame. Whether [`KvView::known`] may say something else now. After an error the view must be given up.
    pub fn take(&mut self, frame: WatchFrame) -> Result<bool, Resync> {
        match frame {
            WatchFrame::Snapshot {
                seq,
                rank,
                state,
                tier,
                blocks,
                last,
            } => {
                let first = self.chunk(seq, rank, state, tier, &blocks)?;
                if last {
                    self.complete();
                }
                Ok(first || last)
            }
            WatchFrame::Event { seq, rank, event } => self.entry(seq, rank, &event),
            WatchFrame::Heartbeat { seq, digests } => match self.at {
                // What is not known yet cannot differ.
                At::Snapshot { .. } => Ok(false),
                At::Entry(at) if seq > at => Err(Resync::Ahead),
                At::Entry(at) if seq < at => Err(Resync::Order),
                At::Nothing if !digests.is_empty() => Err(Resync::Ahead),
                At::Nothing | At::Entry(_) => {
                    self.begin_journal();
                    heartbeat::check(&digests, &self.ranks)?;
                    self.at = At::Entry(seq);
                    Ok(!std::mem::replace(&mut self.followed, true))
                }
            },
            WatchFrame::Hello(_)
            | WatchFrame::State { .. }
            | WatchFrame::Load(_)
            | WatchFrame::Unknown => Ok(false),
        }
    }

    /// Part of a snapshot. Whether it is the first of its rank.
    fn chunk(
        &mut self,
        seq: u64,
        rank: u32,
        state: ViewState,
        tier: Tier,
        blocks: &Blocks,
    ) -> Result<bool, Resync> {
        match &self.at {
            At::Snapshot { seq: of, .. } if *of != seq => return Err(Resync::Snapshot),
            At::Entry(at) if seq < *at => return Err(Resync::Order),
            At::Snapshot { .. } => {}
            At::Nothing | At::Entry(_) => {
                self.forget();
                let ranks = BTreeSet::new();
                self.at = At::Snapshot { seq, ranks };
            }
        }
        let first = match &mut self.at {
            At::Snapshot { ranks, .. } => ranks.insert(rank),
            At::Nothing | At::Entry(_) => false,
        };
        let bounds = self.bounds;
        self.room(blocks)?;
        let kv = self.rank(rank)?;
        if first {
            kv.begin();
        }
        kv.describe(state);
        kv.store(tier, blocks, &bounds)?;
        Ok(first)
    }

    /// The snapshot is complete. Ranks that it did not speak of are gone.
    fn complete(&mut self) {
        if let At::Snapshot { seq, ranks } = std::mem::replace(&mut self.at, At::Nothing) {
            self.ranks.retain(|rank, _| ranks.contains(rank));
            self.ranks.values_mut().for_each(RankKv::complete);
            self.at = At::Entry(seq);
            self.followed = true;
        }
    }

    fn entry(&mut self, seq: u64, rank: u32, event: &KvEvent) -> Result<bool, Resync> {
        match self.at {
            At::Nothing => {}
            At::Snapshot { .. } => return Err(Resync::Snapshot),
            At::Entry(at) if at.checked_add(1) == Some(seq) => {}
            At::Entry(_) => return Err(Resync::Order),
        }
        self.begin_journal();
        let bounds = self.bounds;
        let unheard = !self.ranks.contains_key(&rank);
        if let KvEvent::Stored { blocks, .. } = event {
            self.room(blocks)?;
        }
        let kv = self.rank(rank)?;
        match event {
            KvEvent::Stored { blocks, tier } => kv.store(*tier, blocks, &bounds)?,
            KvEvent::Removed { blocks, tier } => kv.remove(*tier, blocks)?,
            KvEvent::Cleared { tier } => kv.clear(*tier),
            KvEvent::Uncertain => kv.set_uncertain(true),
            KvEvent::Certain => kv.set_uncertain(false),
            KvEvent::Broken => kv.set_broken(true),
            KvEvent::Whole => kv.set_broken(false),
            KvEvent::Unknown => return Err(Resync::UnknownEvent),
        }
        self.at = At::Entry(seq);
        let went_on = !std::mem::replace(&mut self.followed, true);
        let certainty = matches!(event, KvEvent::Uncertain | KvEvent::Certain);
        Ok(unheard || went_on || certainty)
    }

    /// The journal goes on. If that was without a snapshot, nobody watches the ranks that were known before.
    fn begin_journal(&mut self) {
        if self.at == At::Nothing {
            self.ranks.clear();
        }
    }

    fn rank(&mut self, rank: u32) -> Result<&mut RankKv, Resync> {
        if !self.ranks.contains_key(&rank) && self.ranks.len() >= self.bounds.ranks {
            return Err(Resync::Bounds);
        }
        let index = &self.index;
        let kv = self.ranks.entry(rank);
        Ok(kv.or_insert_with(|| RankKv::new(index)))
    }

    fn room(&self, more: &Blocks) -> Result<(), Resync> {
        let held: u64 = self.ranks.values().map(RankKv::blocks).sum();
        let after = held + more.0.len() as u64;
        (after <= self.bounds.worker)
            .then_some(())
            .ok_or(Resync::Bounds)
    }

    /// The stream ended. What is known was true; half a snapshot is nothing.
    pub fn lost(&mut self) {
        self.followed = false;
        if matches!(self.at, At::Snapshot { .. }) {
            self.forget();
        }
    }

    /// The view is wrong: it is forgotten, and the next stream begins with a snapshot.
    pub fn give_up(&mut self) {
        self.resyncs += 1;
        self.forget();
    }

    fn forget(&mut self) {
        self.at = At::Nothing;
        self.followed = false;
        self.ranks.values_mut().for_each(RankKv::begin);
    }

    /// The worker left: its places in the index are given back.
    pub fn leave(&mut self) {
        self.at = At::Nothing;
        self.followed = false;
        // Whoever still plans with these ranks must not be the one who has to empty them.
        self.ranks.values_mut().for_each(|kv| kv.clear(None));
        self.ranks.clear();
    }

    /// Whether the stream goes on from a complete view.
    fn is_live(&self) -> bool {
        self.followed && matches!(self.at, At::Entry(_))
    }

    /// What whoever plans may know.
    pub fn known(&self) -> Arc<[KnownRank]> {
        let live = self.is_live();
        let known = |(rank, kv): (&u32, &RankKv)| KnownRank {
            rank: *rank,
            target: Arc::clone(kv.target()),
            certain: live && !kv.uncertain(),
        };
        self.ranks.iter().map(known).collect()
    }

    /// Blocks of all ranks, by tier.
    pub fn blocks(&self) -> [u64; TIERS.len()] {
        let mut blocks = [0; TIERS.len()];
        for kv in self.ranks.values() {
            for (sum, sums) in blocks.iter_mut().zip(kv.sums()) {
                *sum += sums.blocks;
            }
        }
        blocks
    }

    /// What operators see.
    pub fn shown(&self) -> Value {
        let live = self.is_live();
        let rank = |(rank, kv): (&u32, &RankKv)| {
            let mut shown = kv.shown();
            shown.insert("rank".to_owned(), (*rank).into());
            shown.insert("certain".to_owned(), (live && !kv.uncertain()).into());
            Value::Object(shown)
        };
        let ranks: Vec<Value> = self.ranks.iter().map(rank).collect();
        json!({"seq": self.resume_after(), "resyncs": self.resyncs, "ranks": ranks})
    }
}

#[cfg(test)]
mod tests;

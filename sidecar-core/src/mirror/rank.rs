//! One rank's blocks, kept by its events.

use baton_proto::event::{KvEvent, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::watch::ViewDigest;
use baton_proto::worker::Tier;

use super::changes::Changes;
use super::event::{BlockEvent, EngineHash, Removed};
use super::holdings::{Holdings, Known, TIERS, Taken, slot};
use super::lineage::Lineage;
use super::oddity::{Doubts, Oddity, Tally};
use super::order::{Arrival, Order, Stamp};

mod deaf;
mod store;

/// What one data-parallel rank holds.
#[derive(Debug, Default)]
pub struct RankView {
    order: Order,
    holdings: Holdings,
    lineage: Lineage,
    doubts: Doubts,
    /// What watchers were last told of the view.
    told: ViewState,
    /// Nothing comes through from the engine: what is known stays, and is not told.
    deaf: bool,
    /// Blocks that the engine reuses may be announced, though they are no further copies.
    reports: bool,
    tally: Tally<Oddity>,
    block_size: Option<u32>,
    /// The cache that decides about prefixes: the first one seen that keeps whole ones.
    group: Option<u32>,
}

impl RankView {
    pub(super) fn new(block_size: Option<u32>) -> Self {
        Self {
            block_size,
            ..Self::default()
        }
    }

    /// Nothing was heard of the rank yet.
    pub(super) fn unheard(&mut self) {
        self.order = Order::default();
        self.tally.add(Oddity::Unheard);
        self.doubts.add(Oddity::Unheard);
    }

    /// The engine says that it has published nothing yet.
    pub(super) fn silent(&mut self) {
        self.doubts.remove(Oddity::Unheard);
    }

    /// Messages were lost, nobody knows how many.
    pub(super) fn lose(&mut self, changes: &mut Changes) {
        self.tally.add(Oddity::Gap);
        self.lose_all(Oddity::Gap, changes);
    }

    /// The engine began a new life.
    pub(super) fn restart(&mut self, changes: &mut Changes) {
        self.tally.add(Oddity::Restart);
        self.clear(None, changes);
        self.unheard();
    }

    pub(super) fn expect_reports(&mut self, reports: bool) {
        self.reports = reports;
    }

    /// Takes note of a message's place in the stream, before its events.
    pub(super) fn arrive(&mut self, stamp: Stamp, changes: &mut Changes) -> Arrival {
        let arrival = self.order.judge(stamp);
        match arrival {
            Arrival::Next => {}
            Arrival::Older => self.tally.add(Oddity::Older),
            Arrival::First => self.begin(stamp.seq),
            Arrival::Restart => {
                self.tally.add(Oddity::Restart);
                self.clear(None, changes);
                self.begin(stamp.seq);
            }
            Arrival::Gap { missing } => {
                self.tally.add_many(Oddity::Gap, missing);
                self.lose_all(Oddity::Gap, changes);
            }
        }
        if arrival.is_news() {
            self.order.advance(stamp);
        }
        arrival
    }

    /// An engine's life begins with number 0; whoever hears another first has missed something.
    fn begin(&mut self, first: u64) {
        self.doubts.remove(Oddity::Unheard);
        if first > 0 {
            self.tally.add(Oddity::JoinedLate);
            self.doubts.add(Oddity::JoinedLate);
        }
    }

    pub(super) fn apply(&mut self, model: &str, event: &BlockEvent<'_>, changes: &mut Changes) {
        match event {
            BlockEvent::Stored(stored) => self.store(model, stored, changes),
            BlockEvent::Removed(removed) => self.remove(removed, changes),
            BlockEvent::Cleared { tier } => self.clear(*tier, changes),
            BlockEvent::Unreadable => self.miss(Oddity::Unreadable, changes),
        }
    }

    /// Something that was announced cannot be read.
    pub(super) fn miss(&mut self, reason: Oddity, changes: &mut Changes) {
        self.tally.add(reason);
        self.lose_all(reason, changes);
    }

    /// What is lost may have been the removal of any block. A view that went on would hold blocks that are gone, for ever,
    /// since nobody announces their removal again; so it begins anew.
    fn lose_all(&mut self, reason: Oddity, changes: &mut Changes) {
        if self.holdings.fade() {
            changes.push(KvEvent::Cleared { tier: None });
        }
        self.lineage.clear(None);
        self.doubts.add(reason);
    }

    /// Says what has become of the view as a whole. What is no longer so is said before the changes that make it so, and
    /// what is so again after them: the words are true at every moment for whoever follows.
    fn say_state(&mut self, changes: &mut Changes) {
        let now = self.state();
        let said = std::mem::replace(&mut self.told, now);
        match (said.uncertain, now.uncertain) {
            (false, true) => changes.push_front(KvEvent::Uncertain),
            (true, false) => changes.push(KvEvent::Certain),
            _ => {}
        }
        match (said.broken, now.broken) {
            (false, true) => changes.push_front(KvEvent::Broken),
            (true, false) => changes.push(KvEvent::Whole),
            _ => {}
        }
    }

    /// What can be said of the view as a whole.
    pub fn state(&self) -> ViewState {
        if self.deaf {
            return deaf::STATE;
        }
        ViewState {
            uncertain: !self.doubts.is_empty(),
            broken: !self.lineage.is_whole(),
        }
    }

    /// Blocks that should be in the view and are not.
    fn lose_blocks(&mut self, reason: Oddity, blocks: usize, tier: Tier) {
        self.count(reason, blocks);
        if tier == Tier::Device {
            self.doubts.add(reason);
        }
    }

    fn count(&mut self, reason: Oddity, blocks: usize) {
        self.tally
            .add_many(reason, u64::try_from(blocks).unwrap_or(u64::MAX));
    }

    fn remove(&mut self, removed: &Removed<'_>, changes: &mut Changes) {
        if self.group.is_some_and(|group| group != removed.group) {
            return self.count(Oddity::OtherGroup, removed.hashes.len());
        }
        for (place, hash) in removed.hashes.iter().enumerate() {
            self.holdings.fetch_ahead(removed.hashes, place);
            match self.holdings.take(*hash, removed.tier) {
                Taken::Absent => self.tally.add(Oddity::UnknownRemoval),
                Taken::Unseen => {}
                Taken::Gone(sequence) => self.gone(sequence, removed.tier, changes),
            }
        }
    }

    fn gone(&mut self, sequence: SequenceHash, tier: Tier, changes: &mut Changes) {
        if let Some(slot) = slot(tier) {
            self.lineage.leave(sequence, slot);
        }
        changes.removed(sequence, tier);
    }

    /// Of a rank that holds nothing, everything is known.
    fn clear(&mut self, tier: Option<Tier>, changes: &mut Changes) {
        if self.holdings.clear(tier) {
            changes.push(KvEvent::Cleared { tier });
        }
        if tier.is_none_or(|tier| slot(tier).is_some()) {
            self.lineage.clear(tier.and_then(slot));
        }
        if tier.is_none_or(|tier| tier == Tier::Device) {
            self.doubts = Doubts::default();
            if self.reports {
                self.tally.add(Oddity::Reports);
                self.doubts.add(Oddity::Reports);
            }
        }
    }

    /// Number of the last message that was applied.
    pub fn last_seq(&self) -> Option<u64> {
        self.order.last()
    }

    /// Why the view is a subset of what the rank holds; empty while it is exact.
    pub fn doubts(&self) -> Doubts {
        self.doubts
    }

    /// What was counted.
    pub fn tally(&self) -> &Tally<Oddity> {
        &self.tally
    }

    /// Tokens of each block, once known.
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// How many blocks a tier holds.
    pub fn held(&self, tier: Tier) -> u64 {
        if self.deaf {
            return 0;
        }
        self.holdings.view(tier).blocks
    }

    /// The blocks of a tier, in no order.
    pub fn blocks(&self, tier: Tier) -> impl Iterator<Item = SequenceHash> + '_ {
        let told = (!self.deaf).then(|| self.holdings.blocks(tier));
        told.into_iter().flatten()
    }

    /// How many of the engine's names are kept of blocks that were in the view before something was lost.
    pub fn unconfirmed(&self) -> usize {
        self.holdings.faded()
    }

    /// The block that the engine calls so, if that is known.
    pub fn sequence_of(&self, hash: EngineHash) -> Option<SequenceHash> {
        match self.holdings.find(hash)? {
            Known::Placed(sequence) => Some(sequence),
            Known::Outside => None,
        }
    }

    /// Size and digest of every tier that holds something, as `rank`'s.
    pub fn digests(&self, rank: u32) -> impl Iterator<Item = ViewDigest> + '_ {
        let tiers = TIERS
            .into_iter()
            .map(|tier| (tier, self.holdings.view(tier)));
        let held = tiers.filter(|(_, view)| view.blocks > 0 && !self.deaf);
        held.map(move |(tier, view)| ViewDigest {
            rank,
            tier,
            digest: view.digest.value(),
            blocks: view.blocks,
        })
    }
}

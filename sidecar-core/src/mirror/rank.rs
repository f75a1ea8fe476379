//! One rank's blocks, kept by its events.

use baton_proto::event::{KvEvent, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::watch::ViewDigest;
use baton_proto::worker::Tier;

use super::changes::Changes;
use super::event::{BlockEvent, Content, EngineHash, Removed, Stored, Told};
use super::holdings::{Holdings, Known, Put, TIERS, Taken, slot};
use super::lineage::{Lineage, Parent};
use super::oddity::{Doubts, Oddity, Tally};
use super::order::{Arrival, Order, Stamp};

mod deaf;

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

/// Where a chain of blocks stands before its next block.
#[derive(Debug, Clone, Copy)]
enum Link {
    /// Behind this root, at the beginning of a sequence.
    Root(SequenceHash),
    /// Behind this block.
    Placed(SequenceHash),
    /// Behind something that is kept out of the view, and so is all that follows.
    Outside,
    /// Nobody knows.
    Lost,
}

impl Link {
    fn parent(self) -> Parent {
        match self {
            Self::Root(_) => Parent::Root,
            Self::Placed(block) => Parent::Block(block),
            Self::Outside | Self::Lost => Parent::Untold,
        }
    }
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

    fn store(&mut self, model: &str, stored: &Stored<'_>, changes: &mut Changes) {
        let followed = match (&stored.content, self.group) {
            (_, Some(group)) => group == stored.group,
            (Content::Told(_), None) if stored.whole_prefix => {
                self.group = Some(stored.group);
                true
            }
            (_, None) => stored.whole_prefix,
        };
        if !followed {
            return self.count(Oddity::OtherGroup, stored.hashes.len());
        }
        match &stored.content {
            Content::Named => self.store_named(stored, changes),
            Content::Told(told) => self.store_told(model, stored, told, changes),
        }
    }

    /// Blocks that moved to a tier whose keeper knows no tokens: the names lead to them as long as another tier has them.
    fn store_named(&mut self, stored: &Stored<'_>, changes: &mut Changes) {
        for hash in stored.hashes {
            match self.holdings.find(*hash) {
                Some(known) => self.put(*hash, known, Parent::Untold, stored.tier, changes),
                None => self.lose_blocks(Oddity::UntoldTokens, 1, stored.tier),
            }
        }
    }

    fn store_told(
        &mut self,
        model: &str,
        stored: &Stored<'_>,
        told: &Told<'_>,
        changes: &mut Changes,
    ) {
        let blocks = stored.hashes.len();
        if *self.block_size.get_or_insert(told.block_size) != told.block_size {
            self.count(Oddity::PartialBlock, blocks);
            for hash in stored.hashes {
                self.put(*hash, Known::Outside, Parent::Untold, stored.tier, changes);
            }
            return;
        }
        let size = usize::try_from(told.block_size).unwrap_or(usize::MAX);
        if size == 0 || blocks.checked_mul(size) != Some(told.tokens.len()) {
            return self.lose_blocks(Oddity::TokenCount, blocks, stored.tier);
        }
        let mut link = self.link(model, told);
        let each = stored.hashes.iter().zip(told.tokens.chunks_exact(size));
        for (place, (hash, tokens)) in each.enumerate() {
            let next = match link {
                Link::Root(_) | Link::Placed(_) if place >= told.understood => Link::Outside,
                Link::Root(before) | Link::Placed(before) => {
                    Link::Placed(told.child(before, place, tokens))
                }
                Link::Outside | Link::Lost => link,
            };
            link = self.store_block(*hash, next, link.parent(), stored.tier, changes);
        }
    }

    /// What comes before the first of some blocks.
    fn link(&self, model: &str, told: &Told<'_>) -> Link {
        let Some(parent) = told.parent else {
            let root = told.namespace(model).root();
            return root.map_or(Link::Outside, Link::Root);
        };
        match self.holdings.find(parent) {
            Some(Known::Placed(sequence)) => Link::Placed(sequence),
            Some(Known::Outside) => Link::Outside,
            None => Link::Lost,
        }
    }

    /// Stores a block that is expected to be `computed`; what its successor stands behind.
    fn store_block(
        &mut self,
        hash: EngineHash,
        computed: Link,
        parent: Parent,
        tier: Tier,
        changes: &mut Changes,
    ) -> Link {
        let mut known = self.holdings.find(hash);
        if let (Some(Known::Placed(known_as)), Link::Placed(computed)) = (known, computed)
            && known_as != computed
        {
            self.expel(hash, changes);
            self.lose_blocks(Oddity::Conflict, 1, tier);
            known = self.holdings.find(hash);
        }
        let place = match (known, computed) {
            (Some(known), _) => known,
            (None, Link::Placed(sequence)) => Known::Placed(sequence),
            (None, Link::Outside) => Known::Outside,
            (None, Link::Root(_) | Link::Lost) => {
                self.lose_blocks(Oddity::UnknownParent, 1, tier);
                return Link::Lost;
            }
        };
        if known.is_none() && place == Known::Outside {
            self.tally.add(Oddity::UnknownNamespace);
        }
        self.put(hash, place, parent, tier, changes);
        match place {
            Known::Placed(sequence) => Link::Placed(sequence),
            Known::Outside => Link::Outside,
        }
    }

    /// One more copy of a block.
    ///
    /// vLLM 0.32.0 does not share equal blocks: two requests that compute the same block at the same time cache it twice
    /// under one hash (`BlockHashToBlockMap` keeps both), and so does a request whose whole prompt was cached, for it
    /// computes the last block again. Each of the copies is announced by a `BlockStored` of its own and, when it is
    /// evicted, by a `BlockRemoved` of its own: `_remove_cached_block_hashes` announces a hash whenever one of its copies
    /// goes, and the others can still be hit. So copies are counted, and the block is gone with the last.
    ///
    /// But a request with `kv_cache_report_mode: full` announces the blocks that it reuses, too, in the same words and
    /// with no removal to follow. Taken for a copy, such a block would stay in the view for ever. The sidecar asks for
    /// these reports while a rank is uncertain, and then a block that is there already is not counted again: the view of
    /// an uncertain rank may lack a block, but has none that is not there.
    fn put(
        &mut self,
        hash: EngineHash,
        place: Known,
        parent: Parent,
        tier: Tier,
        changes: &mut Changes,
    ) {
        let copies = self.doubts.is_empty();
        let put = match place {
            Known::Placed(sequence) => self.holdings.put(hash, sequence, tier, copies),
            Known::Outside => self.holdings.put_outside(hash, tier, copies),
        };
        match put {
            Put::New(sequence) => {
                if let Some(slot) = slot(tier) {
                    self.lineage.enter(sequence, slot, parent);
                }
                changes.stored(sequence, tier);
            }
            Put::Again => self.tally.add(Oddity::SecondCopy),
            Put::Unseen => {}
        }
    }

    fn expel(&mut self, hash: EngineHash, changes: &mut Changes) {
        for (tier, sequence) in self.holdings.expel(hash) {
            self.gone(sequence, tier, changes);
        }
    }

    fn remove(&mut self, removed: &Removed<'_>, changes: &mut Changes) {
        if self.group.is_some_and(|group| group != removed.group) {
            return self.count(Oddity::OtherGroup, removed.hashes.len());
        }
        for hash in removed.hashes {
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

//! Blocks that come in: where they belong, if that can be known.

use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;

use super::super::event::{Content, EngineHash, Stored, Told};
use super::super::holdings::{Known, Put, slot};
use super::super::lineage::Parent;
use super::super::oddity::Oddity;
use super::{Changes, RankView};

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
    pub(super) fn store(&mut self, model: &str, stored: &Stored<'_>, changes: &mut Changes) {
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
            self.holdings.fetch_ahead(stored.hashes, place);
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
        if let Link::Placed(sequence) = computed
            && !self.lineage.has(sequence)
            && self.holdings.put_new(hash, sequence, tier)
        {
            self.came(sequence, parent, tier, changes);
            return computed;
        }
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
            Known::Placed(sequence) => {
                let held = self.lineage.has(sequence);
                self.holdings.put(hash, sequence, held, tier, copies)
            }
            Known::Outside => self.holdings.put_outside(hash, tier, copies),
        };
        match put {
            Put::New(sequence) => self.came(sequence, parent, tier, changes),
            Put::Again => self.tally.add(Oddity::SecondCopy),
            Put::Unseen => {}
        }
    }

    fn came(&mut self, sequence: SequenceHash, parent: Parent, tier: Tier, changes: &mut Changes) {
        if let Some(slot) = slot(tier) {
            self.lineage.enter(sequence, slot, parent);
        }
        changes.stored(sequence, tier);
    }

    fn expel(&mut self, hash: EngineHash, changes: &mut Changes) {
        for (tier, sequence) in self.holdings.expel(hash) {
            self.gone(sequence, tier, changes);
        }
    }
}

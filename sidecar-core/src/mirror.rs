//! The authoritative copy of what an engine's KV cache holds, per data-parallel rank and tier.
//!
//! Fed with what the engine announces ([`event`]), it says what changed in terms of sequence hashes ([`KvEvent`]). It does
//! no I/O, knows no engine's format, and never guesses: a block whose place in a sequence is not certain stays out of the
//! view, is counted by reason ([`oddity`]), and makes the rank uncertain if it should have been in. When something the
//! engine said is lost, the view begins anew, for the loss may have been the removal of any block. So the view is always a
//! subset of what the rank holds, and an exact one while the rank is certain.
//!
//! Three names of a block meet here. The engine's *hash* is a key and nothing else; several may lead to one block (another
//! seed after a reload, another adapter under an old name), and the engine may hold several copies under one. The
//! *sequence hash* is computed here from tokens, parent and namespace. Both are counted ([`holdings`]): a block leaves the
//! view with its last copy under its last name.

use std::collections::BTreeMap;

use baton_proto::event::KvEvent;
use baton_proto::watch::ViewDigest;

use changes::Changes;
use event::BlockEvent;
use oddity::Oddity;
use order::{Arrival, Stamp};
use rank::RankView;

mod changes;
pub mod event;
pub mod holdings;
mod lineage;
pub mod oddity;
pub mod order;
mod plain;
pub mod rank;
mod salt;
#[cfg(test)]
mod tests;

pub use holdings::TIERS;

/// What an engine's ranks hold.
#[derive(Debug)]
pub struct Mirror {
    model: String,
    block_size: Option<u32>,
    ranks: BTreeMap<u32, RankView>,
}

/// What a message did to the view of its rank.
#[derive(Debug, PartialEq)]
pub struct Applied {
    /// How the message followed the one before. An older one did nothing.
    pub arrival: Arrival,
    /// The changes, in order. Only real ones: no block is stored that was there, or removed that was not.
    pub changes: Vec<KvEvent>,
}

impl Mirror {
    /// A mirror of an engine that serves `model`. Without a block size, each rank's first block tells it.
    pub fn new(model: impl Into<String>, block_size: Option<u32>) -> Self {
        Self {
            model: model.into(),
            block_size,
            ranks: BTreeMap::new(),
        }
    }

    /// Applies one message of a rank, unless it is an older one.
    pub fn apply<'a>(
        &mut self,
        rank: u32,
        stamp: Stamp,
        events: impl IntoIterator<Item = BlockEvent<'a>>,
    ) -> Applied {
        self.message(rank, stamp, |model, rank, changes| {
            for event in events {
                rank.apply(model, &event, changes);
            }
        })
    }

    /// Takes note of a message of a rank that could not be decoded.
    pub fn undecoded(&mut self, rank: u32, stamp: Stamp) -> Applied {
        self.message(rank, stamp, |_, rank, changes| {
            rank.miss(Oddity::Undecoded, changes);
        })
    }

    fn message(
        &mut self,
        rank: u32,
        stamp: Stamp,
        content: impl FnOnce(&str, &mut RankView, &mut Changes),
    ) -> Applied {
        let (arrival, changes) = self.change(rank, |model, view, changes| {
            let arrival = view.arrive(stamp, changes);
            if arrival.is_news() {
                content(model, view, changes);
            }
            arrival
        });
        Applied { arrival, changes }
    }

    /// Awaits the messages of a rank. Until the first of them its view is uncertain.
    pub fn watch(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, _| view.unheard()).1
    }

    /// The engine says that it has published nothing of a rank yet: what was heard of it, nothing, is all there is.
    pub fn silent(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, _| view.silent()).1
    }

    /// Messages of a rank were lost that its numbers do not tell of.
    pub fn lose(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, changes| view.lose(changes)).1
    }

    /// Nothing comes through from a rank: what it holds is not told until it is heard again.
    pub fn deafen(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, changes| view.deafen(changes)).1
    }

    /// A rank is heard, and has told again what was missed.
    pub fn hear(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, changes| view.hear(changes)).1
    }

    /// The engine began a new life: the rank holds nothing, and its messages are numbered anew.
    pub fn restart(&mut self, rank: u32) -> Vec<KvEvent> {
        self.change(rank, |_, view, changes| view.restart(changes))
            .1
    }

    /// Whether blocks that the engine reuses may be announced like new ones now. While they may, a cache that is cleared
    /// does not become certain: see [`RankView::state`].
    pub fn expect_reports(&mut self, rank: u32, reports: bool) {
        if let Some(view) = self.ranks.get_mut(&rank) {
            view.expect_reports(reports);
        }
    }

    fn change<Done>(
        &mut self,
        rank: u32,
        change: impl FnOnce(&str, &mut RankView, &mut Changes) -> Done,
    ) -> (Done, Vec<KvEvent>) {
        let view = self
            .ranks
            .entry(rank)
            .or_insert_with(|| RankView::new(self.block_size));
        let was_deaf = view.is_deaf();
        let mut changes = Changes::default();
        let done = change(&self.model, view, &mut changes);
        (done, view.tell(was_deaf, changes))
    }

    /// All ranks that were heard of.
    pub fn ranks(&self) -> impl Iterator<Item = (u32, &RankView)> {
        self.ranks.iter().map(|(rank, view)| (*rank, view))
    }

    /// One rank.
    pub fn rank(&self, rank: u32) -> Option<&RankView> {
        self.ranks.get(&rank)
    }

    /// Digests of all ranks and of all tiers that hold something.
    pub fn digests(&self) -> Vec<ViewDigest> {
        let ranks = self.ranks.iter();
        ranks.flat_map(|(rank, view)| view.digests(*rank)).collect()
    }
}

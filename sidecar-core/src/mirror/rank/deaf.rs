//! A rank that nothing comes through from.
//!
//! Its blocks may be evicted unheard, so a view that was told on would soon hold some that are gone, and call itself exact.
//! Yet all of it may be made good: an engine keeps its last messages. So the view is taken back and the rank called
//! uncertain, while the mirror stays as it is; when the engine is heard again, and has told what was missed, everything is
//! told anew. What is lost for good is another matter ([`RankView::lose`]).

use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::hash::SequenceHash;

use super::{Changes, RankView, TIERS};

/// What watchers are told meanwhile: no block at all.
pub(super) const STATE: ViewState = ViewState {
    uncertain: true,
    broken: false,
};

impl RankView {
    /// Whether nothing comes through from the engine.
    pub fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// Nothing comes through any more.
    pub(in super::super) fn deafen(&mut self, changes: &mut Changes) {
        if !self.deaf && TIERS.iter().any(|tier| self.held(*tier) > 0) {
            changes.push(KvEvent::Cleared { tier: None });
        }
        self.deaf = true;
    }

    /// The engine is heard, and nothing that can be had is missing.
    pub(in super::super) fn hear(&mut self, changes: &mut Changes) {
        if !std::mem::take(&mut self.deaf) {
            return;
        }
        for tier in TIERS {
            let blocks: Vec<SequenceHash> = self.blocks(tier).collect();
            if !blocks.is_empty() {
                let blocks = Blocks(blocks);
                changes.push(KvEvent::Stored { blocks, tier });
            }
        }
    }

    /// What watchers are told of some changes: nothing, of a rank that stays deaf.
    pub(in super::super) fn tell(&mut self, was_deaf: bool, mut changes: Changes) -> Vec<KvEvent> {
        if was_deaf && self.deaf {
            return Vec::new();
        }
        self.say_state(&mut changes);
        changes.finish()
    }
}

//! One rank of one worker: its place in the index, and the sums that prove what was put there.

use std::sync::Arc;

use baton_index as index;
use baton_proto::digest::BlockSetDigest;
use baton_proto::event::{Blocks, ViewState};
use baton_proto::worker::Tier;
use serde_json::{Map, Value, json};

use super::bounds::Bounds;
use super::resync::Resync;
use super::target::HeldTarget;

/// Tiers that a view knows, in the index's order. Blocks in a tier of a newer peer are not looked at.
pub const TIERS: [(Tier, index::Tier, &str); 4] = [
    (Tier::Device, index::Tier::DEVICE, "device"),
    (Tier::Host, index::Tier::HOST, "host"),
    (Tier::Disk, index::Tier::DISK, "disk"),
    (Tier::External, index::Tier::EXTERNAL, "external"),
];

/// Where a tier stands in [`TIERS`].
pub(super) fn slot(tier: Tier) -> Option<usize> {
    TIERS.iter().position(|(known, ..)| *known == tier)
}

/// Number and digest of a tier's blocks, kept block by block as they are applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) blocks: u64,
    pub(super) digest: BlockSetDigest,
}

/// What one rank holds.
#[derive(Debug)]
pub(super) struct RankKv {
    target: Arc<HeldTarget>,
    sums: [Sums; TIERS.len()],
    state: ViewState,
    /// It spoke of a tier that is not known here, which may hold what comes before known blocks.
    beyond: bool,
}

impl RankKv {
    /// An empty rank. Without a word it is exact and whole.
    pub(super) fn new(index: &Arc<index::Index>) -> Self {
        Self {
            target: HeldTarget::new(index),
            sums: Default::default(),
            state: ViewState::default(),
            beyond: false,
        }
    }

    pub(super) fn target(&self) -> &Arc<HeldTarget> {
        &self.target
    }

    pub(super) fn sums(&self) -> &[Sums; TIERS.len()] {
        &self.sums
    }

    pub(super) fn uncertain(&self) -> bool {
        self.state.uncertain
    }

    pub(super) fn whole(&self) -> bool {
        !self.state.broken && !self.beyond
    }

    /// Blocks in all tiers.
    pub(super) fn blocks(&self) -> u64 {
        self.sums.iter().map(|sums| sums.blocks).sum()
    }

    /// Forgets all. What is put in from here on is part of a snapshot, and has holes until that is complete.
    pub(super) fn begin(&mut self) {
        self.clear(None);
        self.beyond = false;
        self.index().set_whole(self.target.target(), false);
    }

    /// Its snapshot is complete.
    pub(super) fn complete(&mut self) {
        self.tell_whole();
    }

    /// Takes note of what a part of a snapshot says of the rank; the index is told when it is complete.
    pub(super) fn describe(&mut self, state: ViewState) {
        self.state = state;
    }

    pub(super) fn set_uncertain(&mut self, uncertain: bool) {
        self.state.uncertain = uncertain;
    }

    pub(super) fn set_broken(&mut self, broken: bool) {
        self.state.broken = broken;
        self.tell_whole();
    }

    pub(super) fn store(
        &mut self,
        tier: Tier,
        blocks: &Blocks,
        bounds: &Bounds,
    ) -> Result<(), Resync> {
        let Some(slot) = slot(tier) else {
            self.look_beyond();
            return Ok(());
        };
        let sums = &mut self.sums[slot];
        let after = sums.blocks + blocks.0.len() as u64;
        if after > bounds.tiers[slot] {
            return Err(Resync::Bounds);
        }
        sums.blocks = after;
        blocks.0.iter().for_each(|block| sums.digest.insert(*block));
        self.index()
            .store(self.target.target(), TIERS[slot].1, &numbers(blocks));
        Ok(())
    }

    pub(super) fn remove(&mut self, tier: Tier, blocks: &Blocks) -> Result<(), Resync> {
        let Some(slot) = slot(tier) else {
            self.look_beyond();
            return Ok(());
        };
        let sums = &mut self.sums[slot];
        let after = sums.blocks.checked_sub(blocks.0.len() as u64);
        sums.blocks = after.ok_or(Resync::Digest)?;
        blocks.0.iter().for_each(|block| sums.digest.remove(*block));
        self.index()
            .remove(self.target.target(), TIERS[slot].1, &numbers(blocks));
        Ok(())
    }

    /// Nothing is left in one tier, or in all.
    pub(super) fn clear(&mut self, tier: Option<Tier>) {
        match tier.map(slot) {
            None => {
                self.sums = Default::default();
                self.index().clear(self.target.target(), None);
            }
            Some(Some(slot)) => {
                self.sums[slot] = Sums::default();
                let tier = Some(TIERS[slot].1);
                self.index().clear(self.target.target(), tier);
            }
            Some(None) => self.look_beyond(),
        }
    }

    /// Whether the index holds as many blocks as were put there. Each of them counted once; the sums count what came.
    pub(super) fn agrees_with_index(&self) -> bool {
        let mut tiers = TIERS.iter().zip(&self.sums);
        tiers.all(|((_, tier, _), sums)| {
            self.index().blocks(self.target.target(), *tier) == sums.blocks
        })
    }

    /// What operators see.
    pub(super) fn shown(&self) -> Map<String, Value> {
        let held = || TIERS.iter().zip(&self.sums);
        let blocks: Map<_, _> = held()
            .map(|((.., word), sums)| ((*word).to_owned(), sums.blocks.into()))
            .collect();
        let digests: Map<_, _> = held()
            .filter(|(_, sums)| sums.blocks > 0)
            .map(|((.., word), sums)| {
                let digest = format!("{:016x}", sums.digest.value());
                ((*word).to_owned(), digest.into())
            })
            .collect();
        let shown = json!({"whole": self.whole(), "blocks": blocks, "digest": digests});
        match shown {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }

    fn look_beyond(&mut self) {
        if !std::mem::replace(&mut self.beyond, true) {
            self.index().set_whole(self.target.target(), false);
        }
    }

    fn tell_whole(&self) {
        self.index().set_whole(self.target.target(), self.whole());
    }

    fn index(&self) -> &index::Index {
        self.target.index()
    }
}

fn numbers(blocks: &Blocks) -> Vec<u64> {
    blocks.0.iter().map(|block| block.0).collect()
}

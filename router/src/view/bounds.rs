//! How much a sidecar may claim that its engine holds. What it tells costs memory here, and it may be broken or hostile.

use baton_proto::worker::WorkerInfo;

use super::rank::{TIERS, slot};

/// Most blocks of a rank in a tier whose capacity is not told: 64 million tokens in blocks of 16.
const MOST_UNTOLD: u64 = 4 << 20;

/// Most blocks of a whole worker, whatever it tells.
const MOST_OF_WORKER: u64 = 32 << 20;

/// Most ranks of a worker, whatever it tells.
const MOST_RANKS: usize = 256;

/// Capacities are told by engines whose counts are not always those of the blocks that events name.
const SLACK: u64 = 1024;

/// Most that a worker's view may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks of a rank, by tier.
    pub(super) tiers: [u64; TIERS.len()],
    /// Blocks of all ranks and tiers.
    pub(super) worker: u64,
    /// Ranks.
    pub(super) ranks: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            tiers: [MOST_UNTOLD; TIERS.len()],
            worker: MOST_OF_WORKER,
            ranks: MOST_RANKS,
        }
    }
}

impl Bounds {
    /// What a worker of this description may hold: twice what it says that fits in.
    pub fn of(info: &WorkerInfo) -> Self {
        let mut bounds = Self::default();
        for told in &info.capacity {
            if let Some(slot) = slot(told.tier) {
                let most = told.blocks.saturating_mul(2).saturating_add(SLACK);
                bounds.tiers[slot] = most.min(MOST_OF_WORKER);
            }
        }
        let ranks = usize::try_from(info.ranks).unwrap_or(MOST_RANKS);
        bounds.ranks = ranks.saturating_mul(2).clamp(8, MOST_RANKS);
        bounds
    }
}

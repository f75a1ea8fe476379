//! Whom blocks are held by.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{AtomicBool, AtomicU64};

/// How many tiers there are.
pub(crate) const TIERS: usize = 4;

/// A routing target; numbers are given by the index and used again after release.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct Target(pub(crate) u32);

impl Target {
    /// Its number. The lowest free one is given, so numbers are good for arrays.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A tier of memory: 0 device, 1 host, 2 disk, 3 external.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Tier(u8);

impl Tier {
    /// The accelerator's own memory.
    pub const DEVICE: Self = Self(0);
    /// The host's memory.
    pub const HOST: Self = Self(1);
    /// Local disks.
    pub const DISK: Self = Self(2);
    /// Storage outside the host.
    pub const EXTERNAL: Self = Self(3);

    /// The tier of this number; none above 3.
    pub fn new(number: u8) -> Option<Self> {
        (usize::from(number) < TIERS).then_some(Self(number))
    }

    /// Place of what is counted by tier.
    pub(crate) fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// A target and one of its tiers, as one number: those of a target are neighbours, lower tiers first.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub(crate) struct Holder(pub(crate) u32);

impl Holder {
    pub(crate) fn new(target: Target, tier: Tier) -> Self {
        Self(target.0 << 2 | u32::from(tier.0))
    }

    pub(crate) fn target(self) -> Target {
        Target(self.0 >> 2)
    }

    pub(crate) fn tier(self) -> Tier {
        Tier((self.0 & 3) as u8)
    }
}

/// What finding must know of a target. Written by the writer alone.
#[derive(Debug, Default)]
pub(crate) struct TargetState {
    held: [AtomicU64; TIERS],
    whole: AtomicBool,
}

impl TargetState {
    pub(crate) fn copy(&self) -> Self {
        Self {
            held: std::array::from_fn(|tier| AtomicU64::new(self.held[tier].load(Relaxed))),
            whole: AtomicBool::new(self.whole.load(Relaxed)),
        }
    }

    pub(crate) fn held(&self, tier: Tier) -> u64 {
        self.held[tier.place()].load(Relaxed)
    }

    pub(crate) fn set_held(&self, tier: Tier, blocks: u64) {
        self.held[tier.place()].store(blocks, Relaxed);
    }

    pub(crate) fn set_whole(&self, whole: bool) {
        self.whole.store(whole, Relaxed);
    }

    /// Whether the ends of a stretch of blocks tell all of it: no holes, and one tier.
    pub(crate) fn is_straight(&self) -> bool {
        let tiers = self.held.iter().filter(|held| held.load(Relaxed) > 0);
        self.whole.load(Relaxed) && tiers.count() <= 1
    }
}

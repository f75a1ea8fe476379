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

/// What finding must know of targets. Written by the writer alone.
#[derive(Debug)]
pub(crate) struct Targets {
    states: Box<[State]>,
    /// One bit each: no holes, and one tier. Apart from what changes with every block, so that readers keep it near.
    straight: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct State {
    held: [AtomicU64; TIERS],
    whole: AtomicBool,
}

impl Targets {
    /// For at least so many targets; what is known of those that are in `old`.
    pub(crate) fn new(size: usize, old: Option<&Self>) -> Self {
        let words = size.div_ceil(64);
        let new = Self {
            states: (0..words * 64).map(|_| State::default()).collect(),
            straight: (0..words).map(|_| AtomicU64::new(0)).collect(),
        };
        for (number, state) in old.iter().flat_map(|old| old.states.iter().enumerate()) {
            let target = Target(number as u32);
            for tier in [Tier::DEVICE, Tier::HOST, Tier::DISK, Tier::EXTERNAL] {
                new.set_held(target, tier, state.held[tier.place()].load(Relaxed));
            }
            new.set_whole(target, state.whole.load(Relaxed));
        }
        new
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.states) + size_of_val(&*self.straight)
    }

    fn state(&self, target: Target) -> Option<&State> {
        self.states.get(target.0 as usize)
    }

    pub(crate) fn held(&self, target: Target, tier: Tier) -> u64 {
        let state = self.state(target);
        state.map_or(0, |state| state.held[tier.place()].load(Relaxed))
    }

    pub(crate) fn set_held(&self, target: Target, tier: Tier, blocks: u64) {
        if let Some(state) = self.state(target) {
            let held = &state.held[tier.place()];
            let was_empty = held.load(Relaxed) == 0;
            held.store(blocks, Relaxed);
            if was_empty != (blocks == 0) {
                self.straighten(target, state);
            }
        }
    }

    pub(crate) fn set_whole(&self, target: Target, whole: bool) {
        if let Some(state) = self.state(target) {
            state.whole.store(whole, Relaxed);
            self.straighten(target, state);
        }
    }

    fn straighten(&self, target: Target, state: &State) {
        let tiers = state.held.iter().filter(|held| held.load(Relaxed) > 0);
        let straight = state.whole.load(Relaxed) && tiers.count() <= 1;
        if straight != self.is_straight(target) {
            let word = &self.straight[target.0 as usize / 64];
            word.store(word.load(Relaxed) ^ 1 << (target.0 % 64), Relaxed);
        }
    }

    /// Whether the ends of a stretch of a target's blocks tell all of it: no holes, and one tier.
    pub(crate) fn is_straight(&self, target: Target) -> bool {
        // One that is newer than this view is not known to it.
        let word = self.straight.get(target.0 as usize / 64);
        word.is_some_and(|word| word.load(Relaxed) >> (target.0 % 64) & 1 == 1)
    }
}

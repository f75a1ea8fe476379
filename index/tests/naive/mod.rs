//! The index as one would write it without a thought of time or memory.

use std::collections::{BTreeMap, BTreeSet};

use baton_index::{Match, Target, Tier};

pub(crate) const TIERS: [Tier; 4] = [Tier::DEVICE, Tier::HOST, Tier::DISK, Tier::EXTERNAL];

/// What each target holds, by tier.
#[derive(Default)]
pub(crate) struct Naive(pub(crate) BTreeMap<Target, [BTreeSet<u64>; 4]>);

pub(crate) fn place(tier: Tier) -> usize {
    let place = TIERS.iter().position(|other| *other == tier);
    place.expect("all tiers are named")
}

impl Naive {
    pub(crate) fn tier(&mut self, target: Target, tier: Tier) -> &mut BTreeSet<u64> {
        &mut self.0.entry(target).or_default()[place(tier)]
    }

    pub(crate) fn find(&self, sequence: &[u64]) -> Vec<Match> {
        let each = self.0.iter().map(|(target, tiers)| {
            let lowest = |hash: &u64| tiers.iter().position(|tier| tier.contains(hash));
            let mut by_tier = [0; 4];
            for tier in sequence.iter().map_while(lowest) {
                by_tier[tier] += 1;
            }
            let target = *target;
            Match { target, by_tier }
        });
        each.filter(|found| found.blocks() > 0).collect()
    }

    /// Whether a target has nothing of the chains behind a hole.
    pub(crate) fn is_whole(&self, target: Target, chains: &[Vec<u64>]) -> bool {
        let tiers = &self.0[&target];
        let held = |hash: &u64| tiers.iter().any(|tier| tier.contains(hash));
        chains.iter().all(|chain| {
            let prefix = chain.iter().take_while(|hash| held(hash)).count();
            !chain[prefix..].iter().any(held)
        })
    }
}

/// A number that is as good as random, and always the same.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ mixed >> 29).wrapping_mul(factor);
    }
    mixed ^ mixed >> 32
}

/// Sequences that share beginnings with the first, each a little longer; the first begins with 0.
pub(crate) fn chains(count: u64, length: usize) -> Vec<Vec<u64>> {
    let trunk: Vec<u64> = (0..length as u64)
        .map(|place| if place == 0 { 0 } else { mix(place) })
        .collect();
    let branch = |number: u64| {
        let shared = if number == 0 {
            length
        } else {
            mix(number) as usize % length
        };
        let own = (shared..length).map(|place| mix(number << 32 | place as u64));
        trunk[..shared].iter().copied().chain(own).collect()
    };
    (0..count).map(branch).collect()
}

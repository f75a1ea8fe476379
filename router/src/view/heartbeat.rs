//! A heartbeat's digests against what was applied: the proof that router and sidecar hold the same view.

use std::collections::BTreeMap;

use baton_proto::watch::ViewDigest;

use super::rank::{RankKv, TIERS, slot};
use super::resync::Resync;

/// Whether `told` is what `ranks` hold. Tiers of a newer peer are not looked at; one that is not told holds nothing.
pub(super) fn check(told: &[ViewDigest], ranks: &BTreeMap<u32, RankKv>) -> Result<(), Resync> {
    let mut told_of = BTreeMap::new();
    for digest in told.iter().filter(|digest| digest.blocks > 0) {
        if let Some(slot) = slot(digest.tier) {
            let twice = told_of.insert((digest.rank, slot), (digest.blocks, digest.digest));
            if twice.is_some() {
                return Err(Resync::Digest);
            }
        }
    }
    let mut held = 0;
    for (rank, kv) in ranks {
        for (slot, sums) in (0..TIERS.len()).zip(kv.sums()) {
            if sums.blocks == 0 {
                continue;
            }
            held += 1;
            if told_of.get(&(*rank, slot)) != Some(&(sums.blocks, sums.digest.value())) {
                return Err(Resync::Digest);
            }
        }
    }
    if held != told_of.len() {
        return Err(Resync::Digest);
    }
    if ranks.values().all(RankKv::agrees_with_index) {
        Ok(())
    } else {
        Err(Resync::Index)
    }
}

//! Which blocks follow which: what a view of hashes alone no longer tells.

use std::collections::{HashMap, HashSet};

use baton_proto::hash::SequenceHash;
use baton_sidecar_core::mirror::TIERS;
use baton_sidecar_core::mirror::event::{BlockEvent, Content, Told};
use baton_sidecar_core::mirror::rank::RankView;
use baton_sidecar_vllm::events::decoder::Batch;

use super::report::Chain;

/// How many of a chain's first tokens are shown.
const FIRST_TOKENS: usize = 8;

/// Blocks that were stored and left are forgotten when there are this many more of them than of those that are there.
const LEFTOVERS: usize = 1 << 20;

/// What is known of a block beside its hash.
#[derive(Debug)]
enum Before {
    /// It follows this block.
    Block(SequenceHash),
    /// It begins a sequence.
    Nothing(Beginning),
}

#[derive(Debug)]
struct Beginning {
    lora: String,
    salt: String,
    first_tokens: Vec<u32>,
}

/// The blocks of one rank.
#[derive(Debug, Default)]
pub(super) struct Chains {
    blocks: HashMap<SequenceHash, (Before, u32)>,
}

impl Chains {
    /// Learns the order of a batch's stored blocks, after it was applied; `parents` are those of its events.
    pub(super) fn learn(
        &mut self,
        view: &RankView,
        batch: &Batch<'_>,
        parents: &[Option<SequenceHash>],
    ) {
        for (event, parent) in batch.events().zip(parents) {
            let BlockEvent::Stored(stored) = event else {
                continue;
            };
            let Content::Told(told) = stored.content else {
                continue;
            };
            // A block stored earlier in the same batch was not there before it.
            let mut before = parent.or_else(|| view.sequence_of(told.parent?));
            for (place, hash) in stored.hashes.iter().enumerate() {
                let Some(block) = view.sequence_of(*hash) else {
                    break;
                };
                let begins = place == 0 && told.parent.is_none();
                let known = match before {
                    Some(before) => Some(Before::Block(before)),
                    None => begins.then(|| Before::Nothing(beginning(&told))),
                };
                if let Some(known) = known {
                    self.blocks.entry(block).or_insert((known, told.block_size));
                }
                before = Some(block);
            }
        }
        if self.blocks.len() > LEFTOVERS {
            self.forget_leftovers(view);
        }
    }

    fn forget_leftovers(&mut self, view: &RankView) {
        let held = held(view);
        if self.blocks.len() > held.len() + LEFTOVERS {
            self.blocks.retain(|block, _| held.contains(block));
        }
    }

    /// The longest chains of a view, and how many of its blocks have a gap before them, so that no request can hit them.
    pub(super) fn longest(&self, view: &RankView, most: usize) -> (Vec<Chain>, u64) {
        let held = held(view);
        let mut depths = HashMap::with_capacity(held.len());
        for block in &held {
            self.measure(*block, &held, &mut depths);
        }
        let followed: HashSet<SequenceHash> = held
            .iter()
            .filter_map(|block| self.before(*block))
            .collect();
        let ends = held.iter().filter(|block| !followed.contains(block));
        let mut ends: Vec<(usize, SequenceHash)> = ends
            .filter_map(|block| Some((depths[block]?, *block)))
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let unreachable = depths.values().filter(|depth| depth.is_none()).count();
        let chains = ends
            .iter()
            .take(most)
            .filter_map(|(depth, end)| self.chain(*end, *depth));
        (
            chains.collect(),
            u64::try_from(unreachable).unwrap_or(u64::MAX),
        )
    }

    fn before(&self, block: SequenceHash) -> Option<SequenceHash> {
        match self.blocks.get(&block)?.0 {
            Before::Block(before) => Some(before),
            Before::Nothing(_) => None,
        }
    }

    /// How many blocks there are up to this one, if none is missing.
    fn measure(
        &self,
        block: SequenceHash,
        held: &HashSet<SequenceHash>,
        depths: &mut HashMap<SequenceHash, Option<usize>>,
    ) {
        let mut path = Vec::new();
        let mut next = Some(block);
        let mut depth = None;
        while let Some(block) = next {
            if let Some(known) = depths.get(&block) {
                depth = *known;
                break;
            }
            if !held.contains(&block) {
                break;
            }
            path.push(block);
            next = match self.blocks.get(&block) {
                Some((Before::Block(before), _)) => Some(*before),
                Some((Before::Nothing(_), _)) => {
                    depth = Some(0);
                    None
                }
                None => None,
            };
        }
        for block in path.into_iter().rev() {
            depth = depth.map(|depth| depth + 1);
            depths.insert(block, depth);
        }
    }

    fn chain(&self, end: SequenceHash, blocks: usize) -> Option<Chain> {
        let (_, block_size) = self.blocks.get(&end)?;
        let mut first = end;
        while let Some(before) = self.before(first) {
            first = before;
        }
        let (Before::Nothing(beginning), _) = self.blocks.get(&first)? else {
            return None;
        };
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        Some(Chain {
            blocks,
            tokens: blocks.saturating_mul(u64::from(*block_size)),
            lora: beginning.lora.clone(),
            salt: beginning.salt.clone(),
            first_tokens: beginning.first_tokens.clone(),
        })
    }
}

fn held(view: &RankView) -> HashSet<SequenceHash> {
    TIERS
        .into_iter()
        .flat_map(|tier| view.blocks(tier))
        .collect()
}

fn beginning(told: &Told<'_>) -> Beginning {
    Beginning {
        lora: told.lora.to_owned(),
        salt: told.salt.to_owned(),
        first_tokens: told.tokens.iter().copied().take(FIRST_TOKENS).collect(),
    }
}

//! A mirror that only a test could afford: it lists every copy of every block with all the tokens before it, and looks
//! at all of them for every answer. Written without the real one's tables, hashes or shortcuts.

use std::collections::BTreeSet;

use baton_proto::hash::{Namespace, SequenceHash, sequence_hashes};
use baton_proto::worker::Tier;

use crate::mirror::event::EngineHash;

/// All tokens from the beginning of the sequence to the end of the block; nothing for a block that is kept out.
pub(super) type Text = Option<Vec<u32>>;

#[derive(Debug, Clone)]
struct Copy {
    name: EngineHash,
    tier: Tier,
    text: Text,
}

#[derive(Debug, Default)]
pub(super) struct Naive {
    copies: Vec<Copy>,
    /// Names that were known before something was lost.
    faded: Vec<(EngineHash, Vec<u32>)>,
    pub(super) uncertain: bool,
}

impl Naive {
    fn text_of(&self, name: EngineHash) -> Option<Text> {
        let copy = self.copies.iter().find(|copy| copy.name == name);
        let faded = || self.faded.iter().find(|faded| faded.0 == name);
        copy.map(|copy| copy.text.clone())
            .or_else(|| faded().map(|faded| Some(faded.1.clone())))
    }

    /// Whether a block is there without the one before it.
    pub(super) fn is_broken(&self, block_size: usize) -> bool {
        let texts = || self.copies.iter().filter_map(|copy| copy.text.as_deref());
        let held: BTreeSet<&[u32]> = texts().collect();
        texts()
            .any(|text| text.len() > block_size && !held.contains(&text[..text.len() - block_size]))
    }

    /// Stores consecutive blocks: their names, and the tokens of each; what is not understood has none.
    pub(super) fn store(
        &mut self,
        parent: Option<EngineHash>,
        blocks: &[(EngineHash, Text)],
        tier: Tier,
    ) {
        let mut before = match parent {
            None => Some(Some(Vec::new())),
            Some(parent) => self.text_of(parent),
        };
        for (name, tokens) in blocks {
            let computed = before.map(|before| Some([before?, tokens.clone()?].concat()));
            before = self.text_of(*name).or(computed);
            match &before {
                Some(text) => self.put(*name, text.clone(), tier),
                None => self.uncertain |= tier == Tier::Device,
            }
        }
    }

    pub(super) fn store_named(&mut self, names: &[EngineHash], tier: Tier) {
        for name in names {
            match self.text_of(*name) {
                Some(text) => self.put(*name, text, tier),
                None => self.uncertain |= tier == Tier::Device,
            }
        }
    }

    fn put(&mut self, name: EngineHash, text: Text, tier: Tier) {
        let there = self
            .copies
            .iter()
            .any(|copy| copy.name == name && copy.tier == tier);
        if there && self.uncertain {
            return;
        }
        self.faded.retain(|faded| faded.0 != name || text.is_none());
        self.copies.push(Copy { name, tier, text });
    }

    pub(super) fn remove(&mut self, name: EngineHash, tier: Tier) {
        let found = self
            .copies
            .iter()
            .position(|copy| copy.name == name && copy.tier == tier);
        match found {
            Some(at) => drop(self.copies.remove(at)),
            None => self.faded.retain(|faded| faded.0 != name),
        }
    }

    pub(super) fn clear(&mut self, tier: Option<Tier>) {
        self.copies
            .retain(|copy| tier.is_some_and(|tier| copy.tier != tier));
        if tier.is_none() {
            self.faded.clear();
        }
        if tier.is_none_or(|tier| tier == Tier::Device) {
            self.uncertain = false;
        }
    }

    pub(super) fn lose(&mut self) {
        let placed = std::mem::take(&mut self.copies).into_iter();
        self.faded = placed
            .filter_map(|copy| Some((copy.name, copy.text?)))
            .collect();
        self.uncertain = true;
    }

    pub(super) fn blocks(
        &self,
        namespace: &Namespace<'_>,
        block_size: usize,
        tier: Tier,
    ) -> BTreeSet<SequenceHash> {
        let root = namespace.root().expect("a namespace without a zero byte");
        let held = self.copies.iter().filter(|copy| copy.tier == tier);
        held.filter_map(|copy| {
            sequence_hashes(root, copy.text.as_ref()?, block_size)
                .last()
                .copied()
        })
        .collect()
    }
}

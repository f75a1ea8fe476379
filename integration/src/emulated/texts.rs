//! What is in the blocks of a cache, remembered apart from all that is told of them.

use std::collections::HashMap;

use super::pool::{BlockHash, CacheKeys, Change};

/// All that makes the identity of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// LoRA adapter, empty for the base model.
    pub lora: String,
    /// Cache salt, empty without one.
    pub salt: String,
    /// What else keeps it apart, empty without it.
    pub extra: String,
    /// All tokens from the beginning of the sequence to the end of the block.
    pub tokens: Vec<u32>,
}

/// Contents of all blocks that were ever stored, by hash.
#[derive(Debug, Default)]
pub(super) struct Texts(HashMap<BlockHash, (Option<BlockHash>, Vec<u32>, CacheKeys)>);

impl Texts {
    pub(super) fn add(&mut self, changes: &[Change], block_size: u32) {
        for change in changes {
            let Change::Stored {
                hashes,
                parent,
                tokens,
                keys,
            } = change
            else {
                continue;
            };
            let mut parent = *parent;
            for (hash, tokens) in hashes.iter().zip(tokens.chunks(block_size as usize)) {
                let text = (parent, tokens.to_vec(), keys.clone());
                self.0.insert(*hash, text);
                parent = Some(*hash);
            }
        }
    }

    pub(super) fn of(&self, hash: &BlockHash) -> Text {
        let mut parts = Vec::new();
        let mut next = Some(*hash);
        let mut first = None;
        while let Some(hash) = next {
            let (parent, tokens, keys) = &self.0[&hash];
            parts.push(tokens.as_slice());
            first = Some(keys);
            next = *parent;
        }
        parts.reverse();
        let keys = first.expect("a block has a text");
        let lora = keys.lora.as_ref().map(|(name, _)| name.clone());
        Text {
            lora: lora.unwrap_or_default(),
            salt: keys.salt.clone().unwrap_or_default(),
            extra: keys.extra.clone().unwrap_or_default(),
            tokens: parts.concat(),
        }
    }
}

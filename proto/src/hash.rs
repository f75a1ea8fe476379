//! Sequence hashes: the identity of a KV block together with everything before it.
//!
//! A sidecar computes them from the tokens in its engine's events, so no seed, version or hash algorithm of two engines
//! need agree. The exact bytes are fixed here and by the vectors:
//!
//! ```text
//! root(namespace)        = xxh3_64("baton/1" 0 model 0 lora 0 salt)
//! block(parent, content) = xxh3_64_with_seed(content, seed = parent)
//! content                = tokens as u32 little-endian, then for each multimodal identifier of the block:
//!                          its length as u32 LE, its bytes, its token offset from the block's start as i32 LE
//! ```
//!
//! All blocks of a namespace have the same number of tokens, so tokens and identifiers cannot be confused.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Identity of a block with its whole prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SequenceHash(pub u64);

/// What separates caches that must never share a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Namespace<'a> {
    /// Model name as the fleet knows it.
    pub model: &'a str,
    /// LoRA adapter, empty for the base model.
    pub lora: &'a str,
    /// `cache_salt` of the request, empty without one.
    pub salt: &'a str,
}

impl Namespace<'_> {
    /// The parent of a sequence's first block. `None` if a name contains the separator, a zero byte.
    pub fn root(&self) -> Option<SequenceHash> {
        let parts = ["baton/1", self.model, self.lora, self.salt];
        let separated = parts.iter().all(|part| !part.contains('\0'));
        separated.then(|| SequenceHash(xxh3_64(parts.join("\0").as_bytes())))
    }
}

/// A multimodal item that touches a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultimodalItem<'a> {
    /// The engine's identifier of the item's content.
    pub identifier: &'a str,
    /// Where it begins, in tokens from the start of the block; negative if it began in an earlier one.
    pub offset: i32,
}

/// Most tokens of a block that are hashed in one go, from a buffer on the stack.
const IN_ONE_GO: usize = 256;

impl SequenceHash {
    /// The block that follows `self` with these tokens and multimodal items.
    #[must_use]
    pub fn child(self, tokens: &[u32], items: &[MultimodalItem<'_>]) -> Self {
        if items.is_empty() && tokens.len() <= IN_ONE_GO {
            return self.text_child(tokens);
        }
        let mut hasher = Xxh3::with_seed(self.0);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        for item in items {
            hasher.update(
                &u32::try_from(item.identifier.len())
                    .unwrap_or(u32::MAX)
                    .to_le_bytes(),
            );
            hasher.update(item.identifier.as_bytes());
            hasher.update(&item.offset.to_le_bytes());
        }
        Self(hasher.digest())
    }

    /// Nearly every block there is. The streaming hasher costs as much to set up as such a block costs to hash.
    fn text_child(self, tokens: &[u32]) -> Self {
        let mut content = [0; IN_ONE_GO * size_of::<u32>()];
        let (places, _) = content.as_chunks_mut();
        for (place, token) in places.iter_mut().zip(tokens) {
            *place = token.to_le_bytes();
        }
        Self(xxh3_64_with_seed(&content[..size_of_val(tokens)], self.0))
    }
}

/// Hashes of all full blocks of a text-only sequence, in order. A partial last block has none.
pub fn sequence_hashes(root: SequenceHash, tokens: &[u32], block_size: usize) -> Vec<SequenceHash> {
    let mut parent = root;
    let full_blocks = tokens.chunks_exact(block_size.max(1));
    full_blocks
        .map(|block| {
            parent = parent.child(block, &[]);
            parent
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: Namespace<'_> = Namespace {
        model: "tiny",
        lora: "",
        salt: "",
    };

    #[test]
    fn bytes_are_as_documented() {
        let root = BASE.root().unwrap();
        assert_eq!(root.0, xxh3_64(b"baton/1\0tiny\0\0"));
        let tokens = [1u32, 2, 70_000, u32::MAX];
        let mut content: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        assert_eq!(
            root.child(&tokens, &[]).0,
            xxh3_64_with_seed(&content, root.0)
        );
        content.extend([3, 0, 0, 0, b'i', b'm', b'g', 2, 0, 0, 0]);
        let item = MultimodalItem {
            identifier: "img",
            offset: 2,
        };
        assert_eq!(
            root.child(&tokens, &[item]).0,
            xxh3_64_with_seed(&content, root.0)
        );
    }

    #[test]
    fn fixed_vectors() {
        let root = BASE.root().unwrap();
        let tokens: Vec<u32> = (0..64).collect();
        let hashes = sequence_hashes(root, &tokens, 32);
        let salted = Namespace {
            salt: "tenant-a",
            ..BASE
        }
        .root()
        .unwrap();
        let lora = Namespace {
            lora: "ada",
            ..BASE
        }
        .root()
        .unwrap();
        let image = |offset| MultimodalItem {
            identifier: "img",
            offset,
        };
        let begins = root.child(&tokens[..32], &[image(30)]);
        let goes_on = begins.child(&tokens[32..], &[image(-2)]);
        let got = [root, hashes[0], hashes[1], salted, lora, begins, goes_on]
            .map(|hash| format!("{:016x}", hash.0));
        let expected = include_str!("../vectors/sequence_hashes.txt");
        assert_eq!(got.join("\n"), expected.trim());
    }

    #[test]
    fn a_zero_byte_in_a_name_has_no_namespace() {
        assert_eq!(
            Namespace {
                model: "a\0b",
                lora: "",
                salt: ""
            }
            .root(),
            None
        );
    }

    #[test]
    fn blocks_of_any_length_are_hashed_alike() {
        let root = BASE.root().unwrap();
        for length in [0, 1, 16, IN_ONE_GO - 1, IN_ONE_GO, IN_ONE_GO + 1, 1024] {
            let tokens: Vec<u32> = (0..u32::try_from(length).unwrap()).collect();
            let content: Vec<u8> = tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect();
            assert_eq!(
                root.child(&tokens, &[]).0,
                xxh3_64_with_seed(&content, root.0),
                "{length} tokens"
            );
        }
    }

    proptest! {
        #[test]
        fn prefixes_share_hashes_and_partial_blocks_have_none(
            tokens in prop::collection::vec(any::<u32>(), 0..200), cut in 0usize..200, block_size in 1usize..40,
        ) {
            let root = BASE.root().unwrap();
            let whole = sequence_hashes(root, &tokens, block_size);
            let cut = cut.min(tokens.len());
            let prefix = sequence_hashes(root, &tokens[..cut], block_size);
            prop_assert_eq!(prefix.len(), cut / block_size);
            prop_assert_eq!(&whole[..prefix.len()], &prefix[..]);
        }

        #[test]
        fn a_changed_token_changes_its_block_and_all_later_ones(
            mut tokens in prop::collection::vec(any::<u32>(), 32..128), at in 0usize..32,
        ) {
            let root = BASE.root().unwrap();
            let before = sequence_hashes(root, &tokens, 8);
            tokens[at] ^= 1;
            let after = sequence_hashes(root, &tokens, 8);
            for (block, (old, new)) in before.iter().zip(&after).enumerate() {
                prop_assert_eq!(old == new, block < at / 8);
            }
        }
    }
}

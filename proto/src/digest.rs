//! Digests: which request a ticket is for, and which blocks a view holds.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::hash::SequenceHash;

/// BLAKE3 over the route and the client's body, byte for byte. A handoff is good for no other request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestDigest(#[serde(with = "serde_bytes")] [u8; 32]);

impl RequestDigest {
    /// Digest of a request to `path` with this body.
    pub fn of(path: &str, body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("baton 2026 request digest");
        hasher.update(&(path.len() as u64).to_le_bytes());
        hasher.update(path.as_bytes());
        hasher.update(body);
        Self(*hasher.finalize().as_bytes())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for RequestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestDigest({})", blake3::Hash::from(self.0).to_hex())
    }
}

/// Digest of a set of blocks, whatever the order in which they came: what [`crate::watch::ViewDigest`] carries.
///
/// ```text
/// digest = sum of xxh3_64(sequence hash as u64 little-endian), modulo 2^64
/// ```
///
/// A sum and not an exclusive or: a block taken in twice by mistake shows. Kept up to date block by block; whoever does so
/// must put each block in once and take out only what is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockSetDigest(u64);

impl BlockSetDigest {
    /// Takes a block into the set.
    #[inline]
    pub fn insert(&mut self, block: SequenceHash) {
        self.0 = self.0.wrapping_add(xxh3_64(&block.0.to_le_bytes()));
    }

    /// Takes a block out of the set.
    #[inline]
    pub fn remove(&mut self, block: SequenceHash) {
        self.0 = self.0.wrapping_sub(xxh3_64(&block.0.to_le_bytes()));
    }

    /// The digest. That of no blocks is zero.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl FromIterator<SequenceHash> for BlockSetDigest {
    fn from_iter<I: IntoIterator<Item = SequenceHash>>(blocks: I) -> Self {
        let mut digest = Self::default();
        for block in blocks {
            digest.insert(block);
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn covers_path_body_and_the_border_between_them() {
        let digest = RequestDigest::of("/v1/completions", b"{}");
        assert_eq!(digest, RequestDigest::of("/v1/completions", b"{}"));
        assert_ne!(digest, RequestDigest::of("/v1/completions", b"{} "));
        assert_ne!(digest, RequestDigest::of("/v1/completion", b"s{}"));
    }

    /// The vectors were computed by another implementation of XXH3: no block, one, two, all.
    #[test]
    fn sets_of_blocks_have_their_digests() {
        let hashes = include_str!("../vectors/sequence_hashes.txt").lines();
        let blocks: Vec<SequenceHash> = hashes
            .map(|hash| SequenceHash(u64::from_str_radix(hash, 16).unwrap()))
            .collect();
        let sets = [&blocks[..0], &blocks[1..2], &blocks[1..3], &blocks];
        let got = sets.map(|set| {
            let digest: BlockSetDigest = set.iter().copied().collect();
            format!("{:016x}", digest.value())
        });
        assert_eq!(
            got.join("\n"),
            include_str!("../vectors/block_set_digests.txt").trim()
        );
    }

    proptest! {
        #[test]
        fn a_set_has_one_digest_however_it_came_about(
            mut blocks in prop::collection::hash_set(any::<u64>(), 0..50).prop_map(Vec::from_iter),
            passing in any::<u64>(),
        ) {
            blocks.retain(|block| *block != passing);
            let blocks: Vec<SequenceHash> = blocks.into_iter().map(SequenceHash).collect();
            let forwards: BlockSetDigest = blocks.iter().copied().collect();
            let mut backwards: BlockSetDigest = [SequenceHash(passing)].into_iter().collect();
            for block in blocks.iter().rev() {
                backwards.insert(*block);
            }
            prop_assert_ne!(backwards, forwards);
            backwards.remove(SequenceHash(passing));
            prop_assert_eq!(backwards, forwards);
        }
    }
}

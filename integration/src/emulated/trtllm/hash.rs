//! Names of blocks: `v1_block_key` and the SHA-256 of the second KV cache manager.
//!
//! v1 follows the description of `BlockKeyHasher`; its vectors are of an independent implementation and were not compared with
//! the C++ one.

use sha2::{Digest, Sha256};

use super::super::pool::{BlockHash, CacheKeys};

/// The number of a block behind its parent's, which is 0 for a sequence's first.
pub fn v1_block_key(tokens: &[u32], parent: u64, lora: Option<u64>, salt: Option<u64>) -> u64 {
    let mut seed = tokens.len() as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    if let (0, Some(salt)) = (parent, salt) {
        seed = mix64(salt, seed);
    }
    for token in tokens {
        seed = mix32(*token, seed);
    }
    match lora {
        Some(lora) => mix64(lora, seed),
        None => seed,
    }
}

fn mix32(value: u32, seed: u64) -> u64 {
    let mut value = value;
    for _ in 0..2 {
        value = ((value >> 16) ^ value).wrapping_mul(0x045d_9f3b);
    }
    // The constant is added in 32 bits, the seed in 64.
    let value = ((value >> 16) ^ value).wrapping_add(0x9e37_79b9);
    seed ^ combined(u64::from(value), seed)
}

fn mix64(value: u64, seed: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let value = (value ^ (value >> 31)).wrapping_add(0x9e37_79b9);
    seed ^ combined(value, seed)
}

fn combined(value: u64, seed: u64) -> u64 {
    value.wrapping_add(seed << 6).wrapping_add(seed >> 2)
}

/// As 1.2 names blocks: salts by BLAKE3.
pub(super) fn v1_12(parent: Option<&BlockHash>, tokens: &[u32], keys: &CacheKeys) -> BlockHash {
    let salt = |salt: &String| first_eight(blake3::hash(salt.as_bytes()).as_bytes());
    v1(parent, tokens, keys, keys.salt.as_ref().map(salt))
}

/// As later releases do: salts by SHA-256. The newest C++ manager uses `std::hash`, which nobody can compute elsewhere.
pub(super) fn v1_main(parent: Option<&BlockHash>, tokens: &[u32], keys: &CacheKeys) -> BlockHash {
    let salt = |salt: &String| first_eight(&Sha256::digest(salt.as_bytes()).into());
    v1(parent, tokens, keys, keys.salt.as_ref().map(salt))
}

fn v1(
    parent: Option<&BlockHash>,
    tokens: &[u32],
    keys: &CacheKeys,
    salt: Option<u64>,
) -> BlockHash {
    let lora = keys.lora.as_ref().map(|(_, id)| *id);
    let number = v1_block_key(tokens, parent.map_or(0, first_eight), lora, salt);
    let mut hash = BlockHash::default();
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

/// The number that a v1 hash is.
pub(super) fn first_eight(hash: &BlockHash) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(bytes)
}

/// The second manager's digest: how the real one writes what it hashes is not known, and no consumer has to know.
pub(super) fn v2(parent: Option<&BlockHash>, tokens: &[u32], keys: &CacheKeys) -> BlockHash {
    let mut hasher = Sha256::new();
    match parent {
        Some(parent) => hasher.update(parent),
        None => hasher.update(keys.salt.as_deref().unwrap_or_default().as_bytes()),
    }
    if let Some((name, _)) = &keys.lora {
        hasher.update(name.as_bytes());
    }
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_is_as_in_the_vectors() {
        let first = v1_block_key(&[1, 2, 3, 4], 0, None, None);
        assert_eq!(first, 924_206_229_973_855);
        let second = v1_block_key(&[5, 6, 7, 8], first, None, None);
        assert_eq!(second, 2_728_178_455_351_807_326);
        let lora = v1_block_key(&[1, 2, 3, 4], 0, Some(7), None);
        assert_eq!(lora, 1_405_807_694_910_447_675);
        let salted = v1_block_key(&[1, 2, 3, 4], 0, None, Some(0x1122_3344_5566_7788));
        assert_eq!(salted, 10_724_008_863_034_072_160);
    }
}

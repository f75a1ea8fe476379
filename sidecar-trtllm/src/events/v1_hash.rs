//! How TensorRT-LLM names a block (`v1_block_key`: `blockKey.cpp`, `kv_cache_hash.py`).
//!
//! The name goes over the block's tokens, its parent's name, the adapter and, where a sequence begins, the salt. Adapters are told
//! nowhere else: a block that is not called what its tokens make of it is in a namespace that nobody told.

use baton_sidecar_core::mirror::event::EngineHash;
use sha2::{Digest, Sha256};

/// The name of a block of these tokens behind `parent`, with nothing else to set it apart.
pub fn plain(tokens: &[u32], parent: Option<EngineHash>) -> EngineHash {
    EngineHash(over(tokens, seed(tokens, parent)))
}

/// The names that a block may have that begins a sequence under this salt: versions make a number of a salt in different ways.
pub fn salted(tokens: &[u32], salt: &str) -> [EngineHash; 2] {
    let sha256 = Sha256::digest(salt.as_bytes());
    let blake3 = blake3::hash(salt.as_bytes());
    [&sha256[..], blake3.as_bytes()].map(|digest| {
        let id = digest.first_chunk().copied().unwrap_or_default();
        let seed = mix64(u64::from_le_bytes(id), seed(tokens, None));
        EngineHash(over(tokens, seed))
    })
}

fn seed(tokens: &[u32], parent: Option<EngineHash>) -> u64 {
    let parent = parent.map_or(0, |parent| parent.0);
    tokens.len() as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn over(tokens: &[u32], seed: u64) -> u64 {
    tokens.iter().fold(seed, |seed, token| mix32(*token, seed))
}

fn mix32(mut value: u32, seed: u64) -> u64 {
    for _ in 0..2 {
        value = ((value >> 16) ^ value).wrapping_mul(0x045d_9f3b);
    }
    value = ((value >> 16) ^ value).wrapping_add(0x9e37_79b9);
    combine(u64::from(value), seed)
}

fn mix64(mut value: u64, seed: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^= value >> 31;
    combine(value.wrapping_add(0x9e37_79b9), seed)
}

fn combine(value: u64, seed: u64) -> u64 {
    seed ^ value.wrapping_add(seed << 6).wrapping_add(seed >> 2)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn recorded() -> Value {
        let vectors =
            include_str!("../../../integration/recordings/trtllm/hash_vectors_v1_block_key.json");
        serde_json::from_str(vectors).unwrap()
    }

    fn tokens(value: &Value) -> Vec<u32> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn plain_vectors_are_met_and_adapters_salts_and_images_are_not_plain() {
        let recorded = recorded();
        let mut plain_ones = 0;
        for vector in recorded["vectors"].as_array().unwrap() {
            let parent = vector["parent"].as_u64().unwrap();
            let parent = (parent > 0).then_some(EngineHash(parent));
            let name = plain(&tokens(&vector["tokens"]), parent);
            let told = EngineHash(vector["hash"].as_u64().unwrap());
            let is_plain = vector.as_object().unwrap().len() == 3;
            assert_eq!(name == told, is_plain, "{vector}");
            plain_ones += usize::from(is_plain);
        }
        assert_eq!(plain_ones, 3);
    }

    #[test]
    fn a_salt_is_mixed_in_where_a_sequence_begins() {
        let recorded = recorded();
        let vectors = recorded["vectors"].as_array().unwrap();
        let vector = vectors
            .iter()
            .find(|vector| vector.get("cache_salt_id").is_some())
            .unwrap();
        let tokens = tokens(&vector["tokens"]);
        let seed = mix64(
            vector["cache_salt_id"].as_u64().unwrap(),
            seed(&tokens, None),
        );
        assert_eq!(over(&tokens, seed), vector["hash"]);
        let id = recorded["salt_ids"]["main sha256[:8] LE of 'tenant-a'"]
            .as_u64()
            .unwrap();
        let digest = Sha256::digest("tenant-a");
        assert_eq!(u64::from_le_bytes(digest[..8].try_into().unwrap()), id);
    }

    #[test]
    fn a_prompt_is_a_chain_with_a_partial_end() {
        let recorded = recorded();
        let chain = &recorded["prompt_chain"];
        let tokens = tokens(&chain["tokens"]);
        let blocks = tokens[..tokens.len() - 1].chunks(32);
        let mut before = None;
        for (block, told) in blocks.zip(chain["hashes"].as_array().unwrap()) {
            let name = plain(block, before);
            assert_eq!(name.0, told.as_u64().unwrap());
            before = Some(name);
        }
    }
}

//! How SGLang names the page that begins a sequence (0.5.23).
//!
//! `SHA256(seed, tokens as u32 LE)`, of which the first 8 bytes are the name. The seed is that of the cache salt, if there
//! is one. A publisher of the format `dynamo` hashes the name once more, with a seed of the namespace: of a salt that is
//! told, and of an `extra_key` that is not. Without that format pages of different extra keys have one name.

use baton_sidecar_core::mirror::event::EngineHash;
use sha2::{Digest, Sha256};

/// Whether this is the name of a page that begins a sequence and that nothing but its tokens and this salt set apart.
pub(super) fn begins_sequence(name: EngineHash, tokens: &[u32], salt: Option<&str>) -> bool {
    let mut page = Sha256::new();
    if let Some(salt) = salt {
        page.update(Sha256::digest(
            [b"sglang-cache-salt-v1\0", salt.as_bytes()].concat(),
        ));
    }
    for token in tokens {
        page.update(token.to_le_bytes());
    }
    let plain = first_bytes(&page.finalize());
    name == plain || salt.is_some_and(|salt| name == namespaced(plain, salt))
}

/// The name in the namespace of a salt and no extra key.
fn namespaced(name: EngineHash, salt: &str) -> EngineHash {
    let length = salt.len() as u64;
    let mut seed = Sha256::new();
    seed.update(b"sglang-kv-event-namespace-v1\0\x01");
    seed.update(length.to_le_bytes());
    seed.update(salt);
    let mut hash = Sha256::new();
    hash.update(seed.finalize());
    hash.update(name.0.to_be_bytes());
    first_bytes(&hash.finalize())
}

fn first_bytes(digest: &[u8]) -> EngineHash {
    let first = digest.first_chunk().copied().unwrap_or_default();
    EngineHash(u64::from_be_bytes(first))
}

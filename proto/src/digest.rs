//! Which request a ticket is for: a digest of the client's exact bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_path_body_and_the_border_between_them() {
        let digest = RequestDigest::of("/v1/completions", b"{}");
        assert_eq!(digest, RequestDigest::of("/v1/completions", b"{}"));
        assert_ne!(digest, RequestDigest::of("/v1/completions", b"{} "));
        assert_ne!(digest, RequestDigest::of("/v1/completion", b"s{}"));
    }
}

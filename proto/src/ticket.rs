//! A ticket: one permitted use of an engine's transfer metadata.
//!
//! Engines answer 200 with another prompt's text, or die, when a stale, consumed or altered handoff reaches them. So a
//! ticket names the one decode worker that may use it, the life of the prefill engine that holds the KV, the digest of
//! the request's bytes and its lease, and a keyed seal over all of that makes any alteration visible.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::RequestDigest;
use crate::id::{Incarnation, TicketId, WorkerId};
use crate::token::FleetToken;

/// What decode needs to fetch the KV, in the engine's own JSON, byte for byte. Never goes through a lossy type.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferMetadata(Bytes);

impl TransferMetadata {
    /// Wraps the engine's JSON.
    pub fn new(json: impl Into<Bytes>) -> Self {
        Self(json.into())
    }

    /// The engine's JSON.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TransferMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferMetadata({})", String::from_utf8_lossy(&self.0))
    }
}

/// Proof that a ticket was made by a holder of the fleet's secret and was not altered since.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seal(#[serde(with = "serde_bytes")] [u8; 32]);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

/// One permitted use of transfer metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Its name in the ledger of the prefill worker.
    pub id: TicketId,
    /// Who holds the KV.
    pub prefill: WorkerId,
    /// The life of the prefill engine in which the KV exists.
    pub incarnation: Incarnation,
    /// The only worker that may use it.
    pub decode: WorkerId,
    /// The only request it may be used for.
    pub request_digest: RequestDigest,
    /// Length of the prefilled prompt, in tokens; absent while the prefill runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// KV bytes held for it on the prefill side; absent while the prefill runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How long the prefill engine promised to hold the KV, counted from the ticket's birth, in milliseconds.
    pub lease_ms: u64,
    /// What is left of the lease when this copy was sent, in milliseconds. Not sealed: it shrinks under way.
    pub lease_remaining_ms: u64,
    /// What the decode engine is given.
    pub metadata: TransferMetadata,
    /// Seal over all of the above but `lease_remaining_ms`.
    pub seal: Seal,
}

/// A ticket's facts before they are sealed.
#[derive(Debug, Clone)]
pub struct Draft {
    /// See [`Ticket::id`].
    pub id: TicketId,
    /// See [`Ticket::prefill`].
    pub prefill: WorkerId,
    /// See [`Ticket::incarnation`].
    pub incarnation: Incarnation,
    /// See [`Ticket::decode`].
    pub decode: WorkerId,
    /// See [`Ticket::request_digest`].
    pub request_digest: RequestDigest,
    /// See [`Ticket::prompt_tokens`].
    pub prompt_tokens: Option<u32>,
    /// See [`Ticket::bytes`].
    pub bytes: Option<u64>,
    /// See [`Ticket::lease_ms`].
    pub lease_ms: u64,
    /// See [`Ticket::metadata`].
    pub metadata: TransferMetadata,
}

impl Draft {
    /// Makes the ticket, with `lease_remaining_ms` of its lease left.
    pub fn seal(self, token: &FleetToken, lease_remaining_ms: u64) -> Ticket {
        let seal = Seal(*seal_of(&self, token).as_bytes());
        Ticket {
            id: self.id,
            prefill: self.prefill,
            incarnation: self.incarnation,
            decode: self.decode,
            request_digest: self.request_digest,
            prompt_tokens: self.prompt_tokens,
            bytes: self.bytes,
            lease_ms: self.lease_ms,
            lease_remaining_ms,
            metadata: self.metadata,
            seal,
        }
    }
}

impl Ticket {
    /// The ticket's facts, as they were before it was sealed.
    pub fn draft(&self) -> Draft {
        Draft {
            id: self.id.clone(),
            prefill: self.prefill.clone(),
            incarnation: self.incarnation.clone(),
            decode: self.decode.clone(),
            request_digest: self.request_digest,
            prompt_tokens: self.prompt_tokens,
            bytes: self.bytes,
            lease_ms: self.lease_ms,
            metadata: self.metadata.clone(),
        }
    }

    /// Whether the ticket is as its prefill sidecar made it. Takes the same time for every wrong seal.
    pub fn is_genuine(&self, token: &FleetToken) -> bool {
        seal_of(&self.draft(), token) == self.seal.0 && self.lease_remaining_ms <= self.lease_ms
    }
}

/// Each field goes in with its length, so no two different tickets have the same input; what is absent has none.
fn seal_of(draft: &Draft, token: &FleetToken) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(token.seal_key());
    let prompt_tokens = draft.prompt_tokens.map(u32::to_le_bytes);
    let bytes = draft.bytes.map(u64::to_le_bytes);
    let fields: [&[u8]; 9] = [
        draft.id.as_str().as_bytes(),
        draft.prefill.as_str().as_bytes(),
        draft.incarnation.as_str().as_bytes(),
        draft.decode.as_str().as_bytes(),
        draft.request_digest.as_bytes(),
        prompt_tokens.as_ref().map_or(&[], <[u8; 4]>::as_slice),
        bytes.as_ref().map_or(&[], <[u8; 8]>::as_slice),
        &draft.lease_ms.to_le_bytes(),
        draft.metadata.as_bytes(),
    ];
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(token: &FleetToken) -> Ticket {
        Draft {
            id: "t-1".parse().unwrap(),
            prefill: "prefill-0".parse().unwrap(),
            incarnation: "agent-1".parse().unwrap(),
            decode: "decode-0".parse().unwrap(),
            request_digest: RequestDigest::of("/v1/completions", b"{}"),
            prompt_tokens: Some(150),
            bytes: Some(81_920),
            lease_ms: 30_000,
            metadata: TransferMetadata::new(&br#"{"do_remote_prefill":true}"#[..]),
        }
        .seal(token, 29_000)
    }

    #[test]
    fn any_alteration_breaks_the_seal() {
        let token = FleetToken::new("0123456789abcdef").unwrap();
        let genuine = ticket(&token);
        assert!(genuine.is_genuine(&token));
        let alterations: [fn(&mut Ticket); 13] = [
            |t| t.id = "t-2".parse().unwrap(),
            |t| t.prefill = "prefill-1".parse().unwrap(),
            |t| t.incarnation = "agent-2".parse().unwrap(),
            |t| t.decode = "decode-1".parse().unwrap(),
            |t| t.request_digest = RequestDigest::of("/v1/completions", b"{ }"),
            |t| t.prompt_tokens = Some(151),
            |t| t.prompt_tokens = None,
            |t| t.bytes = Some(0),
            |t| t.bytes = None,
            |t| t.lease_ms += 1,
            |t| t.lease_remaining_ms = t.lease_ms + 1,
            |t| t.metadata = TransferMetadata::new(&b"{}"[..]),
            |t| t.seal.0[31] ^= 1,
        ];
        for (number, alter) in alterations.iter().enumerate() {
            let mut altered = genuine.clone();
            alter(&mut altered);
            assert!(!altered.is_genuine(&token), "alteration {number}");
        }
        let other = FleetToken::new("fedcba9876543210").unwrap();
        assert!(!genuine.is_genuine(&other), "a foreign fleet's ticket");
    }

    #[test]
    fn ageing_is_no_alteration() {
        let token = FleetToken::new("0123456789abcdef").unwrap();
        let mut aged = ticket(&token);
        aged.lease_remaining_ms = 0;
        assert!(aged.is_genuine(&token));
    }
}

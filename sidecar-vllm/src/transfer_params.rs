//! vLLM's `kv_transfer_params`: what a prefill engine answers with, and what must be true of it before any decode engine
//! may see it. The JSON itself travels raw; this is only looked at.
//!
//! The rules are vLLM 0.32.0's kill list: missing or too few block ids and a missing request id end the decode engine.

use serde::Deserialize;

use crate::handshake::Geometry;

/// What a prefill leg asks for.
pub const ASK: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The parts of `kv_transfer_params` that decide over life and death.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TransferParams {
    do_remote_prefill: bool,
    do_remote_decode: bool,
    remote_block_ids: Vec<Vec<u64>>,
    /// Which engine holds the KV.
    pub remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    tp_size: u32,
    /// Length of the prefilled prompt, in tokens.
    pub remote_num_tokens: u32,
    transfer_mode: Option<String>,
    /// Tokens of the prompt that were in the prefill engine's cache.
    pub remote_prefill_cached_tokens: Option<u32>,
}

impl TransferParams {
    /// Reads and checks `kv_transfer_params` against the engine they come from.
    pub fn parse(json: &[u8], from: &Geometry) -> Result<Self, String> {
        let params: Self = serde_json::from_slice(json)
            .map_err(|error| format!("kv_transfer_params are not as expected: {error}"))?;
        params.check(from)?;
        Ok(params)
    }

    fn check(&self, from: &Geometry) -> Result<(), String> {
        let needed = u64::from(self.remote_num_tokens).div_ceil(u64::from(from.block_size.max(1)));
        // Sliding-window groups hold fewer blocks; a full-attention group holds one for every block of the prompt.
        let most = self
            .remote_block_ids
            .iter()
            .map(Vec::len)
            .max()
            .unwrap_or(0) as u64;
        let strange = |what: &str| Err(format!("kv_transfer_params cannot be used: {what}"));
        if !self.do_remote_prefill || self.do_remote_decode {
            return strange("they do not offer a prefill");
        }
        if self.remote_request_id.is_empty() || self.remote_host.is_empty() || self.remote_port == 0
        {
            return strange("they do not say where the KV is");
        }
        if self.tp_size == 0 || self.remote_num_tokens == 0 || needed == 0 || most < needed {
            return strange("they have fewer blocks than the prompt needs");
        }
        if self
            .remote_block_ids
            .iter()
            .flatten()
            .any(|id| *id >= from.num_blocks)
        {
            return strange("they name blocks that the engine does not have");
        }
        match self.transfer_mode.as_deref() {
            None | Some("pull") => Ok(()),
            Some(other) => strange(&format!("the transfer mode is {other}")),
        }
    }

    /// KV bytes held, over all tensor-parallel ranks.
    pub fn bytes(&self, from: &Geometry) -> u64 {
        let group_bytes =
            |(group, ids): (usize, &Vec<u64>)| ids.len() as u64 * from.block_bytes(group);
        let one_rank: u64 = self
            .remote_block_ids
            .iter()
            .enumerate()
            .map(group_bytes)
            .sum();
        one_rank.saturating_mul(u64::from(self.tp_size))
    }
}

/// Under which id an engine holds KV, and in how many parts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeldAs {
    /// Its id.
    pub remote_request_id: String,
    /// Tensor-parallel ranks, each of which holds a part.
    pub tp_size: u32,
}

impl HeldAs {
    /// Reads `kv_transfer_params`. Refuses an id that would change the meaning of a notification which has it in it.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let held: Self = serde_json::from_slice(json)
            .map_err(|error| format!("kv_transfer_params are not as expected: {error}"))?;
        let id = &held.remote_request_id;
        let strange = id.is_empty() || id.starts_with("HB:") || id.contains(',');
        if strange {
            return Err(format!("no notification can name the request id {id:?}"));
        }
        Ok(held)
    }
}

/// A notification that a decode engine sends to the one that prefilled. A malformed one ends the engine (0.32.0), so
/// there is no other way to make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification(String);

impl Notification {
    /// The KV was fetched, by one consumer: the engine gives it back.
    pub fn fetched(held: &HeldAs) -> Self {
        Self(format!("{}:1", held.remote_request_id))
    }

    /// The KV is still wanted: the engine holds it for two thirds of its lease from now on, or longer.
    pub fn wanted<'a>(held: impl IntoIterator<Item = &'a HeldAs>) -> Self {
        let ids: Vec<&str> = held
            .into_iter()
            .map(|held| held.remote_request_id.as_str())
            .collect();
        Self(format!("HB:{}", ids.join(",")))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(id: &str) -> Result<HeldAs, String> {
        let json = serde_json::json!({"remote_request_id": id, "tp_size": 1, "other": null});
        HeldAs::parse(json.to_string().as_bytes())
    }

    #[test]
    fn notifications_are_as_decode_engines_send_them() {
        let (one, two) = (held("cmpl-a-0-01234567").unwrap(), held("b").unwrap());
        assert_eq!(
            Notification::fetched(&one).as_bytes(),
            b"cmpl-a-0-01234567:1"
        );
        assert_eq!(
            Notification::wanted([&one, &two]).as_bytes(),
            b"HB:cmpl-a-0-01234567,b"
        );
    }

    #[test]
    fn ids_that_no_notification_can_name_are_refused() {
        for id in ["", "HB:a", "a,b"] {
            assert!(held(id).is_err(), "{id:?}");
        }
        assert!(HeldAs::parse(b"{}").is_err());
        assert!(HeldAs::parse(br#"{"remote_request_id":"a","tp_size":-1}"#).is_err());
    }
}

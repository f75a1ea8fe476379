//! How the two sides of a handoff vouch for each other: `x-trtllm-disagg-auth`.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::config::Auth;

/// The header's name.
const HEADER: &str = "x-trtllm-disagg-auth";

/// Bytes that SHA-256 takes at a time.
const BLOCK: usize = 64;

/// Whether what a request says of another engine's KV may be believed.
pub(super) fn is_vouched_for(auth: &Auth, params: &Value, headers: &[(String, String)]) -> bool {
    let needs_it =
        !params["encoded_opaque_state"].is_null() || !params["ctx_info_endpoint"].is_null();
    match auth {
        _ if !needs_it => true,
        Auth::Off => true,
        Auth::Required => false,
        Auth::Key(key) => {
            let wanted = header(key, params);
            let mut headers = headers.iter();
            headers.any(|(name, value)| name == HEADER && *value == wanted)
        }
    }
}

fn header(key: &str, params: &Value) -> String {
    // Keys in order, nothing between: as `json.dumps(…, sort_keys=True, separators=(",", ":"))`.
    let payload = json!({
        "ctx_info_endpoint": params["ctx_info_endpoint"],
        "encoded_opaque_state": params["encoded_opaque_state"],
    });
    let mac = hmac(key.as_bytes(), payload.to_string().as_bytes());
    let mut text = "sha256=".to_owned();
    for byte in mac {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let padded = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(message)
        .finalize();
    let outer = Sha256::new().chain_update(padded(0x5c)).chain_update(inner);
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_vector() {
        let params = json!({
            "encoded_opaque_state": "AQAAAE9QQVFVRS1EYXRhVHJhbnNjZWl2ZXJTdGF0ZS0AAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRob\
                                     HB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/",
        });
        assert_eq!(
            header("secret", &params),
            "sha256=ffaabcf31a8c70c986ca63747e13f1de3a7fd49f0f68fa0bceda926913a1dad2"
        );
    }
}

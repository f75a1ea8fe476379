//! `internal_request_auth_key`: engines of one fleet vouch for the transfer metadata that they are sent
//! (`x-trtllm-disagg-auth`, after 1.2).

use baton_proto::json::RawObject;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderName, HeaderValue};
use sha2::Sha256;
use std::fmt::Write as _;

/// The header.
const HEADER: HeaderName = HeaderName::from_static("x-trtllm-disagg-auth");

/// The engines' key. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthKey(String);

impl std::fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthKey")
    }
}

impl AuthKey {
    /// A key; an empty one is none.
    pub(crate) fn new(key: &str) -> Option<Self> {
        let key = key.trim();
        (!key.is_empty()).then(|| Self(key.to_owned()))
    }

    /// The header for a leg's body, if there is something in it to vouch for.
    pub(crate) fn vouch(&self, body: &str) -> Option<(HeaderName, HeaderValue)> {
        let body = RawObject::parse(body.as_bytes()).ok()?;
        let params = RawObject::parse(body.get_set("disaggregated_params")?.as_bytes()).ok()?;
        let of = |key| params.get_set(key);
        let (endpoint, state) = (of("ctx_info_endpoint"), of("encoded_opaque_state"));
        endpoint.or(state)?;
        let value = self.sign(&payload(endpoint, state));
        Some((HEADER, HeaderValue::try_from(value).ok()?))
    }

    fn sign(&self, payload: &str) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()) else {
            // A key may have any length.
            return String::new();
        };
        mac.update(payload.as_bytes());
        let digest = mac.finalize().into_bytes();
        digest.iter().fold("sha256=".to_owned(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// What is signed: as Python writes JSON with sorted keys and no blanks. Both texts are plain ASCII, an address and base64.
fn payload(endpoint: Option<&str>, state: Option<&str>) -> String {
    let or_null = |raw: Option<&str>| raw.unwrap_or("null").to_owned();
    format!(
        "{{\"ctx_info_endpoint\":{},\"encoded_opaque_state\":{}}}",
        or_null(endpoint),
        or_null(state)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vector() -> Value {
        let vector = include_str!("../../integration/recordings/trtllm/disagg_auth_vector.json");
        serde_json::from_str(vector).unwrap()
    }

    #[test]
    fn the_vector_is_met() {
        let vector = vector();
        let key = AuthKey::new(vector["key"].as_str().unwrap()).unwrap();
        let payload: Value =
            serde_json::from_str(vector["canonical_payload"].as_str().unwrap()).unwrap();
        let state = &payload["encoded_opaque_state"];
        let body = json!({"disaggregated_params": {"request_type": "generation_only", "encoded_opaque_state": state}});
        let (name, value) = key.vouch(&body.to_string()).unwrap();
        assert_eq!(value.to_str().unwrap(), vector["header"][name.as_str()]);
    }

    #[test]
    fn where_nothing_is_handed_over_nothing_is_signed() {
        let key = AuthKey::new(" secret\n").unwrap();
        for body in [
            "{}",
            "no JSON",
            r#"{"disaggregated_params":null}"#,
            r#"{"disaggregated_params":{"request_type":"context_only","encoded_opaque_state":null}}"#,
        ] {
            assert_eq!(key.vouch(body), None, "{body}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", AuthKey::new("secret")), "Some(AuthKey)");
        assert_eq!(AuthKey::new(" \n"), None);
    }
}

//! A client's request body: what Baton reads of it and what it refuses in it.
//!
//! The bytes are the client's and travel verbatim to the sidecars. Transfer keys are Baton's alone: with them a client
//! could read another prompt's KV or kill an engine, so they are refused on every route, at the router's door and again
//! in the sidecar.

use bytes::Bytes;

use crate::digest::RequestDigest;
use crate::error::Error;
use crate::json::{Layout, RawObject};
use crate::route::Route;

/// Keys by which engines are told about KV transfers. A key ending in `*` stands for all keys with that beginning.
const TRANSFER_KEYS: &[&str] = &[
    "kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "bootstrap_*",
];

/// Objects whose members engines take for top-level keys: vLLM puts `vllm_xargs` into the same map as
/// `kv_transfer_params` (0.32.0, `entrypoints/openai/*/protocol.py`, `extra_args`).
const SPREAD_KEYS: &[&str] = &["vllm_xargs"];

/// A request body that may be sent to an engine.
#[derive(Debug, Clone)]
pub struct ClientRequest {
    route: Route,
    body: Bytes,
    layout: Layout,
    stream: Option<bool>,
}

impl ClientRequest {
    /// Checks a body: a JSON object, no key twice, no transfer key.
    pub fn new(route: Route, body: Bytes) -> Result<Self, Error> {
        let object = RawObject::parse(&body).map_err(|bad| Error::bad_request(bad.to_string()))?;
        refuse_transfer_keys(&object)?;
        for spread in SPREAD_KEYS.iter().filter_map(|key| object.get(key)) {
            // Anything but an object is left for the engine to refuse: only an object has members to spread.
            match RawObject::parse(spread.as_bytes()) {
                Ok(inner) => refuse_transfer_keys(&inner)?,
                Err(bad) if spread.starts_with('{') => {
                    return Err(Error::bad_request(format!("inside vllm_xargs, {bad}")));
                }
                Err(_) => {}
            }
        }
        let stream = match object.get_set("stream") {
            None | Some("false") => Some(false),
            Some("true") => Some(true),
            Some(_) => None,
        };
        let layout = object.layout();
        Ok(Self {
            route,
            body,
            layout,
            stream,
        })
    }

    /// Where it goes.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Whether it asks for a stream. `None` if it says so in a way that engines understand differently, such as `"yes"`.
    pub fn stream(&self) -> Option<bool> {
        self.stream
    }

    /// The client's bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body's top level.
    #[expect(
        clippy::missing_panics_doc,
        reason = "it was parsed once before, so this cannot fail"
    )]
    pub fn object(&self) -> RawObject<'_> {
        RawObject::laid_out(&self.body, &self.layout).expect("checked in ClientRequest::new")
    }

    /// Digest that binds a ticket to these bytes.
    pub fn digest(&self) -> RequestDigest {
        RequestDigest::of(self.route.path(), &self.body)
    }
}

fn refuse_transfer_keys(object: &RawObject<'_>) -> Result<(), Error> {
    match object.keys().find(|key| is_transfer_key(key)) {
        None => Ok(()),
        Some(key) => Err(Error::bad_request(format!(
            "{key:?} is set by Baton and not accepted from clients"
        ))),
    }
}

fn is_transfer_key(key: &str) -> bool {
    TRANSFER_KEYS
        .iter()
        .any(|known| match known.strip_suffix('*') {
            Some(beginning) => key.starts_with(beginning),
            None => key == *known,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> Result<ClientRequest, Error> {
        ClientRequest::new(Route::Completions, Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn transfer_keys_are_refused_in_every_spelling() {
        for body in [
            r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#,
            r#"{"kv_transfer_params":null}"#,
            r#"{"kv_transfer\u005fparams":{}}"#,
            r#"{"ec_transfer_params":{}}"#,
            r#"{"bootstrap_room":1}"#,
            r#"{"bootstrap_host":"h"}"#,
            r#"{"disaggregated_params":{}}"#,
            r#"{"vllm_xargs":{"kv_transfer_params":"x"}}"#,
            r#"{"vllm_xargs":{"a":1,"a":2}}"#,
        ] {
            let error = check(body).unwrap_err();
            assert_eq!(error.status(), 400, "{body}");
        }
    }

    #[test]
    fn only_the_words_of_json_say_whether_to_stream() {
        let stream = |body: &str| check(body).unwrap().stream();
        assert_eq!(stream(r#"{"stream":true}"#), Some(true));
        for no in [r#"{"stream":false}"#, r#"{"stream":null}"#, "{}"] {
            assert_eq!(stream(no), Some(false), "{no}");
        }
        for unsure in [r#"{"stream":1}"#, r#"{"stream":"true"}"#] {
            assert_eq!(stream(unsure), None, "{unsure}");
        }
    }

    #[test]
    fn the_same_words_as_content_are_no_transfer_keys() {
        for body in [
            r#"{"prompt":"kv_transfer_params"}"#,
            r#"{"metadata":{"kv_transfer_params":1}}"#,
            r#"{"vllm_xargs":{"kv_cache_report_mode":"full"}}"#,
            r#"{"vllm_xargs":null}"#,
        ] {
            assert_eq!(check(body).unwrap().body(), body);
        }
    }
}

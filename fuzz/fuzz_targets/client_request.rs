//! A client's body at the door: nothing that passes may steer an engine's KV transfer.

#![no_main]

use std::collections::BTreeMap;

use baton_proto::digest::RequestDigest;
use baton_proto::request::ClientRequest;
use baton_proto::route::{PASS_THROUGH, Route};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

type Members = BTreeMap<String, Box<RawValue>>;

fn holds_transfer_key(members: &Members) -> bool {
    let exact = ["kv_transfer_params", "ec_transfer_params", "disaggregated_params"];
    members.keys().any(|key| exact.contains(&key.as_str()) || key.starts_with("bootstrap_"))
}

fuzz_target!(|data: &[u8]| {
    let Some((steer, body)) = baton_fuzz::steered(data) else { return };
    let mut routes = vec![Route::ChatCompletions, Route::Completions];
    routes.extend(PASS_THROUGH.iter().map(|path| Route::PassThrough(path)));
    let route = routes[steer % routes.len()];
    let request = match ClientRequest::new(route, Bytes::copy_from_slice(body)) {
        Ok(request) => request,
        Err(error) => return assert_eq!(error.status(), 400),
    };
    assert_eq!(request.body(), body);
    assert_eq!(request.digest(), RequestDigest::of(route.path(), body));
    let members: Members = serde_json::from_slice(body).expect("a body that passes is an object");
    assert_eq!(request.object().keys().count(), members.len());
    assert!(!holds_transfer_key(&members));
    if let Some(spread) = members.get("vllm_xargs").and_then(|raw| serde_json::from_str::<Members>(raw.get()).ok()) {
        assert!(!holds_transfer_key(&spread));
    }
});

//! Answers of TensorRT-LLM to a context leg: what becomes a handoff can be given to decode, and its opaque part is the engine's own
//! bytes.

#![no_main]

use std::time::Duration;

use baton_proto::ticket::TransferMetadata;
use baton_sidecar_core::engine::Prefilled;
use baton_sidecar_trtllm::dialect::{Handoff, is_answer_to, read_prefill};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|answer: &[u8]| {
    let request = "0123456789abcdef0123456789abcdef".parse().unwrap();
    let _ = is_answer_to(answer, &request);
    let _ = Handoff::parse(&TransferMetadata::new(answer.to_vec()));
    let Ok(Prefilled::Handoff { kv, .. }) = read_prefill(answer, Duration::from_secs(54)) else { return };
    assert!(Handoff::parse(&kv.metadata).is_ok(), "what is handed out can be taken");
    // Numbers that serde_json's tree has no room for are the engine's own all the same.
    if let Ok(metadata) = serde_json::from_slice::<Value>(kv.metadata.as_bytes()) {
        let first = metadata["disaggregated_params"]["first_gen_tokens"].as_array();
        assert!(first.is_some_and(|tokens| !tokens.is_empty()));
    }
    let raw: Box<serde_json::value::RawValue> = raw_params(kv.metadata.as_bytes());
    let raw = raw.get().as_bytes();
    assert!(answer.windows(raw.len()).any(|window| window == raw), "byte for byte");
});

fn raw_params(metadata: &[u8]) -> Box<serde_json::value::RawValue> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        disaggregated_params: Box<serde_json::value::RawValue>,
    }
    serde_json::from_slice::<Metadata>(metadata).unwrap().disaggregated_params
}

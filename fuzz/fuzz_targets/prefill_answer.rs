//! vLLM's answer to a prefill leg: what becomes a handoff is the engine's own bytes and has blocks for its prompt.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use baton_sidecar_core::engine::Prefilled;
use baton_sidecar_vllm::dialect::read_prefill;
use baton_sidecar_vllm::handshake::{Geometry, Handshake};
use libfuzzer_sys::fuzz_target;

static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| {
    let recorded: serde_json::Value =
        serde_json::from_str(include_str!("../../integration/recordings/vllm/handshakes.json")).unwrap();
    let hex = recorded["prefill"].as_str().unwrap();
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    Handshake::parse(&bytes).unwrap().geometry
});

fuzz_target!(|data: &[u8]| {
    let lease = Duration::from_secs(25);
    let Ok(Prefilled::Handoff { usage, kv }) = read_prefill(data, &GEOMETRY, "e", lease) else { return };
    let metadata = kv.metadata.as_bytes();
    assert!(data.windows(metadata.len()).any(|window| window == metadata), "byte for byte");
    let block_bytes = GEOMETRY.block_bytes(0).max(1);
    let bytes = kv.bytes.unwrap_or(0);
    let held = bytes / block_bytes * u64::from(GEOMETRY.block_size);
    // Groups other than the first have no size in this geometry; only what is counted can be compared.
    assert!(usage.prompt_tokens > 0 && (bytes == 0 || held > 0));
});

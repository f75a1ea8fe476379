//! The reply of vLLM's side channel: what is believed is usable, and an engine can always hand over to itself.

#![no_main]

use baton_sidecar_vllm::handshake::Handshake;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(handshake) = Handshake::parse(data) else { return };
    assert!(handshake.geometry.block_size > 0);
    let _ = handshake.geometry.bytes_per_token();
    let compatibility = handshake.compatibility(Some("probe".to_owned()));
    assert_eq!(compatibility.hands_over_to(&compatibility), Ok(()));
});

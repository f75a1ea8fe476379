//! What a sidecar reads of a call: a head of ours, then the client's bytes.

#![no_main]

use baton_proto::call::{DecodeCall, GenerateCall, PrefillCall};
use baton_proto::frame::Envelope;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn check<Head: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
    let Ok(envelope) = Envelope::<Head>::decode(bytes.clone()) else { return };
    assert!(bytes.ends_with(&envelope.body), "the client's bytes are not what was sent");
    let again = Envelope::<Head>::decode(envelope.encode().concat().into()).expect("an encoding must be readable");
    assert_eq!(again, envelope);
}

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    check::<PrefillCall>(&bytes);
    check::<DecodeCall>(&bytes);
    check::<GenerateCall>(&bytes);
});

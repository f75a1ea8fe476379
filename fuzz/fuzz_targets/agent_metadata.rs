//! What an agent tells of itself, as far as it is looked at before NIXL sees it: a name that means the same to C.

#![no_main]

use baton_transfer::Metadata;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(metadata) = Metadata::parse(data) else { return };
    assert_eq!(metadata.bytes(), data);
    let name = metadata.agent_name();
    assert!(!name.is_empty() && !name.contains('\0'));
    // Behind `nixlSerDes|Agent` and its length.
    assert!(data[24..].starts_with(name.as_bytes()));
});

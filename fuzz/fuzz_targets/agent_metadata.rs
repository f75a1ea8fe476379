//! What an agent tells of itself, as far as it is looked at before NIXL sees it: a name that means the same to C.

#![no_main]

use baton_transfer::Metadata;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(metadata) = Metadata::parse(data) else { return };
    assert_eq!(metadata.bytes(), data);
    let name = metadata.agent_name();
    assert!(!name.is_empty() && !name.contains('\0'));
    let at = data.windows(name.len()).position(|window| window == name.as_bytes());
    assert!(at.is_some_and(|at| at <= 24), "the name is where NIXL reads it");
});

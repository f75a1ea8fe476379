//! The small bodies: a sidecar's registration, a router's answer to it, and a claim.

#![no_main]

use baton_proto::call::Claim;
use baton_proto::watch::{Registered, Registration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    baton_fuzz::reads_back::<Registration>(data);
    baton_fuzz::reads_back::<Registered>(data);
    baton_fuzz::reads_back::<Claim>(data);
});

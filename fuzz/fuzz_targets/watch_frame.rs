//! What a router reads of a sidecar's watch stream.

#![no_main]

use baton_proto::watch::WatchFrame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| baton_fuzz::reads_back::<WatchFrame>(data));

//! What a router reads of a prefill's answer.

#![no_main]

use baton_proto::call::PrefillFrame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| baton_fuzz::reads_back::<PrefillFrame>(data));

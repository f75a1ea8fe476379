//! Another hop's error: the value of its header up to the first line end, then its body.

#![no_main]

use baton_proto::{Error, Retry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let border = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let (header, body) = data.split_at(border);
    let Ok(header) = std::str::from_utf8(header) else { return };
    let error = Error::from_wire(header, body.get(1..).unwrap_or_default());
    assert_ne!(error.retry, Retry::Unknown, "an unknown verdict must become a cautious one");
    assert!((400..600).contains(&error.status()));
    assert!(error.header().bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "no header value");
    assert_eq!(Error::from_wire(&error.header(), error.openai_body().as_bytes()), error);
});

//! What a request says about its body: its type, its coding, its size. Only the router's clients are asked for them.

use baton_proto::ErrorKind;
use baton_proto::route::Route;

use super::json::with;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, chunked};

/// Types and codings.
pub fn cases() -> Vec<Case> {
    [types(), codings()].concat()
}

/// A good request with these lines and no other about its body.
fn saying(lines: &str) -> (Plain, Vec<u8>) {
    let mut plain = Plain::new(Front::Router);
    plain.headers.clear();
    let lines = format!("{lines}content-length: {}\r\n", plain.body.len());
    let bytes = plain.with(lines, &plain.body);
    (plain, bytes)
}

fn each(name: &str, good: &[&str], bad: &[&str]) -> Vec<Case> {
    let good = good.iter().map(|value| {
        let (plain, bytes) = saying(&format!("{name}: {value}\r\n"));
        plain.served(format!("{name} {value:?}"), bytes).goes_on()
    });
    let bad = bad.iter().map(|value| {
        let (_, bytes) = saying(&format!("{name}: {value}\r\n"));
        let expect = Expect::refused(ErrorKind::UnsupportedMediaType);
        Case::new(format!("{name} {value:?}"), bytes, expect)
    });
    good.chain(bad).collect()
}

#[rustfmt::skip]
const TYPES: &[&str] = &[
    "application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x", "application/json;",
    " application/json\t", "application/json\r\ncontent-type: application/json",
];

#[rustfmt::skip]
const NO_TYPES: &[&str] = &[
    "", ";", "json", "text/json", "text/plain", "text/html", "application/jsonx", "application/json5", "application/json-seq",
    "application/jsonlines", "application/x-json", "application/ld+json", "application/octet-stream",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json, text/plain",
    "text/plain, application/json", "\"application/json\"", "application /json", "application/ json",
    "application/json charset=utf-8", "*/*", "application/*", "application/json\u{e9}",
    "application/json\r\ncontent-type: text/plain", "text/plain\r\ncontent-type: application/json",
];

fn types() -> Vec<Case> {
    // Many clients do not say what they send.
    let (silent, bytes) = saying("");
    let mut cases = each("content-type", TYPES, NO_TYPES);
    cases.push(silent.served("no content-type", bytes).goes_on());
    cases
}

const CODINGS: &[&str] = &[
    "identity",
    "Identity",
    "",
    "identity\r\ncontent-encoding: identity",
];

#[rustfmt::skip]
const NO_CODINGS: &[&str] = &[
    "gzip", "x-gzip", "deflate", "br", "zstd", "compress", "aes128gcm", "identity, gzip", "gzip, identity", "chunked", "x",
    "identity\r\ncontent-encoding: gzip",
];

fn codings() -> Vec<Case> {
    each("content-encoding", CODINGS, NO_CODINGS)
}

/// Bodies around a limit, their length stated and not.
pub fn sizes(limit: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for length in [limit - 1, limit, limit + 1, limit + 100_000, limit * 8] {
        for chunks in [None, Some(1 << 20), Some(1000)] {
            let plain = Plain::of(Front::Router, Route::Completions, |mark| {
                padded(mark, length)
            });
            let bytes = match chunks {
                None => plain.sized(),
                Some(size) => {
                    plain.with("transfer-encoding: chunked\r\n", chunked(&plain.body, size))
                }
            };
            let name = format!("{length} bytes, in chunks of {chunks:?}");
            cases.push(if length <= limit {
                plain.served(name, bytes).goes_on()
            } else {
                Case::new(name, bytes, Expect::refused(ErrorKind::TooLarge))
            });
        }
    }
    cases
}

/// A good body of exactly this length.
fn padded(mark: &str, length: usize) -> String {
    let (begin, end) = (with(mark, "\"user\":\""), "\"}");
    let begin = begin.trim_end_matches('}');
    let room = length - begin.len() - end.len();
    [begin, &"u".repeat(room), end].concat()
}

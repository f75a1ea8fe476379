//! A body in chunks: the lines between them, the last one, and what follows it.

use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, chunked};

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        lines(front),
        last_chunks(front),
        extensions(front),
        trailers(front),
    ]
    .concat()
}

const CODED: &str = "transfer-encoding: chunked\r\n";

/// Before a chunk; `{x}` is its true size.
#[rustfmt::skip]
const LINES: &[&str] = &[
    "{x}\r\n", "{X}\r\n", "0{x}\r\n", "00000000{x}\r\n", "{x};a\r\n", "{x};a=b\r\n", "{x};a=\"b;c\"\r\n", "{x} ;a\r\n", "{x};\r\n", "{x} \r\n",
];

#[rustfmt::skip]
const NO_LINES: &[&str] = &[
    "\r\n", " {x}\r\n", "+{x}\r\n", "-{x}\r\n", "0x{x}\r\n", "{x}h\r\n", "{x}\n", "{x};a\nb\r\n", "{x};\u{0}\n\r\n", "{x}\r",
    "{x} {x}\r\n", "{x},{x}\r\n", "\"{x}\"\r\n", "10000000000000000{x}\r\n", "ffffffffffffffffff\r\n", "{x}\r\r\n",
    "{x}\u{0}\r\n", "\u{ff11}\r\n", "g\r\n",
];

/// Behind a chunk, instead of the last one.
#[rustfmt::skip]
const NO_ENDS: &[&str] = &[
    "0\r\n\r\n", "\n0\r\n\r\n", "\r0\r\n\r\n", "\r\n", "\r\n0", "\r\n0\r\n", "\r\n0\n\n", "\r\n-0\r\n\r\n", "xx\r\n0\r\n\r\n", "\r\n0\r\n\n",
];

/// A request in one chunk with this line before it and this behind it.
fn one_chunk(front: Front, line: &str, behind: &str) -> (Plain, Vec<u8>) {
    let plain = Plain::new(front);
    let size = plain.body.len();
    let line = line
        .replace("{x}", &format!("{size:x}"))
        .replace("{X}", &format!("{size:X}"));
    let body = [line.as_bytes(), &plain.body, behind.as_bytes()].concat();
    let bytes = plain.with(CODED, body);
    (plain, bytes)
}

fn lines(front: Front) -> Vec<Case> {
    let end = "\r\n0\r\n\r\n";
    let good = LINES.iter().map(|line| {
        let (plain, bytes) = one_chunk(front, line, end);
        plain
            .served(format!("chunk line {line:?}"), bytes)
            .goes_on()
    });
    let bad = NO_LINES.iter().map(|line| {
        let (_, bytes) = one_chunk(front, line, end);
        let case = Case::new(format!("chunk line {line:?}"), bytes, Expect::bad());
        case.shut().closes()
    });
    good.chain(bad).collect()
}

fn last_chunks(front: Front) -> Vec<Case> {
    let case = |end: &&str| {
        let (_, bytes) = one_chunk(front, "{x}\r\n", end);
        let case = Case::new(format!("last chunk {end:?}"), bytes, Expect::bad());
        case.shut().closes()
    };
    NO_ENDS.iter().map(case).collect()
}

/// Nobody needs many bytes of them.
fn extensions(front: Front) -> Vec<Case> {
    let line = |count: usize| format!("{{x}};{}\r\n", "a".repeat(count));
    let (plain, few) = one_chunk(front, &line(16_000), "\r\n0\r\n\r\n");
    let (_, many) = one_chunk(front, &line(17_000), "\r\n0\r\n\r\n");
    vec![
        plain.served("a chunk extension of 16,000 bytes", few),
        Case::new("a chunk extension of 17,000 bytes", many, Expect::bad()).closes(),
    ]
}

/// Lines behind the last chunk that look like headers. None of them counts.
#[rustfmt::skip]
const TRAILERS: &[&str] = &[
    "x: y", "content-length: 4", "transfer-encoding: chunked", "host: evil", "authorization: Bearer other",
    "content-type: text/plain", "connection: close", "content-encoding: gzip", "x-request-id: mine",
    "traceparent: 00-00000000000000000000000000000001-0000000000000001-01",
];

const NO_TRAILERS: &[&str] = &["no colon", "x\u{0}: y", ": y", " x: y", "x: \u{0}"];

fn trailers(front: Front) -> Vec<Case> {
    let build = |trailer: &str| {
        let plain = Plain::new(front);
        let mut body = chunked(&plain.body, 9);
        body.truncate(body.len() - 2);
        body.extend_from_slice(format!("{trailer}\r\n\r\n").as_bytes());
        let bytes = plain.with(CODED, body);
        (plain, bytes)
    };
    let good = TRAILERS.iter().map(|trailer| {
        let (plain, bytes) = build(trailer);
        plain
            .served(format!("trailer {trailer:?}"), bytes)
            .goes_on()
    });
    let bad = NO_TRAILERS.iter().map(|trailer| {
        let (_, bytes) = build(trailer);
        Case::new(format!("trailer {trailer:?}"), bytes, Expect::bad()).closes()
    });
    let large = [
        ("a trailer of 100 kB", format!("x: {}", "y".repeat(100_000))),
        ("200 trailers", vec!["x: y"; 200].join("\r\n")),
    ];
    let large = large.map(|(name, trailer)| {
        let (_, bytes) = build(&trailer);
        Case::new(name, bytes, Expect::bad()).closes()
    });
    good.chain(bad).chain(large).collect()
}

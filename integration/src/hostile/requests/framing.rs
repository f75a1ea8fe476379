//! Where a body ends: every way to say it twice, wrongly, or so that two readers could disagree, with another request
//! hidden behind each.
//!
//! What is expected is RFC 9112's: one reading or none. A request that says its length in two ways may be served by the
//! chunked reading, but its connection ends with it.

use baton_proto::{ErrorKind, Source};

use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, chunked};

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        lengths(front),
        repeated_lengths(front),
        codings(front),
        both(front),
        names(front),
    ]
    .concat()
}

/// A refused body: what a router calls a bad request, a sidecar calls a call that cannot be read.
pub(super) fn unreadable(front: Front) -> Expect {
    match front {
        Front::Router => Expect::bad(),
        Front::Sidecar => Expect::Refused(ErrorKind::Protocol, Source::Router),
    }
}

/// A length as it may be written; `{n}` is the true one.
const LENGTHS: &[&str] = &["{n}", "\t{n}", "{n} ", "{n}\t \t", "00{n}"];

#[rustfmt::skip]
const NO_LENGTHS: &[&str] = &[
    "", " ", "+{n}", "-{n}", "-1", "{n},", ",{n}", "{n}, {n}", "{n},{n}", "{n};", "{n};q=1", "{n}.0", "{n}e0", "0x{n}",
    "\"{n}\"", "'{n}'", "{n} {n}", "{n}\t{n}", "{n}_", "{n}b", "NaN", "\u{ff11}", "18446744073709551616",
    "184467440737095516160{n}", "{n}\u{b}", "{n}\u{0}", "{n}\u{7f}",
];

const ABSURD: &[&str] = &[
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551000",
];

/// Ways to write a length in one `content-length`.
fn lengths(front: Front) -> Vec<Case> {
    let build = |spelling: &str| {
        let plain = Plain::new(front);
        let value = spelling.replace("{n}", &plain.body.len().to_string());
        let bytes = plain.with(format!("content-length: {value}\r\n"), &plain.body);
        (plain, format!("length {spelling:?}"), bytes)
    };
    let good = LENGTHS.iter().map(|spelling| {
        let (plain, name, bytes) = build(spelling);
        plain.served(name, bytes).goes_on()
    });
    let bad = NO_LENGTHS.iter().map(|spelling| {
        let (_, name, bytes) = build(spelling);
        Case::new(name, bytes, Expect::no_http()).closes()
    });
    let absurd = ABSURD.iter().map(|spelling| {
        let (_, name, bytes) = build(spelling);
        Case::new(name, bytes, Expect::refused(ErrorKind::TooLarge)).closes()
    });
    good.chain(bad).chain(absurd).collect()
}

/// Several `content-length` lines.
fn repeated_lengths(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for (first, second) in [("{n}", "{n}"), ("{n}", "0{n}")] {
        let plain = Plain::new(front);
        let lines = two_lengths(&plain, first, second);
        let name = format!("lengths {first:?} and {second:?}");
        cases.push(plain.served(name, plain.with(lines, &plain.body)));
    }
    let odd = ["0", "1", "{n}1", "+{n}", "-{n}", "", "{n},{n}", "chunked"];
    for odd in odd {
        for (first, second) in [("{n}", odd), (odd, "{n}")] {
            let (plain, hidden) = (Plain::new(front), Plain::new(front));
            let lines = two_lengths(&plain, first, second);
            let body = [&plain.body[..], &hidden.sized()].concat();
            let name = format!("lengths {first:?} and {second:?}");
            cases.push(Case::new(name, plain.with(lines, body), Expect::no_http()).closes());
        }
    }
    cases
}

fn two_lengths(plain: &Plain, first: &str, second: &str) -> String {
    let length = plain.body.len().to_string();
    let [first, second] = [first, second].map(|spelling| spelling.replace("{n}", &length));
    format!("content-length: {first}\r\nx-between: x\r\ncontent-length: {second}\r\n")
}

/// Ways to write `transfer-encoding`, line by line, and whether all readers agree that it means chunks.
#[rustfmt::skip]
const CODINGS: &[(&[&str], bool)] = &[
    (&["chunked"], true), (&["Chunked"], true), (&["CHUNKED"], true), (&["\tchunked \t"], true),
    (&["chunked, chunked"], false), (&["chunked", "chunked"], false), (&["gzip, chunked"], false),
    (&["identity, chunked"], false), (&["identity", "chunked"], false), (&["chunked, identity"], false),
    (&["chunked", "identity"], false), (&["chunked", "x"], false), (&["x", "chunked"], false), (&["", "chunked"], false),
    (&["chunked", ""], false), (&[",chunked"], false), (&["chunked,"], false), (&["chunked;q=1"], false),
    (&["chunked ", " "], false), (&["\"chunked\""], false), (&["'chunked'"], false), (&["xchunked"], false),
    (&["chunkedx"], false), (&["chunk"], false), (&["x chunked"], false), (&["chunked x"], false), (&["identity"], false),
    (&["gzip"], false), (&[""], false), (&["\u{b}chunked"], false), (&["chunked\u{b}"], false), (&["chunked\u{0}"], false),
    (&["\u{a0}chunked"], false), (&["chunked\rx: y"], false), (&["\r\n chunked"], false), (&["chunked\r\n "], false),
];

fn coding_lines(values: &[&str]) -> String {
    let lines = values
        .iter()
        .map(|value| format!("transfer-encoding: {value}\r\n"));
    lines.collect()
}

/// `transfer-encoding` alone.
fn codings(front: Front) -> Vec<Case> {
    let case = |(values, agreed): &(&[&str], bool)| {
        let (plain, hidden) = (Plain::new(front), Plain::new(front));
        let body = chunked(&plain.body, 7);
        let name = format!("coding {values:?}");
        let lines = coding_lines(values);
        if *agreed {
            return plain.served(name, plain.with(lines, body)).goes_on();
        }
        let body = [body, hidden.sized()].concat();
        Case::new(name, plain.with(lines, body), Expect::no_http()).closes()
    };
    CODINGS.iter().map(case).collect()
}

/// A length and a coding at once, so that the end by one of them is where a hidden request begins by the other.
fn both(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for (values, agreed) in CODINGS {
        for length_first in [true, false] {
            let lines = |length: usize| {
                let length = format!("content-length: {length}\r\n");
                let coding = coding_lines(values);
                if length_first {
                    length + &coding
                } else {
                    coding + &length
                }
            };
            let expect = || {
                if *agreed {
                    unreadable(front)
                } else {
                    Expect::no_http()
                }
            };
            let name =
                |kind: &str| format!("{kind}, coding {values:?}, length first: {length_first}");
            // By its length the whole is one body; by its chunks the body is empty and another request follows.
            let (outer, hidden) = (Plain::new(front), Plain::new(front));
            let body = [b"0\r\n\r\n", &hidden.sized()[..]].concat();
            let bytes = outer.with(lines(body.len()), &body);
            cases.push(Case::new(name("CL.TE"), bytes, expect()).closes());
            // By its chunks the whole is one body; by its length another request follows the first line.
            let (outer, hidden) = (Plain::new(front), Plain::new(front));
            let bytes = outer.with(lines(4), chunked(&hidden.sized(), 4096));
            cases.push(Case::new(name("TE.CL"), bytes, expect()).closes());
        }
    }
    cases
}

/// Lines that are nearly a coding or a length, and that nobody may take for a line at all.
#[rustfmt::skip]
const NO_LINES: &[&str] = &[
    "transfer-encoding : chunked", "transfer-encoding\t: chunked", " transfer-encoding: chunked",
    "transfer-encoding:\r\n chunked", "x: y\r\n\ttransfer-encoding: chunked", "transfer-encoding\u{b}: chunked",
    "transfer-encoding\u{0}: chunked", "transfer\u{0}-encoding: chunked", "\u{0}transfer-encoding: chunked",
    "transfer-encoding", "transfer-encoding chunked", ": chunked", "transfer encoding: chunked",
    "tr\u{e4}nsfer-encoding: chunked", "(transfer-encoding): chunked", "content-length : 4", "content-length\t: 4",
    " content-length: 4", "content-length:\r\n 4", "\u{0}content-length: 4", "content-length\u{b}: 4",
    "content\u{0}-length: 4", "x: \u{0}", "x: y\rtransfer-encoding: chunked", "x: \r", "x\r: y",
];

/// Other headers, with which nobody frames anything.
#[rustfmt::skip]
const OTHER_LINES: &[&str] = &[
    "transfer_encoding: chunked", "transfer-encodin: chunked", "transfer-encodings: chunked", "x-transfer-encoding: chunked",
    "transferencoding: chunked", "content_length: 4", "content-lengt: 4", "x-content-length: 4", "te: chunked",
    "trailer: content-length", "connection: content-length", "connection: transfer-encoding", "proxy-connection: keep-alive",
    "keep-alive: timeout=1", "x-http-method-override: GET", "x-original-url: /fleet", "x-rewrite-url: /fleet",
    "x-forwarded-host: evil",
];

/// Such lines beside a true length.
fn names(front: Front) -> Vec<Case> {
    let refused = NO_LINES.iter().map(|line| {
        let (plain, hidden) = (Plain::new(front), Plain::new(front));
        let lines = format!("{line}\r\ncontent-length: {}\r\n", plain.body.len());
        let body = [&plain.body[..], &hidden.sized()].concat();
        let bytes = plain.with(lines, body);
        Case::new(format!("line {line:?}"), bytes, Expect::no_http()).closes()
    });
    let ignored = OTHER_LINES.iter().map(|line| {
        let plain = Plain::new(front);
        let lines = format!("{line}\r\ncontent-length: {}\r\n", plain.body.len());
        plain.served(format!("line {line:?}"), plain.with(lines, &plain.body))
    });
    refused.chain(ignored).collect()
}

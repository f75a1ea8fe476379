//! The headers of a request: every byte in a name and in a value, how many and how large, and those by which a host, a
//! connection, an expectation or another protocol is asked for.

use super::head::with_byte;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain};

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        name_bytes(front),
        value_bytes(front),
        counts(front),
        targets(front),
        without_end(),
        hosts(),
        connections(front),
        wishes(front),
        other_protocols(),
    ]
    .concat()
}

/// Every byte inside a header's name.
fn name_bytes(front: Front) -> Vec<Case> {
    let case = |byte: u8| {
        let plain = Plain::live(front);
        let bytes = with_byte(plain.with("x\u{1}y: z\r\n", ""), byte);
        let name = format!("byte {byte:#04x} in a header's name");
        let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if token || byte == b':' {
            Case::new(name, bytes, Expect::Own).goes_on()
        } else {
            Case::new(name, bytes, Expect::no_http()).closes()
        }
    };
    (0..=u8::MAX).map(case).collect()
}

/// Every byte inside a header's value.
fn value_bytes(front: Front) -> Vec<Case> {
    let case = |byte: u8| {
        let plain = Plain::live(front);
        let bytes = with_byte(plain.with("x: y\u{1}z\r\n", ""), byte);
        let name = format!("byte {byte:#04x} in a header's value");
        if matches!(byte, b'\t' | b' '..=b'~' | 0x80..) {
            Case::new(name, bytes, Expect::Own).goes_on()
        } else {
            Case::new(name, bytes, Expect::no_http()).closes()
        }
    };
    (0..=u8::MAX).map(case).collect()
}

const FEW: &[(usize, usize)] = &[(0, 0), (1, 1), (90, 10), (1, 30_000), (60, 900)];

#[rustfmt::skip]
const MANY: &[(usize, usize)] = &[(101, 1), (500, 1), (5000, 1), (1, 70_000), (1, 1_000_000), (60, 2000), (90, 60_000)];

/// So many headers of such a length.
fn counts(front: Front) -> Vec<Case> {
    let build = |(count, length): &(usize, usize)| {
        let line = |at: usize| format!("x-{at}: {}\r\n", "v".repeat(*length));
        let lines: String = (0..*count).map(line).collect();
        let bytes = Plain::live(front).with(lines, "");
        (format!("{count} headers of {length} bytes"), bytes)
    };
    let few = FEW.iter().map(|size| {
        let (name, bytes) = build(size);
        Case::new(name, bytes, Expect::Own).goes_on()
    });
    let many = MANY.iter().map(|size| {
        let (name, bytes) = build(size);
        Case::new(name, bytes, Expect::NoHttp(&[400, 431])).closes()
    });
    few.chain(many).collect()
}

/// Targets of such a length.
fn targets(front: Front) -> Vec<Case> {
    let case = |(length, expect): (usize, Expect)| {
        let mut plain = Plain::live(front);
        plain.target = format!("/livez?{}", "x".repeat(length));
        Case::new(format!("a target of {length} bytes"), plain.sized(), expect)
    };
    let too_long = Expect::NoHttp(&[414, 431]);
    [
        (8_000, Expect::Own),
        (60_000, Expect::Own),
        (66_000, too_long.clone()),
        (500_000, too_long),
    ]
    .map(case)
    .into()
}

/// Heads that are not over after four MiB.
fn without_end() -> Vec<Case> {
    let begin = b"GET /livez HTTP/1.1\r\nhost: test\r\nx: ";
    let value = [&begin[..], &vec![b'y'; 4 << 20]].concat();
    let expect = Expect::NoHttp(&[400, 414, 431]);
    vec![
        Case::new("a header without an end", value, expect.clone()).closes(),
        Case::new("a method without an end", vec![b'A'; 4 << 20], expect).closes(),
    ]
}

#[rustfmt::skip]
const HOSTS: &[&str] = &[
    "host: test\r\n", "host: test:80\r\n", "host: [::1]:80\r\n", "host:\r\n", "Host: TEST\r\n", "host: 127.0.0.1\r\n", "host: a,b\r\n",
];

#[rustfmt::skip]
const NO_HOSTS: &[&str] = &[
    "", "host: a\r\nhost: a\r\n", "host: a\r\nhost: b\r\n", "host: a\r\nx: y\r\nhost: b\r\n", "host: a b\r\n", "host: a/b\r\n",
    "host: http://a\r\n", "host: me@a\r\n", "host: a?b\r\n", "host: a#b\r\n", "host: a:b:c\r\n", "host: \u{e4}\r\n",
    "host: a\\b\r\n", "host: [::1\r\n", "host : a\r\n", " host: a\r\n",
];

/// There must be one host, and it must be one.
fn hosts() -> Vec<Case> {
    let case = |lines: &str, expect| {
        let live = format!("GET /livez HTTP/1.1\r\n{lines}\r\n");
        Case::new(format!("{lines:?}"), live, expect)
    };
    let good = HOSTS.iter();
    let good = good.map(|lines| case(lines, Expect::Own).goes_on());
    let bad = NO_HOSTS.iter();
    let bad = bad.map(|lines| case(lines, Expect::no_http()).closes());
    good.chain(bad).collect()
}

#[rustfmt::skip]
const CLOSE: &[&str] = &[
    "close", "Close", "keep-alive, close", "close, keep-alive", "x, close", "close,", "keep-alive\r\nconnection: close",
    "close\r\nconnection: keep-alive",
];

#[rustfmt::skip]
const GO_ON: &[&str] = &[
    "keep-alive", "x", "", "closed", "clos", "host", "te", "authorization, content-length", "\"close\"",
];

/// `connection`.
fn connections(front: Front) -> Vec<Case> {
    let case = |value: &str| {
        let plain = Plain::new(front);
        let length = plain.body.len();
        let lines = format!("connection: {value}\r\ncontent-length: {length}\r\n");
        let bytes = plain.with(lines, &plain.body);
        plain.served(format!("connection {value:?}"), bytes)
    };
    let close = CLOSE.iter().map(|value| case(value).closes());
    let go_on = GO_ON.iter().map(|value| case(value).goes_on());
    close.chain(go_on).collect()
}

/// What a client may wish for and not get, or say about itself.
#[rustfmt::skip]
const WISHES: &[&str] = &[
    "connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    "connection: upgrade, http2-settings\r\nupgrade: h2c\r\n",
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "connection: upgrade\r\nupgrade: TLS/1.2\r\n", "upgrade: HTTP/1.1\r\n", "upgrade: x\r\nupgrade: y\r\n",
    "expect: 100-continue\r\n", "Expect: 100-Continue\r\n", "te: trailers, deflate\r\n", "range: bytes=0-1\r\n",
    "if-none-match: *\r\n", "accept: text/html\r\n", "accept-encoding: gzip, br, identity;q=0\r\n",
    "x-data-parallel-rank: 7\r\n", "x-request-id: mine\r\n", "x-session-id: mine\r\n",
    "traceparent: 00-ffffffffffffffffffffffffffffffff-ffffffffffffffff-ff\r\ntracestate: a=b\r\n",
    "baton-error: bad_request; source=engine; stage=decode; retry=safe\r\n",
];

fn wishes(front: Front) -> Vec<Case> {
    let mut wishes: Vec<String> = WISHES.iter().map(|lines| (*lines).to_owned()).collect();
    // A trace that is as long as a head may be: it must not make the heads of others too long.
    let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    let own = Plain::new(front).sized().len();
    for free in [300, 250, 200, 150, 100] {
        let state = "s".repeat((64 << 10) - own - parent.len() - free);
        wishes.push(format!("{parent}tracestate: a={state}\r\n"));
    }
    let served = |lines: String| {
        let plain = Plain::new(front);
        let length = plain.body.len();
        let bytes = plain.with(format!("{lines}content-length: {length}\r\n"), &plain.body);
        let shown: String = lines.chars().take(60).collect();
        plain.served(format!("{shown:?}, {} bytes", lines.len()), bytes)
    };
    wishes.into_iter().map(served).collect()
}

/// Other protocols. None of them is spoken.
#[rustfmt::skip]
const OTHER_PROTOCOLS: &[(&str, &[u8])] = &[
    ("HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("SOCKS 5", b"\x05\x01\x00"),
    ("a proxy's line", b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\nGET /livez HTTP/1.1\r\nhost: a\r\n\r\n"),
    ("an SSH banner", b"SSH-2.0-x\r\n"),
    ("HTTP/0.9", b"GET /livez\r\n"),
    ("an answer", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ("nothing but line ends", b"\r\n\r\n\r\n\r\n"),
    ("nothing", b""),
    ("NUL bytes", &[0; 64]),
];

fn other_protocols() -> Vec<Case> {
    let case = |(name, bytes): &(&str, &'static [u8])| {
        let case = Case::new(*name, *bytes, Expect::NoHttp(&[400, 505]));
        case.shut().closes()
    };
    OTHER_PROTOCOLS.iter().map(case).collect()
}

//! The first line of a request, and where lines end: targets, methods, versions.

use baton_proto::ErrorKind;

use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain};

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        targets(front),
        target_bytes(front),
        methods(front),
        versions(front),
        line_ends(front),
    ]
    .concat()
}

/// Other spellings of the path `{p}` that mean it.
#[rustfmt::skip]
const SAME_TARGETS: &[&str] = &[
    "{p}?", "{p}?x=y", "{p}?/../x", "http://test{p}", "HTTP://TEST{p}", "http://evil.example:99{p}?x", "https://test{p}",
];

/// Spellings that somebody might take for it. To a sidecar some are paths behind the token.
#[rustfmt::skip]
const OTHER_TARGETS: &[&str] = &[
    "{p}/", "/{p}", "//{p}", "{p}//", "/.{p}", "/..{p}", "/x/..{p}", "{p}/.", "{p}/..", "{p}/../", "{p};x", "{p}.", "{p}%00",
    "{p}%20", "{p}%0d%0a", "/%2e{p}", "/%2e%2e{p}", "%2f{p}", "/v1%2fcompletions", "/baton%2fv1%2fgenerate",
    "/%76%31/completions", "/%62aton/v1/generate", "{P}", "\\{p}", "http://test/{p}", "http://test/x/..{p}", "http://test",
    "http://test/", "test:80", "*", "/", "/.", "/..", "/%", "/%zz", "/{p}:80", "x{p}", "?{p}", "#{p}", "http:{p}", "http:/{p}",
    "http:///{p}", "http://[::1{p}", "://{p}",
];

const NO_TARGETS: &[&str] = &["", " ", "{p} x", "{p}?x= y", "http://te st{p}"];

fn targets(front: Front) -> Vec<Case> {
    let spelled = |spelling: &str| {
        let mut plain = Plain::new(front);
        let path = plain.target.clone();
        let upper = path.to_uppercase();
        plain.target = spelling.replace("{p}", &path).replace("{P}", &upper);
        (format!("target {spelling:?}"), plain)
    };
    let same = SAME_TARGETS.iter().map(|spelling| {
        let (name, plain) = spelled(spelling);
        plain.served(name, plain.sized())
    });
    let other = OTHER_TARGETS.iter().map(|spelling| {
        let (name, plain) = spelled(spelling);
        Case::new(name, plain.sized(), Expect::NoHttp(&[400, 401, 404]))
    });
    let none = NO_TARGETS.iter().map(|spelling| {
        let (name, plain) = spelled(spelling);
        Case::new(name, plain.sized(), Expect::no_http()).closes()
    });
    same.chain(other).chain(none).collect()
}

/// A request with this byte at the place marked by a byte of 1.
pub(super) fn with_byte(request: Vec<u8>, byte: u8) -> Vec<u8> {
    let replaced = request
        .into_iter()
        .map(|known| if known == 1 { byte } else { known });
    replaced.collect()
}

/// Every byte inside the path.
fn target_bytes(front: Front) -> Vec<Case> {
    let case = |byte: u8| {
        let mut plain = Plain::new(front);
        let path = plain.target.clone();
        plain.target = format!("{}\u{1}{}", &path[..4], &path[4..]);
        let bytes = with_byte(plain.sized(), byte);
        let name = format!("byte {byte:#04x} in the path");
        if byte.is_ascii_graphic() || !byte.is_ascii() {
            // Another path, or none.
            Case::new(name, bytes, Expect::NoHttp(&[400, 404]))
        } else {
            Case::new(name, bytes, Expect::no_http()).closes()
        }
    };
    (0..=u8::MAX).map(case).collect()
}

#[rustfmt::skip]
const OTHER_METHODS: &[&str] = &[
    "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE", "post", "Post", "PROPFIND", "M-SEARCH", "!#$%&'*+-.^_`|~",
];

#[rustfmt::skip]
const NO_METHODS: &[&str] = &[
    "", " ", "PO ST", "\tPOST", "POST\t", "POST\u{b}", "PO\u{0}ST", "POST:", "POST,GET", "(POST)", "P\u{d6}ST",
    "POST /x HTTP/1.1\r\n",
];

fn methods(front: Front) -> Vec<Case> {
    let case = |method: &str, expect: Expect| {
        let mut plain = Plain::new(front);
        method.clone_into(&mut plain.method);
        let shown: String = method.chars().take(20).collect();
        let name = format!("method {shown:?} of {}", method.len());
        Case::new(name, plain.sized(), expect)
    };
    let long = "X".repeat(2000);
    let others = OTHER_METHODS.iter().copied().chain([long.as_str()]);
    let others = others.map(|method| case(method, Expect::refused(ErrorKind::MethodNotAllowed)));
    let none = NO_METHODS.iter();
    let none = none.map(|method| case(method, Expect::no_http()).closes());
    others.chain(none).collect()
}

/// What may stand behind the target, and is no version of HTTP/1.
#[rustfmt::skip]
const NO_VERSIONS: &[&str] = &[
    "", " ", " HTTP", " HTTP/", " HTTP/1", " HTTP/1.", " HTTP/.1", " HTTP/0.9", " HTTP/1.2", " HTTP/2.0", " HTTP/2", " HTTP/3",
    " HTTP/9.9", " HTTP/01.1", " HTTP/1.01", " HTTP/1.1.1", " HTTP/11", " HTTP/1,1", " HTTP/+1.1", " HTTP/-1.1", " HTTP/1.1x",
    " http/1.1", " Http/1.1", " HTTPS/1.1", " ICY/1.1", " HTTP /1.1", " HTTP/ 1.1", " HTTP/1 .1", "  HTTP/1.1", "\tHTTP/1.1",
    " HTTP/1.1 ", " HTTP/1.1\t", " HTTP/1.1\u{0}", " HTTP/\u{ff11}.1",
];

/// A request with this instead of its version.
fn of_version(request: &[u8], version: &str) -> Vec<u8> {
    let right = b" HTTP/1.1";
    let at = memchr::memmem::find(request, right).unwrap_or(0);
    let behind = &request[at + right.len()..];
    [&request[..at], version.as_bytes(), behind].concat()
}

fn versions(front: Front) -> Vec<Case> {
    let none = NO_VERSIONS.iter().map(|version| {
        let bytes = of_version(&Plain::new(front).sized(), version);
        let expect = Expect::NoHttp(&[400, 505]);
        Case::new(format!("version {version:?}"), bytes, expect).closes()
    });
    let (old, chunks) = (Plain::new(front), Plain::new(front));
    let old_chunks = of_version(&chunks.chunked(9), " HTTP/1.0");
    let old = old.served("HTTP/1.0", of_version(&old.sized(), " HTTP/1.0"));
    let old_chunks = Case::new("HTTP/1.0 with chunks", old_chunks, Expect::no_http());
    none.chain([old.closes(), old_chunks.closes()]).collect()
}

/// Line ends that are not CRLF, and whether a lenient reader takes them.
const LINE_ENDS: &[(&str, bool)] = &[
    ("\n", true),
    ("\r", false),
    ("\n\r", false),
    ("\r\r\n", false),
    ("\u{b}", false),
];

/// Each of them instead of each line end of the head.
fn line_ends(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    let sample = Plain::new(front);
    let head = sample.sized().len() - sample.body.len() - b"\r\n\r\n".len();
    let places = memchr::memmem::find_iter(&sample.sized()[..head], b"\r\n").collect::<Vec<_>>();
    for (end, lenient) in LINE_ENDS {
        for at in &places {
            let plain = Plain::new(front);
            let whole = plain.sized();
            let bytes = [&whole[..*at], end.as_bytes(), &whole[at + 2..]].concat();
            let name = format!("{end:?} instead of CRLF at {at}");
            // RFC 9112 lets a recipient take a bare LF for a line end, and hyper does. What goes on from here is framed anew.
            cases.push(if *lenient {
                plain.served(name, bytes)
            } else {
                Case::new(name, bytes, Expect::no_http()).closes()
            });
        }
    }
    cases
}

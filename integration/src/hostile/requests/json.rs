//! The text of a request's JSON: cut, spoilt, followed by something, or in another encoding.

use baton_proto::route::Route;
use rand::Rng;

use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, prompt, routes};
use crate::hostile::seed::chance;

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        cuts(front),
        insertions(front),
        literals(front),
        wholes(front),
        behind(front),
        encodings(front),
        by_chance(front),
    ]
    .concat()
}

/// The text of a good request.
pub(super) fn good(mark: &str) -> String {
    let prompt = prompt(mark);
    format!(r#"{{"model":"tiny","prompt":"{prompt}","max_tokens":4}}"#)
}

/// The same with more members.
pub(super) fn with(mark: &str, members: &str) -> String {
    let good = good(mark);
    format!("{},{members}}}", &good[..good.len() - 1])
}

/// A request whose body is spoilt, and refused unless it is still a JSON object.
fn spoilt(front: Front, name: String, spoil: impl FnOnce(&str) -> Vec<u8>) -> Case {
    let plain = Plain::of(front, Route::Completions, spoil);
    let value = serde_json::from_slice::<serde_json::Value>(&plain.inner);
    if value.is_ok_and(|value| value.is_object()) {
        Case::new(name, plain.sized(), Expect::Judged).may_mean(&plain.mark)
    } else {
        Case::new(name, plain.sized(), Expect::bad())
    }
}

/// The same, where its construction tells that it is none.
pub(super) fn refused<B: Into<bytes::Bytes>>(
    front: Front,
    name: String,
    spoil: impl FnOnce(&str) -> B,
) -> Case {
    let plain = Plain::of(front, Route::Completions, spoil);
    Case::new(name, plain.sized(), Expect::bad()).goes_on()
}

/// A body that is good, though nobody would write it.
pub(super) fn served(front: Front, name: String, write: impl FnOnce(&str) -> String) -> Case {
    let plain = Plain::of(front, Route::Completions, write);
    plain.served(name, plain.sized()).goes_on()
}

/// A body that an engine may take or refuse.
pub(super) fn judged(front: Front, name: String, write: impl FnOnce(&str) -> String) -> Case {
    let plain = Plain::of(front, Route::Completions, write);
    Case::new(name, plain.sized(), Expect::Judged).may_mean(&plain.mark)
}

/// Cut at every byte.
fn cuts(front: Front) -> Vec<Case> {
    let cut = |at| {
        refused(front, format!("JSON cut at {at}"), |mark| {
            good(mark)[..at].to_owned()
        })
    };
    (0..good("case-00000").len()).map(cut).collect()
}

/// What may be inserted.
#[rustfmt::skip]
const INSERTED: &[&[u8]] = &[
    b"\0", b"\x01", b"\x08", b"\x0b", b"\x0c", b"\x1f", b"\x7f", b"\x80", b"\xc2\xa0", b"\xc0\x80", b"\xe0\x80\x80",
    b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xe2\x80\xa8", b",", b":", b"{", b"}", b"[", b"]", b"\"", b"'", b"`", b"\\", b"\\u", b"\\u12", b"\\x41", b"\\0", b"/**/",
    b"//\n", b"#\n", b"\n", b"\t", b"\r",
];

/// Places before which something is inserted; the last one is the end.
#[rustfmt::skip]
const PLACES: &[&str] = &[
    "{\"model", "\"model\"", "odel\"", ":\"tiny", "\"tiny", "iny\"", ",\"prompt", "says", "4}", "}", "",
];

fn insertions(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for inserted in INSERTED {
        for place in PLACES {
            let name = format!("{:?} before {place:?}", String::from_utf8_lossy(inserted));
            cases.push(spoilt(front, name, |mark| {
                let body = good(mark);
                let found = if place.is_empty() {
                    None
                } else {
                    body.find(place)
                };
                let (before, after) = body.split_at(found.unwrap_or(body.len()));
                [before.as_bytes(), inserted, after.as_bytes()].concat()
            }));
        }
    }
    cases
}

/// Values that are nearly JSON.
#[rustfmt::skip]
const NO_LITERALS: &[&str] = &[
    "NaN", "nan", "Infinity", "-Infinity", "inf", "+1", "01", "-01", "1.", ".5", "-.5", "1e", "1e+", "0x1", "0o1", "0b1", "1_000",
    "1,000", "1f", "--1", "-", "True", "False", "None", "TRUE", "nul", "undefined", "'x'", "`x`", "\"\\x\"", "\"\\u12g4\"", "\"\\",
    "\"\n\"", "\"\\\n\"", "[1,]", "[,1]", "[1 2]", "{\"a\":1,}", "{a:1}", "{1:1}", "{\"a\" 1}", "{\"a\":}", "{\"a\"}", "[", "]", "{",
    "(1)", "new Date()", "1;", "/x/", "<x/>", "",
];

/// JSON, but beyond what some readers hold.
const JUDGED_LITERALS: &[&str] = &["1e400", "-1e400", "\"\\ud800\"", "\"\\udc00\\ud800\""];

#[rustfmt::skip]
const LITERALS: &[&str] = &[
    "1e-400", "-0", "-0.0", "0e0", "1E+2", "18446744073709551616", "-9223372036854775809",
    "123456789012345678901234567890123456789012345678901234567890",
    "0.1000000000000000055511151231257827021181583404541015625", "\"\\ud83d\\ude00\"", "\"\\u0000\"", "\"\u{fffe}\"",
    "\"\u{202e}\"", "[[],{}]", " null ", "\"\\/\"",
];

/// Each of them for a key that nobody reads.
fn literals(front: Front) -> Vec<Case> {
    let member = |mark: &str, value: &str| with(mark, &format!("\"x\":{value}"));
    let name = |value: &str| format!("literal {value:?}");
    let none = NO_LITERALS
        .iter()
        .map(|value| refused(front, name(value), |mark| member(mark, value)));
    let unsure = JUDGED_LITERALS
        .iter()
        .map(|value| judged(front, name(value), |mark| member(mark, value)));
    let some = LITERALS
        .iter()
        .map(|value| served(front, name(value), |mark| member(mark, value)));
    none.chain(unsure).chain(some).collect()
}

/// Bodies that are no object.
#[rustfmt::skip]
const NO_OBJECTS: &[&str] = &[
    "null", "true", "false", "0", "-1", "1e9", "\"\"", "\"text\"", "[]", "[1]", "[{}]", "", " ", "\n", "\t\r\n ", "{", "}", "[", "\"", "-",
    "nul", "OK", "<xml/>", "a=b&c=d",
];

/// What the object may be wrapped in.
const WRAPPED: &[(&str, &str)] = &[
    ("[", "]"),
    ("'", "'"),
    ("callback(", ")"),
    ("x=", ";"),
    (")]}',\n", ""),
    ("data: ", "\n\n"),
    ("model=tiny&prompt=", ""),
    ("--x\r\n\r\n", "\r\n--x--\r\n"),
];

fn wholes(front: Front) -> Vec<Case> {
    let on_every_route = |body: &&'static str| {
        let on = |route: Route| {
            let plain = Plain::of(front, route, |_| *body);
            let name = format!("body {body:?} on {route}");
            Case::new(name, plain.sized(), Expect::bad()).goes_on()
        };
        routes().into_iter().map(on).collect::<Vec<_>>()
    };
    let others = NO_OBJECTS.iter().flat_map(on_every_route);
    let wrapped = WRAPPED.iter().map(|(before, after)| {
        let name = format!("between {before:?} and {after:?}");
        refused(front, name, |mark| format!("{before}{}{after}", good(mark)))
    });
    others.chain(wrapped).collect()
}

/// What may not follow the object.
#[rustfmt::skip]
const TAILS: &[&str] = &[
    "x", "{}", ",", "}", "]", "\0", "\0\0", "null", "\"\"", "//", "/**/", "\n{}", "\u{feff}", "\u{b}", "\u{c}", "\u{a0}", "\u{85}",
    "\u{1a}",
];

fn behind(front: Front) -> Vec<Case> {
    let name = |tail: &str| format!("{tail:?} behind the object");
    let tails = TAILS
        .iter()
        .map(|tail| refused(front, name(tail), |mark| good(mark) + tail));
    let twice = refused(front, "the object twice".to_owned(), |mark| {
        good(mark).repeat(2)
    });
    let spaces = ["\n", " ", "\r\n\t "];
    let spaces = spaces.map(|tail| served(front, name(tail), |mark| good(mark) + tail));
    tails.chain([twice]).chain(spaces).collect()
}

/// UTF-16 or UTF-32, perhaps with a byte order mark.
fn wide(text: &str, unit: usize, little: bool, marked: bool) -> Vec<u8> {
    let start = if marked { "\u{feff}" } else { "" };
    let units = start.encode_utf16().chain(text.encode_utf16());
    let bytes = units.flat_map(|number| {
        let mut bytes = vec![0; unit];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        if !little {
            bytes.reverse();
        }
        bytes
    });
    bytes.collect()
}

type Encode = fn(&str) -> Vec<u8>;

const ENCODINGS: &[(&str, Encode)] = &[
    ("UTF-8 with a mark", |text| {
        format!("\u{feff}{text}").into_bytes()
    }),
    ("Latin-1", |text| {
        let accented = text.replace("hello", "h\u{e9}llo");
        let bytes = accented.chars().map(|c| u8::try_from(c).unwrap_or(b'?'));
        bytes.collect()
    }),
    ("UTF-7", |text| text.replace('{', "+AHs-").into_bytes()),
    ("hexadecimal", |text| {
        let digits = text.bytes().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>().into_bytes()
    }),
    ("MessagePack", |text| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        rmp_serde::to_vec(&value).unwrap()
    }),
    ("what begins like gzip", |text| {
        [b"\x1f\x8b\x08\0\0\0\0\0\0\x03", text.as_bytes()].concat()
    }),
];

/// The right JSON in another encoding. Python's `json.loads`, with which engines read, would take some of them.
fn encodings(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for unit in [2, 4] {
        for (little, marked) in [(false, false), (false, true), (true, false), (true, true)] {
            let name = format!(
                "UTF-{}, little-endian: {little}, marked: {marked}",
                unit * 8
            );
            cases.push(refused(front, name, |mark| {
                wide(&good(mark), unit, little, marked)
            }));
        }
    }
    let others = ENCODINGS
        .iter()
        .map(|(name, encode)| refused(front, format!("in {name}"), |mark| encode(&good(mark))));
    cases.extend(others);
    cases
}

/// Bytes changed, removed, doubled or exchanged by chance, anywhere but in the mark.
fn by_chance(front: Front) -> Vec<Case> {
    let mut chance = chance("JSON by chance");
    let body = |mark: &str| {
        let members = r#""temperature":0.5,"stop":["a","b"],"logit_bias":{"1":-2},"stream":false,"user":null"#;
        format!(
            r#"{{"model":"tiny",{members},"prompt":"{}"}}"#,
            prompt(mark)
        )
    };
    let end = body("case-00000").find("case-").unwrap_or(0);
    let case = |number: usize| {
        let (at, other) = (chance.random_range(0..end), chance.random_range(0..end));
        let (way, byte) = (chance.random_range(0..5), chance.random::<u8>());
        let name = format!("chance {number}: way {way} at {at}");
        spoilt(front, name, |mark| {
            let mut bytes = body(mark).into_bytes();
            match way {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                3 => bytes.insert(at, bytes[at]),
                _ => bytes.swap(at, other),
            }
            bytes
        })
    };
    (0..150).map(case).collect()
}

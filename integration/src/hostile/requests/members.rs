//! The members of a request's JSON object: given twice, very many, very deep, of another type.

use baton_proto::ErrorKind;
use baton_proto::route::Route;
use rand::Rng;

use super::json::{good, judged, refused, served, with};
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain};
use crate::hostile::seed::chance;

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        doubled(front),
        other_keys(front),
        deep(front),
        many_and_long(front),
        types(front),
        vec![unknown_model(front)],
    ]
    .concat()
}

/// A key with its characters written as escapes: all of them, or only the one at a place.
pub(super) fn escaped(key: &str, only: Option<usize>, upper: bool) -> String {
    let spell = |(at, character): (usize, char)| {
        let code = u32::from(character);
        if only.is_some_and(|only| only != at) {
            character.to_string()
        } else if upper {
            format!("\\u{code:04X}")
        } else {
            format!("\\u{code:04x}")
        }
    };
    key.chars().enumerate().map(spell).collect()
}

/// Keys, each with another value than it has.
const KEYS: &[(&str, &str)] = &[
    ("model", "\"tiny\""),
    ("prompt", "\"another prompt\""),
    ("max_tokens", "5"),
    ("x", "1"),
];

/// Every key a second time, in every spelling.
fn doubled(front: Front) -> Vec<Case> {
    let mut chance = chance("doubled keys");
    let mut cases = Vec::new();
    for (key, value) in KEYS {
        let at = chance.random_range(0..key.len());
        let spellings = [
            (*key).to_owned(),
            escaped(key, Some(at), false),
            escaped(key, None, true),
        ];
        for spelling in &spellings {
            for (first, second) in [(*key, spelling.as_str()), (spelling.as_str(), *key)] {
                let name = format!("{first:?} and {second:?}");
                cases.push(refused(front, name, |mark| {
                    let body = with(mark, &format!("\"x\":0,\"{second}\":{value}"));
                    body.replacen(&format!("\"{key}\":"), &format!("\"{first}\":"), 1)
                }));
            }
        }
    }
    cases
}

/// Keys that look like one that is there.
#[rustfmt::skip]
const OTHER_KEYS: &[&str] = &[
    "Model", "model ", " model", "model\\u0000", "m\\u00f6del", "\u{ff4d}odel", "mode\\u006c\\u200b",
];

fn other_keys(front: Front) -> Vec<Case> {
    let case = |key: &&str| {
        let name = format!("\"model\" and {key:?}");
        served(front, name, |mark| with(mark, &format!("\"{key}\":\"x\"")))
    };
    OTHER_KEYS.iter().map(case).collect()
}

/// Nesting that must not cost stack. Engines have limits of their own.
fn deep(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in [100, 127, 128, 129, 1000, 60_000] {
        for (open, middle, close) in [("[", "", "]"), ("{\"a\":", "1", "}")] {
            let body = |mark: &str, closes: usize| {
                let value = [&open.repeat(depth), middle, &close.repeat(closes)].concat();
                with(mark, &format!("\"x\":{value}"))
            };
            let name = format!("{depth} times {open:?}");
            cases.push(judged(front, name, |mark| body(mark, depth)));
            for closes in [depth - 1, depth + 1] {
                let name = format!("{depth} times {open:?}, closed {closes} times");
                cases.push(refused(front, name, |mark| body(mark, closes)));
            }
        }
    }
    cases
}

/// Members that must not cost more than they are long.
fn many_and_long(front: Front) -> Vec<Case> {
    let members = |count: usize| {
        let members: Vec<String> = (0..count).map(|at| format!("\"k{at}\":{at}")).collect();
        members.join(",")
    };
    let mut cases = Vec::new();
    for count in [1100, 20_000] {
        let name = format!("{count} keys");
        cases.push(refused(front, name, |mark| with(mark, &members(count))));
    }
    for (name, more) in [
        ("1,000 keys", members(1000)),
        ("a key of 200 kB", format!("\"{}\":1", "k".repeat(200_000))),
        (
            "a value of 200 kB",
            format!("\"user\":\"{}\"", "\\u0041".repeat(33_000)),
        ),
        (
            "200 kB of spaces",
            format!("\"user\":{}null", " ".repeat(200_000)),
        ),
        (
            "a list of 50,000",
            format!("\"x\":[0{}]", ",0".repeat(50_000)),
        ),
    ] {
        cases.push(served(front, name.to_owned(), |mark| with(mark, &more)));
    }
    cases
}

/// Keys that Baton reads or sets.
#[rustfmt::skip]
const READ: &[&str] = &[
    "model", "prompt", "stream", "n", "best_of", "use_beam_search", "prompt_logprobs", "echo", "logprobs", "suffix",
    "prompt_embeds", "stop", "cache_salt", "request_id", "vllm_xargs", "user",
];

#[rustfmt::skip]
const VALUES: &[&str] = &[
    "null", "true", "false", "0", "-1", "1e400", "18446744073709551616", "0.5", "\"\"", "\"tiny\"", "[]", "[null]", "[[]]",
    "[\"a\",1]", "{}", "{\"a\":[{}]}",
];

/// Each of them with a value of every type. The engine judges.
fn types(front: Front) -> Vec<Case> {
    let pairs = READ
        .iter()
        .flat_map(|key| VALUES.iter().map(move |value| (*key, *value)));
    // A stream is no single answer, and no engine is asked for no choice at all in earnest.
    let pairs = pairs.filter(|pair| !matches!(pair, ("stream", "true") | ("n", "0")));
    let case = |(key, value): (&str, &str)| {
        judged(front, format!("{key}: {value}"), |mark| {
            let body = with(mark, &format!("\"z\":\"{mark}\""));
            let body = body.replacen(&format!("\"{key}\":"), "\"y\":", 1);
            format!("{},\"{key}\":{value}}}", &body[..body.len() - 1])
        })
    };
    pairs.map(case).collect()
}

fn unknown_model(front: Front) -> Case {
    let plain = Plain::of(front, Route::Completions, |mark| {
        good(mark).replace("tiny", "nope")
    });
    let name = "an unknown model";
    match front {
        Front::Router => {
            let expect = Expect::refused(ErrorKind::NotFound);
            Case::new(name, plain.sized(), expect).goes_on()
        }
        // The engine knows its models.
        Front::Sidecar => Case::new(name, plain.sized(), Expect::Judged).may_mean(&plain.mark),
    }
}

//! Transfer keys: with them a client could read another prompt's KV or end an engine. They are refused in every spelling,
//! at every place where an engine would find them and on every route; what only looks like one passes untouched.

use baton_proto::route::Route;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::members::escaped;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, prompt, routes};
use crate::hostile::seed::chance;

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [spellings(front), nested(front), lookalikes(front)].concat()
}

#[rustfmt::skip]
const KEYS: &[&str] = &[
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_",
];

/// What a client may put behind such a key.
#[rustfmt::skip]
const VALUES: &[&str] = &[
    "null", "true", "0", "\"\"", "[]", "{}", r#"{"do_remote_prefill":true}"#, r#"{"do_remote_decode":true,"do_remote_prefill":false}"#,
    r#"{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_host":"h","remote_port":1,"tp_size":1}"#,
];

/// A body that is good on every route, with this member before the one at a place.
fn with(mark: &str, place: usize, member: &str) -> String {
    let prompt = prompt(mark);
    let mut members = vec![
        r#""model":"tiny""#.to_owned(),
        format!(r#""prompt":"{prompt}""#),
        format!(r#""messages":[{{"role":"user","content":"{prompt}"}}]"#),
        format!(r#""input":"{prompt}""#),
        r#""max_tokens":4"#.to_owned(),
        r#""metadata":{"kv_transfer_params":1}"#.to_owned(),
    ];
    members.insert(place.min(members.len()), member.to_owned());
    format!("{{{}}}", members.join(","))
}

fn refused(front: Front, route: Route, place: usize, member: &str) -> Case {
    let plain = Plain::of(front, route, |mark| with(mark, place, member));
    let name = format!("{member:?} at {place} on {route}");
    Case::new(name, plain.sized(), Expect::bad()).goes_on()
}

/// Every key, in every spelling, on every route; value, place and spacing by chance.
fn spellings(front: Front) -> Vec<Case> {
    let mut chance = chance("transfer keys");
    let mut cases = Vec::new();
    for key in KEYS {
        let at = chance.random_range(0..key.len());
        let spellings = [
            (*key).to_owned(),
            escaped(key, Some(at), false),
            escaped(key, Some(0), true),
            escaped(key, None, false),
            escaped(key, None, true),
        ];
        for spelling in spellings {
            for route in routes() {
                let value = VALUES.choose(&mut chance).copied().unwrap_or_default();
                let space = ["", " ", "\n\t"].choose(&mut chance).copied();
                let space = space.unwrap_or_default();
                let member = format!("{space}\"{spelling}\"{space}:{space}{value}");
                cases.push(refused(front, route, chance.random_range(0..7), &member));
            }
        }
    }
    cases
}

/// The keys inside an object whose members an engine takes for its own.
fn nested(front: Front) -> Vec<Case> {
    let mut chance = chance("nested transfer keys");
    let mut cases = Vec::new();
    for key in KEYS {
        for outer in ["vllm_xargs".to_owned(), escaped("vllm_xargs", None, true)] {
            for inner in [(*key).to_owned(), escaped(key, None, false)] {
                let route = routes().choose(&mut chance).copied();
                let route = route.unwrap_or(Route::Completions);
                let value = VALUES.choose(&mut chance).copied().unwrap_or_default();
                let member = format!("\"{outer}\":{{\"a\":1,\"{inner}\":{value}}}");
                cases.push(refused(front, route, chance.random_range(0..7), &member));
            }
        }
    }
    for doubled in [r#""a":1,"a":2"#, r#""a":1,"\u0061":2"#] {
        let member = format!("\"vllm_xargs\":{{{doubled}}}");
        cases.push(refused(front, Route::Completions, 3, &member));
    }
    cases
}

/// Names that are nearly a key's.
fn near(key: &str) -> Vec<String> {
    let around = [
        "{} ",
        " {}",
        "{}s",
        "x_{}",
        "{}\\u0000",
        "\\ufeff{}",
        "\\u200b{}",
    ];
    let around = around.map(|form| form.replace("{}", key));
    let swaps = [
        ('_', "-"),
        ('_', ""),
        ('a', "\u{430}"),
        ('p', "\u{ff50}"),
        ('s', "\u{17f}"),
    ];
    let swapped = swaps.map(|(from, to)| key.replace(from, to));
    let upper = [key.to_uppercase()];
    around.into_iter().chain(swapped).chain(upper).collect()
}

/// Other keys and other places. Engines ignore them, and so does Baton.
fn lookalikes(front: Front) -> Vec<Case> {
    let whole = KEYS.iter().filter(|key| !key.starts_with("bootstrap"));
    let begun = ["bootstrap", "Bootstrap_room", "_bootstrap_room"].map(str::to_owned);
    let names = whole.flat_map(|key| near(key)).chain(begun);
    let names = names.map(|name| format!("\"{name}\":{{\"do_remote_prefill\":true}}"));
    let elsewhere = KEYS.iter().flat_map(|key| {
        [
            format!("\"user\":\"{key}\""),
            format!("\"x\":{{\"{key}\":1}}"),
            format!("\"x\":[{{\"{key}\":1}}]"),
            format!("\"vllm_xargs\":{{\"x\":[\"{key}\"]}}"),
            format!("\"vllm_xargs\":[{{\"{key}\":1}}]"),
            format!("\"user\":\"\\\",\\\"{key}\\\":{{}}\""),
        ]
    });
    let served = |member: String| {
        let plain = Plain::of(front, Route::Completions, |mark| with(mark, 5, &member));
        let name = format!("lookalike {member}");
        plain.served(name, plain.sized()).goes_on()
    };
    names.chain(elsewhere).map(served).collect()
}

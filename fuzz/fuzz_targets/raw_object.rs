//! JSON bodies and edits of their top level, against what serde_json makes of the same bytes.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::json::RawObject;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

/// Decoded top-level keys and raw values.
type Members = BTreeMap<String, String>;

fn members(bytes: &[u8]) -> Option<Members> {
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(bytes).ok()?;
    Some(members.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect())
}

/// Edits up to three keys, the object's own and others, which ones and how as `steer` says; returns the text and what it should hold.
fn edited(object: &RawObject<'_>, mut expected: Members, steer: usize) -> (String, Members) {
    let mut keys: Vec<String> = object.keys().map(str::to_owned).collect();
    keys.extend(["stream", "max_tokens", "\"\\\n\u{1f600}"].map(str::to_owned));
    // A key is edited once at most.
    let chosen: BTreeSet<&String> = (0..3).map(|number| &keys[(steer + number * (steer / 64)) % keys.len()]).collect();
    let mut edit = object.edit();
    for (number, key) in chosen.into_iter().enumerate() {
        if steer >> number & 1 == 0 {
            edit = edit.set(key, "[1, {}]");
            expected.insert(key.clone(), "[1, {}]".to_owned());
        } else {
            edit = edit.remove(key);
            expected.remove(key);
        }
    }
    (edit.finish(), expected)
}

fuzz_target!(|data: &[u8]| {
    let Some((steer, body)) = baton_fuzz::steered(data) else { return };
    let known = members(body);
    let object = match RawObject::parse(body) {
        Ok(object) => object,
        Err(bad) => {
            assert!(known.is_none() || bad.to_string().contains("given twice"), "refused without need: {bad}");
            return;
        }
    };
    let known = known.expect("serde_json must accept what RawObject accepts");
    let seen: Members = object.keys().map(|key| (key.to_owned(), object.get(key).unwrap().to_owned())).collect();
    assert_eq!(object.keys().count(), known.len());
    assert_eq!(seen, known);
    assert_eq!(object.edit().finish().as_bytes(), body, "no edit, no change");
    let (text, expected) = edited(&object, known, steer);
    assert_eq!(members(text.as_bytes()), Some(expected), "{text}");
    RawObject::parse(text.as_bytes()).expect("an edited object is an object");
});

//! A comparison finds what it should find, and nothing that a mask allows.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{answers, kind};
use crate::conformance::answer::{Answer, Body, Frame};
use crate::conformance::mask::{self, Part, Rule, When};
use crate::conformance::recording;
use crate::conformance::{events, socket};

#[test]
fn a_request_of_another_kind_is_not_alike() {
    let different = [
        ("c3_plain_1_prefill", "c3_plain_2_decode"),
        ("c3_plain_2_decode", "c3_logprobs3_2_decode"),
        (
            "c2_chat_prefill_both_mt1_mct16",
            "c2_chat_prefill_both_mt16_mct1",
        ),
        ("completion_stream", "chat_stream"),
        ("chat_stream", "pd_chat_2_decode_stream"),
        ("err_stream_side_channel_dead", "completion_stream"),
        ("err_first_use_ok", "err_wrong_engine_id"),
        ("err_wrong_engine_id", "err_too_few_block_ids"),
        ("c1_decode_stop_string", "c1_decode_length_plain"),
        ("c8_cold_P_cold_D_1_prefill", "c8_warm_P_cold_D_1_prefill"),
        ("health", "version"),
    ];
    for (one, other) in different {
        let (then, now) = (recording::named(one), recording::named(other));
        let differences = answers(&then.answer, &now.answer, &[]);
        assert!(!differences.is_empty(), "{one} and {other}");
    }
}

/// The places of a document's leaves, as JSON pointers and as paths.
fn leaves(value: &Value, pointer: &str, path: &[Part], out: &mut Vec<(String, Vec<Part>)>) {
    let mut into = |key: String, part: Part, value: &Value| {
        let path = [path, &[part]].concat();
        leaves(value, &format!("{pointer}/{key}"), &path, out);
    };
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                into(
                    key.replace('~', "~0").replace('/', "~1"),
                    Part::Key(key.clone()),
                    value,
                );
            }
        }
        Value::Array(array) if !array.is_empty() => {
            for (index, value) in array.iter().enumerate() {
                into(index.to_string(), Part::Index(index), value);
            }
        }
        _ => out.push((pointer.to_owned(), path.to_vec())),
    }
}

/// Another value of the same type.
fn altered(value: &Value) -> Value {
    match value {
        Value::Null => json!("no longer null"),
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_f64().unwrap_or_default() + 1.0),
        Value::String(text) => json!(format!("{text}, and more")),
        Value::Array(_) => json!([null]),
        Value::Object(_) => json!({"new": null}),
    }
}

/// The first mask on the way to a place.
fn mask_over(path: &[Part]) -> Option<Rule> {
    let mut prefixes = (0..=path.len()).map(|length| &path[..length]);
    prefixes
        .find_map(|prefix| mask::mask_for(prefix, &[]))
        .map(|mask| mask.rule)
}

/// The logprobs of a whole prompt say nothing that those of an answer do not.
fn is_long(document: Option<&Value>) -> bool {
    document.is_some_and(|document| document.to_string().len() > 20_000)
}

#[test]
fn a_change_is_found_unless_a_mask_is_over_it() {
    let (mut found, mut masked) = (0, 0);
    for recording in recording::all().values() {
        let Some(document) = recording.answer.json() else {
            continue;
        };
        if is_long(Some(document)) {
            continue;
        }
        let mut places = Vec::new();
        leaves(document, "", &[], &mut places);
        // Thousands of numbers of one list say nothing new.
        places.retain(|(_, path)| {
            !path
                .iter()
                .any(|part| matches!(part, Part::Index(index) if *index > 1))
        });
        for (pointer, path) in places {
            let mut changed = recording.answer.clone();
            let Body::Json(body) = &mut changed.body else {
                continue;
            };
            let Some(leaf) = body.pointer_mut(&pointer) else {
                continue;
            };
            let was_null = leaf.is_null();
            *leaf = altered(leaf);
            let differences = answers(&recording.answer, &changed, &[]);
            let over = mask_over(&path);
            match over {
                None => {
                    assert_eq!(differences.len(), 1, "{} {pointer}", recording.name);
                    found += 1;
                }
                Some(Rule::Text | Rule::Number) if !was_null => {
                    assert_eq!(differences, [], "{} {pointer}", recording.name);
                    masked += 1;
                }
                Some(Rule::Text | Rule::Number | Rule::SameShape) => {
                    assert!(!differences.is_empty(), "{} {pointer}", recording.name);
                    found += 1;
                }
                Some(_) => masked += 1,
            }
        }
    }
    assert!(
        found > 2000 && masked > 500,
        "{found} found, {masked} masked"
    );
}

#[test]
fn a_key_that_is_gone_or_new_is_found() {
    for recording in recording::all().values() {
        let Some(Value::Object(object)) = recording.answer.json() else {
            continue;
        };
        if is_long(recording.answer.json()) {
            continue;
        }
        for key in object.keys() {
            let mut less = recording.answer.clone();
            if let Body::Json(Value::Object(object)) = &mut less.body {
                object.remove(key);
            }
            assert_eq!(
                answers(&recording.answer, &less, &[]).len(),
                1,
                "{} {key}",
                recording.name
            );
            assert_eq!(
                answers(&less, &recording.answer, &[]).len(),
                1,
                "{} {key}",
                recording.name
            );
        }
    }
}

#[test]
fn frames_that_are_gone_new_or_in_another_order_are_found() {
    let mut streams = 0;
    for recording in recording::all().values() {
        let Body::Stream(frames) = &recording.answer.body else {
            continue;
        };
        streams += 1;
        let with = |frames: Vec<Frame>| Answer {
            body: Body::Stream(frames),
            ..recording.answer.clone()
        };
        let differ =
            |frames: Vec<Frame>| !answers(&recording.answer, &with(frames), &[]).is_empty();
        assert!(
            differ(frames[..frames.len() - 1].to_vec()),
            "{}: no [DONE]",
            recording.name
        );
        // How many of one kind there are says nothing.
        let lonely = frames
            .get(1)
            .is_none_or(|next| kind(next) != kind(&frames[0]));
        assert!(
            !lonely || differ(frames[1..].to_vec()),
            "{}: no first frame",
            recording.name
        );
        let reversed = frames.iter().rev().cloned().collect();
        assert!(
            frames.len() < 2 || differ(reversed),
            "{}: reversed",
            recording.name
        );
        let error = json!({"error": {"message": "x", "type": "x", "param": null, "code": 500}});
        let more = [frames.as_slice(), &[Frame::Data(error)]].concat();
        assert!(differ(more), "{}: an error more", recording.name);
    }
    assert!(streams > 10, "{streams}");
}

#[test]
fn tokens_may_share_a_chunk() {
    let recording = recording::named("completion_stream");
    let Body::Stream(mut frames) = recording.answer.body.clone() else {
        panic!("no stream");
    };
    // Of the middle two of four.
    frames.remove(1);
    if let Frame::Data(frame) = &mut frames[1] {
        frame["choices"][0]["token_ids"] = json!([723, 61]);
    }
    let merged = Answer {
        body: Body::Stream(frames),
        ..recording.answer.clone()
    };
    assert_eq!(answers(&recording.answer, &merged, &[]), []);
}

#[test]
fn no_mask_is_there_for_nothing() {
    let mut documents: Vec<Value> = recording::all()
        .values()
        .flat_map(|recording| recording.answer.documents())
        .cloned()
        .collect();
    documents.push(json!({"handshake": socket::recorded_handshake("prefill")}));
    let logs = events::recorded();
    let all = logs
        .values()
        .flatten()
        .flatten()
        .flat_map(|batch| &batch.events);
    documents.extend(all.map(|event| json!({"event": event})));
    let mut used: BTreeSet<&str> = BTreeSet::new();
    let every = [
        When::OtherTokenizer,
        When::OtherFlags,
        When::Grammar,
        When::Chunk,
    ];
    for document in &documents {
        visit(document, &mut Vec::new(), &mut |path| {
            for circumstances in [
                &[][..],
                &every[..1],
                &every[1..2],
                &every[2..3],
                &every[3..],
            ] {
                used.extend(mask::mask_for(path, circumstances).map(|mask| mask.at));
            }
        });
    }
    let all: BTreeSet<&str> = mask::MASKS.iter().map(|mask| mask.at).collect();
    assert_eq!(all.difference(&used).collect::<Vec<_>>(), [&""; 0]);
}

fn visit(value: &Value, path: &mut Vec<Part>, see: &mut impl FnMut(&[Part])) {
    see(path);
    let mut into = |part: Part, value: &Value| {
        path.push(part);
        visit(value, path, see);
        path.pop();
    };
    match value {
        Value::Object(object) => object
            .iter()
            .for_each(|(key, value)| into(Part::Key(key.clone()), value)),
        Value::Array(array) => {
            for (index, value) in array.iter().take(3).enumerate() {
                into(Part::Index(index), value);
            }
        }
        _ => {}
    }
}

//! Version skew and broken peers: what a newer peer adds is ignored, what it may leave out is not missed, and anything
//! else is an error and never a panic.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::collections::BTreeSet;

use baton_proto::call::{EngineAnswer, Outcome, PrefillFrame};
use baton_proto::digest::RequestDigest;
use baton_proto::event::{Blocks, KvEvent};
use baton_proto::frame::{BadFrame, from_bytes, to_bytes};
use baton_proto::load::Origin;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::watch::{SidecarState, WatchFrame};
use baton_proto::worker::{EngineKind, Role, Tier};
use baton_proto::{ErrorKind, Retry, Source, Stage};
use rmpv::Value;
use serde::de::DeserializeOwned;

use crate::common::{Sample, samples};

mod common;

/// Samples that are one MessagePack value, as that value.
fn values() -> impl Iterator<Item = (Sample, Value)> {
    samples()
        .into_iter()
        .filter(|sample| sample.bare)
        .map(|sample| {
            let value = rmpv::decode::read_value(&mut &sample.bytes[..]).unwrap();
            (sample, value)
        })
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// What a map holds.
type Members = Vec<(Value, Value)>;

/// Members whose value maps names that an operator or engine chose: there every name is known.
const FREE_MAPS: [&str; 2] = ["facts", "topology"];

/// The maps inside a value that are messages, itself included.
fn messages<'a>(value: &'a mut Value, visit: &mut dyn FnMut(&mut Members)) {
    match value {
        Value::Map(members) => {
            visit(members);
            let fixed = |name: &Value| !name.as_str().is_some_and(|name| FREE_MAPS.contains(&name));
            for (_, inner) in members.iter_mut().filter(|(name, _)| fixed(name)) {
                messages(inner, visit);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| messages(item, visit)),
        _ => {}
    }
}

/// A copy of `value` in which its message number `at` was edited; `None` when there are not so many.
fn with_message_edited(value: &Value, at: usize, edit: impl Fn(&mut Members)) -> Option<Value> {
    let mut copy = value.clone();
    let mut number = 0;
    let mut done = false;
    messages(&mut copy, &mut |members| {
        if number == at {
            edit(members);
            done = true;
        }
        number += 1;
    });
    done.then_some(copy)
}

/// What no message of today has, of every MessagePack type.
fn newer_field() -> (Value, Value) {
    let members = vec![
        ("type".into(), "from_the_future".into()),
        (
            "list".into(),
            Value::Array(vec![
                Value::Nil,
                true.into(),
                (-1).into(),
                u64::MAX.into(),
                0.5.into(),
            ]),
        ),
        ("bytes".into(), Value::Binary(vec![0xff; 300])),
        ("extension".into(), Value::Ext(5, vec![1, 2, 3])),
        (7.into(), Value::Map(Vec::new())),
    ];
    ("newer_field".into(), Value::Map(members))
}

#[test]
fn an_unknown_field_is_ignored_in_every_message() {
    let mut tried = 0;
    for (sample, value) in values() {
        for at in 0.. {
            let Some(first) =
                with_message_edited(&value, at, |members| members.insert(0, newer_field()))
            else {
                break;
            };
            let last =
                with_message_edited(&value, at, |members| members.push(newer_field())).unwrap();
            for newer in [first, last] {
                let got = sample
                    .decode(&encoded(&newer))
                    .unwrap_or_else(|bad| panic!("{}: {bad}\n{newer}", sample.name));
                assert!(got.same, "{} is read as {}", sample.name, got.shown);
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "only {tried} messages tried");
}

/// All that a peer may leave out, by sample. To add to this list is compatible; to take from it breaks older peers.
const OPTIONAL: &[(&str, &[&str])] = &[
    ("claim_full", &["decode_at"]),
    (
        "prefill_call_full",
        &["decode_at", "router", "uncached_tokens"],
    ),
    ("decode_call_full", &["prefill_at"]),
    ("engine_answer", &["content_type"]),
    ("release", &["decode_at"]),
    ("ticket", &["bytes", "prompt_tokens"]),
    ("event_cleared", &["tier"]),
    (
        "load_report",
        &[
            "decode_tokens_per_s",
            "free",
            "handoffs_held",
            "handoffs_pulling",
            "kv_in",
            "prefill_tokens_per_s",
            "quarantined",
            "queued_prefill_tokens",
            "running",
            "seq",
            "stall",
            "waiting",
        ],
    ),
    ("prefill_admitted_ticket", &["ticket"]),
    ("prefill_failed_answer", &["answer"]),
    ("prefill_usage", &["cached_tokens"]),
    ("registration_leave", &["leave"]),
    ("watch_hello", &["incarnation", "info"]),
    (
        "worker_info_legs",
        &[
            "block_size",
            "chat_template_digest",
            "compatibility",
            "context_length",
            "kv_bytes_per_token",
            "legs_only",
            "max_batched_tokens",
            "max_sequences",
            "model_digest",
            "tokenizer_digest",
        ],
    ),
    (
        "worker_info",
        &[
            "block_size",
            "chat_template_digest",
            "compatibility",
            "context_length",
            "kv_bytes_per_token",
            "max_batched_tokens",
            "max_sequences",
            "model_digest",
            "tokenizer_digest",
        ],
    ),
];

/// Names of a sample's own members without which it still decodes.
fn optional_members(sample: &Sample, value: &Value) -> BTreeSet<String> {
    let names = value
        .as_map()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str().unwrap().to_owned());
    let without = |gone: &str| {
        let edit = |members: &mut Members| members.retain(|(name, _)| name.as_str() != Some(gone));
        encoded(&with_message_edited(value, 0, edit).unwrap())
    };
    names
        .filter(|name| sample.decode(&without(name)).is_ok())
        .collect()
}

#[test]
fn exactly_the_optional_fields_may_be_missing() {
    for (sample, value) in values() {
        let optional = optional_members(&sample, &value);
        if let Some((_, listed)) = OPTIONAL.iter().find(|(name, _)| *name == sample.name) {
            assert_eq!(
                optional,
                listed.iter().map(|&field| field.to_owned()).collect(),
                "{}",
                sample.name
            );
        } else {
            // The samples with everything in them stand for those with less.
            let known = |field: &str| OPTIONAL.iter().any(|(_, fields)| fields.contains(&field));
            assert!(
                optional.iter().all(|field| known(field)),
                "{}: {optional:?}",
                sample.name
            );
        }
    }
}

#[test]
fn absent_and_nil_mean_the_same() {
    let mut tried = 0;
    for (sample, value) in values() {
        for at in 0.. {
            let edit = |members: &mut Members| members.retain(|(_, value)| !value.is_nil());
            let Some(without_nil) = with_message_edited(&value, at, edit) else {
                break;
            };
            assert!(
                sample.decode(&encoded(&without_nil)).unwrap().same,
                "{}",
                sample.name
            );
            tried += usize::from(without_nil != value);
        }
    }
    assert!(tried > 5, "only {tried} messages had an absent field");
}

fn reads_as_unknown<T: DeserializeOwned + PartialEq + std::fmt::Debug>(unknown: &T) {
    assert_eq!(
        from_bytes::<T>(&to_bytes(&"from_the_future")).unwrap(),
        *unknown
    );
    assert!(from_bytes::<T>(&to_bytes(&true)).is_err());
    assert!(from_bytes::<T>(&[0xc0]).is_err(), "nil is no word");
}

#[test]
fn an_unknown_word_reads_as_unknown() {
    reads_as_unknown(&EngineKind::Unknown);
    reads_as_unknown(&ErrorKind::Unknown);
    reads_as_unknown(&Origin::Unknown);
    reads_as_unknown(&Outcome::Unknown);
    reads_as_unknown(&Retry::Unknown);
    reads_as_unknown(&Role::Unknown);
    reads_as_unknown(&SidecarState::Unknown);
    reads_as_unknown(&Source::Unknown);
    reads_as_unknown(&Stage::Unknown);
    reads_as_unknown(&Tier::Unknown);
}

#[test]
fn words_on_the_wire_are_those_of_headers_and_labels() {
    fn agree<T: serde::Serialize + Copy>(known: &[T], word: impl Fn(T) -> &'static str) {
        for &value in known {
            assert_eq!(to_bytes(&value), to_bytes(&word(value)));
        }
    }
    agree(ErrorKind::ALL, ErrorKind::word);
    agree(Source::ALL, Source::word);
    agree(Stage::ALL, Stage::word);
    agree(Retry::ALL, Retry::word);
}

#[test]
fn an_unknown_variant_reads_as_unknown_whatever_it_carries() {
    let tag = ("type".into(), "from_the_future".into());
    let contents = [
        vec![],
        vec![newer_field()],
        vec![
            ("seq".into(), Value::Nil),
            ("ticket".into(), 1.into()),
            newer_field(),
        ],
    ];
    for content in contents {
        let tag_first = Value::Map([vec![tag.clone()], content.clone()].concat());
        let tag_last = Value::Map([content, vec![tag.clone()]].concat());
        for newer in [tag_first, tag_last] {
            let bytes = encoded(&newer);
            assert_eq!(
                from_bytes::<WatchFrame>(&bytes).unwrap(),
                WatchFrame::Unknown
            );
            assert_eq!(
                from_bytes::<PrefillFrame>(&bytes).unwrap(),
                PrefillFrame::Unknown
            );
            assert_eq!(from_bytes::<KvEvent>(&bytes).unwrap(), KvEvent::Unknown);
            let members = vec![
                ("type".into(), "event".into()),
                ("seq".into(), 1.into()),
                ("rank".into(), 0.into()),
            ];
            let event = Value::Map([members, vec![("event".into(), newer)]].concat());
            let expected = WatchFrame::Event {
                seq: 1,
                rank: 0,
                event: KvEvent::Unknown,
            };
            assert_eq!(
                from_bytes::<WatchFrame>(&encoded(&event)).unwrap(),
                expected
            );
        }
    }
}

/// The leaves of a value: all but maps and arrays, and not the names in maps.
fn leaves<'a>(value: &'a mut Value, visit: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Map(members) => members
            .iter_mut()
            .for_each(|(_, inner)| leaves(inner, visit)),
        Value::Array(items) => items.iter_mut().for_each(|item| leaves(item, visit)),
        leaf => visit(leaf),
    }
}

fn wrong_for(leaf: &Value) -> Vec<Value> {
    let mut wrong = vec![
        Value::Map(vec![("a".into(), 1.into())]),
        Value::Ext(1, vec![0]),
        Value::Array(vec!["".into(); 3]),
    ];
    match leaf {
        // Nil stands for an absent value of any type, so only what no type takes is wrong for all of them.
        Value::Nil => wrong = vec![Value::Ext(1, vec![0])],
        Value::Boolean(_) => wrong.extend([1.into(), "true".into(), Value::Nil]),
        Value::Integer(_) => wrong.extend([(-1).into(), 0.5.into(), "1".into(), true.into()]),
        Value::F64(_) => wrong.extend(["1".into(), true.into(), Value::Nil]),
        _ => wrong.extend([(-1).into(), 0.5.into(), true.into()]),
    }
    wrong
}

#[test]
fn a_wrong_type_is_an_error() {
    for (sample, value) in values() {
        let mut count = 0;
        leaves(&mut value.clone(), &mut |_| count += 1);
        for at in 0..count {
            let mut number = 0;
            let mut wrong = Vec::new();
            leaves(&mut value.clone(), &mut |leaf| {
                if number == at {
                    wrong = wrong_for(leaf);
                }
                number += 1;
            });
            for replacement in wrong {
                let mut altered = value.clone();
                let mut number = 0;
                leaves(&mut altered, &mut |leaf| {
                    if number == at {
                        *leaf = replacement.clone();
                    }
                    number += 1;
                });
                let got = sample.decode(&encoded(&altered));
                assert!(
                    got.is_err(),
                    "{}: {altered} is read as {}",
                    sample.name,
                    got.unwrap().shown
                );
            }
        }
    }
}

#[test]
fn a_message_of_another_type_is_an_error_or_read_as_unknown() {
    let samples: Vec<_> = values().collect();
    for (reader, _) in &samples {
        for (written, _) in &samples {
            // Whatever comes out, it is a value of the reader's type and encodes again.
            if let Ok(understood) = reader.decode(&written.bytes) {
                assert!(
                    reader.decode(&understood.bytes).is_ok(),
                    "{} as {}",
                    written.name,
                    reader.name
                );
            }
        }
        for scalar in [
            Value::Nil,
            true.into(),
            1.into(),
            0.5.into(),
            Value::Ext(1, vec![0]),
            Value::Map(vec![]),
        ] {
            let got = reader.decode(&encoded(&scalar));
            assert!(
                got.is_err() || reader.name == "load_report" || reader.name == "load_report_bare",
                "{}",
                reader.name
            );
        }
    }
}

#[test]
fn every_cut_is_an_error() {
    for sample in samples().iter().filter(|sample| sample.bare) {
        for cut in 0..sample.bytes.len() {
            assert!(
                sample.decode(&sample.bytes[..cut]).is_err(),
                "{} cut at {cut}",
                sample.name
            );
        }
    }
}

#[test]
fn bytes_are_read_from_every_form_a_writer_may_choose() {
    fn forms(bytes: &[u8]) -> [Vec<u8>; 3] {
        let text = Value::String(std::str::from_utf8(bytes).unwrap().into());
        let array = Value::Array(bytes.iter().map(|&byte| byte.into()).collect());
        [Value::Binary(bytes.to_vec()), text, array].map(|form| encoded(&form))
    }
    let text = b"{\"a\": 1, \"b\": 2}";
    for form in forms(text) {
        assert_eq!(
            from_bytes::<TransferMetadata>(&form).unwrap().as_bytes(),
            text
        );
        assert_eq!(
            to_bytes(&from_bytes::<Blocks>(&form).unwrap()),
            forms(text)[0]
        );
    }
    let digest = b"0123456789abcdef0123456789abcdef";
    for form in forms(digest) {
        assert_eq!(
            from_bytes::<RequestDigest>(&form).unwrap().as_bytes(),
            digest
        );
    }
    for wrong_length in [&digest[..31], &digest.repeat(2)] {
        for form in forms(wrong_length) {
            assert!(from_bytes::<RequestDigest>(&form).is_err());
        }
    }
    for form in forms(&text[..15]) {
        assert!(
            from_bytes::<Blocks>(&form).is_err(),
            "no whole number of hashes"
        );
    }
    let body = ("body".into(), Value::String("plain".into()));
    let answer = Value::Map(vec![("status".into(), 400.into()), body]);
    let expected = EngineAnswer {
        status: 400,
        content_type: None,
        body: "plain".into(),
    };
    assert_eq!(
        from_bytes::<EngineAnswer>(&encoded(&answer)).unwrap(),
        expected
    );
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        let tag_and_name = [
            &[0x82][..],
            &to_bytes(&"type"),
            &to_bytes(&"from_the_future"),
            &to_bytes(&"x"),
        ]
        .concat();
        [&tag_and_name[..], &vec![0x91; depth], &[0xc0]].concat()
    };
    assert_eq!(
        from_bytes::<WatchFrame>(&nested(50)).unwrap(),
        WatchFrame::Unknown
    );
    for hostile in [100, 1000, 1_000_000] {
        assert!(
            matches!(
                from_bytes::<WatchFrame>(&nested(hostile)),
                Err(BadFrame::Content(_))
            ),
            "{hostile}"
        );
    }
    let bare = [&[0x81][..], &to_bytes(&"x"), &vec![0x91; 1_000_000]].concat();
    assert!(from_bytes::<Ticket>(&bare).is_err());
}

//! One test for each form of a batch, and in [`faults`] for what is no form of one. Bodies are written as JSON, `"hex:…"` standing for bytes as in the
//! recordings.

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::{BlockEvent, Content, EngineHash, Stored, Told};
use rmpv::Value;
use serde_json::json;

use super::decoder::Decoder;
use super::oddity::Oddity;

mod faults;

fn msgpack(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Nil,
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap()),
        },
        Json::String(text) => match text.strip_prefix("hex:") {
            Some(hex) => {
                let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                Value::Binary((0..hex.len()).step_by(2).map(byte).collect())
            }
            None => Value::from(text.as_str()),
        },
        Json::Array(values) => Value::Array(values.iter().map(msgpack).collect()),
        Json::Object(members) => {
            let pairs = members.iter();
            Value::Map(
                pairs
                    .map(|(key, value)| (Value::from(key.as_str()), msgpack(value)))
                    .collect(),
            )
        }
    }
}

fn encode(json: &serde_json::Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &msgpack(json)).unwrap();
    bytes
}

/// What a batch of one event was decoded to, and what was strange.
fn decoded(event: &serde_json::Value, check: impl FnOnce(&[BlockEvent<'_>])) -> Vec<(Oddity, u64)> {
    let payload = encode(&json!([1.5, [event], 3]));
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&payload).unwrap();
    assert_eq!((batch.time, batch.rank), (1.5, Some(3)));
    check(&batch.events().collect::<Vec<_>>());
    batch.oddities.iter().collect()
}

fn stored_and_told<'a>(events: &[BlockEvent<'a>]) -> (Stored<'a>, Told<'a>) {
    match events {
        [BlockEvent::Stored(stored)] => match stored.content {
            Content::Told(told) => (*stored, told),
            Content::Named => panic!("only named: {stored:?}"),
        },
        _ => panic!("not one stored event: {events:?}"),
    }
}

fn plain() -> serde_json::Value {
    json!({"type": "BlockStored", "block_hashes": [10, 11], "parent_block_hash": 9, "token_ids": [1, 200, 70_000, 7],
        "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [null, null], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention"})
}

fn with(changes: serde_json::Value) -> serde_json::Value {
    let mut event = plain();
    let serde_json::Value::Object(changes) = changes else {
        panic!("changes are an object");
    };
    for (key, value) in changes {
        event[key] = value;
    }
    event
}

fn without(keys: &[&str]) -> serde_json::Value {
    let mut event = plain();
    for key in keys {
        event.as_object_mut().unwrap().remove(*key).unwrap();
    }
    event
}

fn is_plain(events: &[BlockEvent<'_>]) {
    let (stored, told) = stored_and_told(events);
    assert_eq!(stored.hashes, [EngineHash(10), EngineHash(11)]);
    assert_eq!(
        (stored.tier, stored.group, stored.whole_prefix),
        (Tier::Device, 0, true)
    );
    assert_eq!(told.parent, Some(EngineHash(9)));
    assert_eq!(told.tokens, [1, 200, 70_000, 7]);
    assert_eq!((told.block_size, told.lora, told.salt), (2, "", ""));
    assert_eq!((told.items, told.understood), (&[][..], 2));
}

#[test]
fn maps() {
    assert_eq!(decoded(&plain(), is_plain), []);
    let removed =
        json!({"type": "BlockRemoved", "block_hashes": [5, 6], "medium": "CPU", "group_idx": 2});
    let oddities = decoded(&removed, |events| match events {
        [BlockEvent::Removed(removed)] => {
            assert_eq!(removed.hashes, [EngineHash(5), EngineHash(6)]);
            assert_eq!((removed.tier, removed.group), (Tier::Host, 2));
        }
        _ => panic!("{events:?}"),
    });
    assert_eq!(oddities, []);
    let cleared =
        |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Cleared { tier: None }]);
    assert_eq!(decoded(&json!({"type": "AllBlocksCleared"}), cleared), []);
}

#[test]
fn arrays_of_older_versions() {
    let full = json!([
        "BlockStored",
        [10, 11],
        9,
        [1, 200, 70_000, 7],
        2,
        null,
        "GPU",
        null,
        [null, null],
        0,
        "full_attention",
        null,
        "LOCAL",
        null,
        "session"
    ]);
    assert_eq!(decoded(&full, is_plain), []);
    // Before `medium`, and what stays of it when trailing defaults are left out.
    let short = json!(["BlockStored", [10, 11], 9, [1, 200, 70_000, 7], 2, null]);
    assert_eq!(decoded(&short, is_plain), [(Oddity::UntoldKeys, 2)]);
    for removed in [
        json!(["BlockRemoved", [5]]),
        json!(["BlockRemoved", [5], "GPU", 0, null, null]),
    ] {
        let oddities = decoded(&removed, |events| {
            assert!(matches!(events, [BlockEvent::Removed(removed)]
            if removed.hashes == [EngineHash(5)] && removed.tier == Tier::Device))
        });
        assert_eq!(oddities, []);
    }
    let cleared =
        |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Cleared { tier: None }]);
    assert_eq!(decoded(&json!(["AllBlocksCleared"]), cleared), []);
    assert_eq!(
        decoded(&json!(["AllBlocksCleared", 1, [2]]), cleared),
        [(Oddity::UnknownField, 2)]
    );
    // An adapter of which only the number is told is in a namespace that nobody knows.
    let numbered = json!(["BlockStored", [10], null, [1, 2], 2, 7, "GPU"]);
    let oddities = decoded(&numbered, |events| {
        assert_eq!(stored_and_told(events).1.understood, 0)
    });
    assert_eq!(oddities, []);
}

#[test]
fn batches_as_maps_and_without_a_rank() {
    let mut decoder = Decoder::default();
    for (batch, rank) in [
        (
            json!({"ts": 2, "events": [plain()], "data_parallel_rank": 1}),
            Some(1),
        ),
        (json!({"events": [plain()], "ts": 2.0}), None),
        (json!([2, [plain()]]), None),
        (json!([2, [plain()], null]), None),
    ] {
        let payload = encode(&batch);
        let batch = decoder.decode(&payload).unwrap();
        assert_eq!((batch.time, batch.rank), (2.0, rank));
        is_plain(&batch.events().collect::<Vec<_>>());
    }
    let payload = encode(&json!([2, [], "zero", {"more": [1]}]));
    let batch = decoder.decode(&payload).unwrap();
    let oddities: Vec<_> = batch.oddities.iter().collect();
    assert_eq!(
        oddities,
        [(Oddity::UnknownField, 1), (Oddity::FieldType, 1)]
    );
}

#[test]
fn several_events_keep_their_own_numbers() {
    let events = [
        plain(),
        json!({"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}),
        plain(),
    ];
    let payload = encode(&json!([1, events, 0]));
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&payload).unwrap();
    let events: Vec<_> = batch.events().collect();
    is_plain(&events[..1]);
    assert!(matches!(events[1], BlockEvent::Removed(removed) if removed.hashes == [EngineHash(5)]));
    is_plain(&events[2..]);
}

#[test]
fn a_block_has_one_key_in_every_form_of_hash() {
    let digest = "hex:00112233445566778899aabbccddeeff00112233445566770102030405060708";
    let number = 0x0102_0304_0506_0708u64;
    for (form, key) in [
        (json!(digest), number),
        (json!(number), number),
        (json!("hex:0102"), 0x0102),
        (json!(-1), u64::MAX),
        (json!(u64::MAX), u64::MAX),
    ] {
        let event = with(json!({"block_hashes": [form, form], "parent_block_hash": form}));
        let oddities = decoded(&event, |events| {
            let (stored, told) = stored_and_told(events);
            assert_eq!(stored.hashes, [EngineHash(key); 2]);
            assert_eq!(told.parent, Some(EngineHash(key)));
        });
        assert_eq!(oddities, []);
    }
}

#[test]
fn tokens_of_every_width() {
    let tokens = [0, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
    let mut payload = encode(&json!([1, [with(json!({"token_ids": tokens}))], 0]));
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&payload).unwrap();
    assert_eq!(
        stored_and_told(&batch.events().collect::<Vec<_>>())
            .1
            .tokens,
        tokens
    );
    // The same number in more bytes than it needs is the same number.
    let narrow = [0x92, 0x07, 0x07];
    let wide = [
        0x92, 0xcf, 0, 0, 0, 0, 0, 0, 0, 7, 0xd3, 0, 0, 0, 0, 0, 0, 0, 7,
    ];
    payload = encode(&json!([1, [with(json!({"token_ids": [7, 7]}))], 0]));
    let at = payload
        .windows(3)
        .position(|window| window == narrow)
        .unwrap();
    payload.splice(at..at + 3, wide);
    let batch = decoder.decode(&payload).unwrap();
    assert_eq!(
        stored_and_told(&batch.events().collect::<Vec<_>>())
            .1
            .tokens,
        [7, 7]
    );
}

#[test]
fn media_and_tiers() {
    for (medium, tier) in [
        (json!(null), Tier::Device),
        (json!("GPU"), Tier::Device),
        (json!("CPU"), Tier::Host),
        (json!("cpu"), Tier::Host),
        (json!("CPU_PINNED"), Tier::Host),
        (json!("DISK"), Tier::Disk),
        (json!("STORAGE"), Tier::External),
        (json!("EXTERNAL"), Tier::External),
    ] {
        let oddities = decoded(&with(json!({"medium": medium})), |events| {
            assert_eq!(stored_and_told(events).0.tier, tier);
        });
        assert_eq!(oddities, []);
    }
    let tape = with(json!({"medium": "TAPE"}));
    assert_eq!(
        decoded(&tape, |events| assert_eq!(events, [])),
        [(Oddity::UnknownMedium, 1)]
    );
    let strange = with(json!({"medium": 1}));
    let unreadable = |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Unreadable]);
    assert_eq!(decoded(&strange, unreadable), [(Oddity::FieldType, 1)]);
}

#[test]
fn kinds_of_attention() {
    for (kind, whole) in [
        (json!("full_attention"), true),
        (json!("mla_attention"), true),
        (json!("one_of_next_year"), true),
        (json!(null), true),
        (json!("sliding_window"), false),
        (json!("mamba"), false),
    ] {
        decoded(
            &with(json!({"kv_cache_spec_kind": kind, "group_idx": 4})),
            |events| {
                let (stored, _) = stored_and_told(events);
                assert_eq!((stored.whole_prefix, stored.group), (whole, 4));
            },
        );
    }
}

/// Namespace, items as (block, identifier, offset) and how many blocks are understood.
type Identity = (&'static str, Vec<(usize, &'static str, i32)>, usize);

#[test]
fn extra_keys_are_told_apart_by_form_and_place() {
    let begins = json!(null);
    let goes_on = json!(9);
    let cases: &[(&serde_json::Value, &str, serde_json::Value, Identity)] = &[
        (&begins, "", json!([null, null]), ("", vec![], 2)),
        (
            &begins,
            "",
            json!([["tenant"], null]),
            ("tenant", vec![], 2),
        ),
        (&begins, "ada", json!([["ada"], ["ada"]]), ("", vec![], 2)),
        (
            &begins,
            "ada",
            json!([["ada", "tenant"], ["ada"]]),
            ("tenant", vec![], 2),
        ),
        (
            &begins,
            "ada",
            json!([["ada", "ada"], ["ada"]]),
            ("ada", vec![], 2),
        ),
        (
            &begins,
            "",
            json!([[["cat", 1]], [["cat", -1], ["dog", 0]]]),
            ("", vec![(0, "cat", 1), (1, "cat", -1), (1, "dog", 0)], 2),
        ),
        (
            &begins,
            "ada",
            json!([["ada", ["cat", 1], "tenant"], null]),
            ("tenant", vec![(0, "cat", 1)], 2),
        ),
        // A text that is neither adapter nor salt: an image's identifier in versions before offsets, perhaps.
        (&begins, "", json!([null, ["cat"]]), ("", vec![], 1)),
        (&goes_on, "", json!([["cat"], null]), ("", vec![], 0)),
        (
            &begins,
            "",
            json!([["tenant", "cat"], null]),
            ("tenant", vec![], 0),
        ),
        // Prompt embeddings, and what nobody knows yet.
        (&begins, "", json!([["hex:0011"], null]), ("", vec![], 0)),
        (
            &begins,
            "",
            json!([null, [{"cache_salt": "tenant"}]]),
            ("", vec![], 1),
        ),
        (&begins, "", json!([null, [["cat", 1, 2]]]), ("", vec![], 1)),
        (
            &begins,
            "",
            json!([[["cat", 3_000_000_000u32]], null]),
            ("", vec![], 0),
        ),
        (&begins, "", json!([null, "cat"]), ("", vec![], 1)),
        // As many entries as blocks, or none is believed.
        (&begins, "", json!([null]), ("", vec![], 0)),
        (&begins, "", json!([null, null, null]), ("", vec![], 0)),
    ];
    for (parent, lora, keys, (salt, items, understood)) in cases {
        let lora_name = (!lora.is_empty()).then_some(*lora);
        let event = with(
            json!({"parent_block_hash": parent, "lora_name": lora_name, "lora_id": lora_name.map(|_| 1),
            "extra_keys": keys}),
        );
        let oddities = decoded(&event, |events| {
            let (_, told) = stored_and_told(events);
            let got = told.items.iter();
            let got: Vec<_> = got
                .map(|of| (of.block, of.item.identifier, of.item.offset))
                .collect();
            assert_eq!(
                (told.lora, told.salt, told.understood),
                (*lora, *salt, *understood),
                "{keys}"
            );
            assert_eq!(got[..items.len()], items[..], "{keys}");
        });
        assert_eq!(oddities, []);
    }
}

#[test]
fn offloaded_blocks_are_named_only() {
    let offloaded = json!({"type": "BlockStored", "block_hashes": [10], "parent_block_hash": null, "token_ids": [],
        "block_size": 0, "lora_id": null, "medium": "CPU", "lora_name": null, "group_idx": 0, "locality": "LOCAL"});
    let named = |events: &[BlockEvent<'_>]| match events {
        [BlockEvent::Stored(stored)] => {
            assert_eq!((stored.content, stored.tier), (Content::Named, Tier::Host));
        }
        _ => panic!("{events:?}"),
    };
    assert_eq!(decoded(&offloaded, named), []);
    // With tokens but without keys they could be anybody's.
    let mut telling = without(&["extra_keys"]);
    telling["medium"] = json!("CPU");
    assert_eq!(decoded(&telling, named), []);
}

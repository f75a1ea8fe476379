//! One test for each form of an event, and for each way in which a namespace is told, or is not.

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::{BlockEvent, Content, EngineHash, Stored, Told};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::Decoder;
use baton_kv_events::oddity::Oddity;

fn msgpack(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap()),
        },
        Json::String(text) => Value::from(text.as_str()),
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

/// What a batch of one event was decoded to, and what was strange.
fn decoded(event: &Json, check: impl FnOnce(&[BlockEvent<'_>])) -> Vec<(Oddity, u64)> {
    let mut payload = Vec::new();
    let batch = msgpack(&json!([1.5, [event], 3]));
    rmpv::encode::write_value(&mut payload, &batch).unwrap();
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

/// Tokens and names of the first two pages that SGLang 0.5.23 published in the recordings, plain, with the salt that they
/// have, with an extra key, and with both; the latter in the format `dynamo`.
const TOKENS: [u32; 8] = [10, 11, 12, 13, 14, 15, 16, 17];
const PLAIN: [i64; 2] = [5_428_511_633_061_281_808, -13_757_886_277_339_546];
const SALTED: [i64; 2] = [-3_641_146_776_464_902_881, 1_289_119_750_039_776_216];
const SALTED_DYNAMO: [i64; 2] = [-2_307_230_328_993_397_024, -4_020_185_845_808_461_055];
const KEYED_DYNAMO: [i64; 2] = [-6_501_984_219_368_671_670, -4_049_001_961_773_545_265];
const BOTH_DYNAMO: [i64; 2] = [-8_150_065_910_109_066_617, -7_917_458_729_845_202_954];

fn names(hashes: [i64; 2]) -> [EngineHash; 2] {
    hashes.map(|hash| EngineHash(hash.cast_unsigned()))
}

fn stored(hashes: [i64; 2], more: &Json) -> Json {
    let mut event = json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": null,
        "token_ids": TOKENS, "block_size": 4, "lora_id": null, "medium": "GPU"});
    for (key, value) in more.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

fn is_plain(events: &[BlockEvent<'_>]) {
    let (stored, told) = stored_and_told(events);
    assert_eq!(stored.hashes, names(PLAIN));
    assert_eq!(
        (stored.tier, stored.group, stored.whole_prefix),
        (Tier::Device, 0, true)
    );
    assert_eq!((told.parent, told.tokens), (None, &TOKENS[..]));
    assert_eq!((told.block_size, told.lora, told.salt), (4, "", ""));
    assert_eq!((told.items, told.understood), (&[][..], 2));
}

#[test]
fn maps_arrays_and_what_was_between() {
    assert_eq!(decoded(&stored(PLAIN, &json!({})), is_plain), []);
    assert_eq!(
        decoded(&stored(PLAIN, &json!({"session_id": "s"})), is_plain),
        []
    );
    let array = json!(["BlockStored", PLAIN, null, TOKENS, 4, null, "GPU"]);
    assert_eq!(decoded(&array, is_plain), []);
    let oldest = json!(["BlockStored", PLAIN, null, TOKENS, 4, null]);
    assert_eq!(decoded(&oldest, is_plain), []);
    let between = |more: Json| json!(["BlockStored", PLAIN, null, TOKENS, 4, null, "GPU", more]);
    for more in [json!(null), json!({}), json!({"session_id": "s"})] {
        assert_eq!(decoded(&between(more), is_plain), []);
    }
    // Fields of fields, and a map within the map, are of no version that is known.
    for more in [json!(7), json!({"colour": {"deep": {"er": 1}}})] {
        assert_eq!(
            decoded(&between(more), is_plain),
            [(Oddity::UnknownField, 1)]
        );
    }
    let salted =
        json!(["BlockStored", SALTED, null, TOKENS, 4, null, "GPU", {"cache_salt": "saltY"}]);
    let oddities = decoded(&salted, |events| {
        let (_, told) = stored_and_told(events);
        assert_eq!((told.salt, told.understood), ("saltY", 2));
    });
    assert_eq!(oddities, []);
}

#[test]
fn removals_and_resets() {
    for (removed, tier) in [
        (
            json!({"type": "BlockRemoved", "block_hashes": [5, -1], "medium": "GPU"}),
            Tier::Device,
        ),
        (
            json!({"type": "BlockRemoved", "block_hashes": [5, -1]}),
            Tier::Device,
        ),
        (json!(["BlockRemoved", [5, -1]]), Tier::Device),
        (json!(["BlockRemoved", [5, -1], "CPU_PINNED"]), Tier::Host),
        (json!(["BlockRemoved", [5, -1], "DISK"]), Tier::Disk),
        (json!(["BlockRemoved", [5, -1], "EXTERNAL"]), Tier::External),
    ] {
        let oddities = decoded(&removed, |events| match events {
            [BlockEvent::Removed(removed)] => {
                assert_eq!(removed.hashes, [EngineHash(5), EngineHash(u64::MAX)]);
                assert_eq!((removed.tier, removed.group), (tier, 0));
            }
            _ => panic!("{events:?}"),
        });
        assert_eq!(oddities, []);
    }
    let cleared =
        |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Cleared { tier: None }]);
    for event in [
        json!({"type": "AllBlocksCleared"}),
        json!(["AllBlocksCleared"]),
    ] {
        assert_eq!(decoded(&event, cleared), []);
    }
}

#[test]
fn a_name_that_nothing_told_explains_is_of_a_hidden_namespace() {
    let salt = json!({"cache_salt": "saltY"});
    let other = json!({"cache_salt": "another"});
    let adapter = json!({"lora_name": "ada"});
    let unnamed = json!({"lora_id": 3});
    let behind = json!({"parent_block_hash": 9});
    let none = json!({});
    for (hashes, more, understood) in [
        (PLAIN, &none, 2),
        (SALTED, &salt, 2),
        (SALTED_DYNAMO, &salt, 2),
        (KEYED_DYNAMO, &none, 0),
        (BOTH_DYNAMO, &salt, 0),
        (PLAIN, &salt, 0),
        (SALTED, &none, 0),
        (SALTED, &other, 0),
        (SALTED_DYNAMO, &none, 0),
        (PLAIN, &unnamed, 0),
        // Whose name it has: the mirror knows of the block before, and of an adapter nothing more can be known.
        (PLAIN, &behind, 2),
        (KEYED_DYNAMO, &adapter, 2),
    ] {
        decoded(&stored(hashes, more), |events| {
            let (stored, told) = stored_and_told(events);
            assert_eq!(stored.hashes, names(hashes));
            assert_eq!(told.understood, understood, "{hashes:?} {more}");
        });
    }
}

#[test]
fn pairs_of_tokens_are_no_prefix_of_a_prompt() {
    let pairs: Vec<[u32; 2]> = TOKENS.iter().map(|token| [*token, token + 1]).collect();
    let event = stored(PLAIN, &json!({ "token_ids": pairs }));
    let oddities = decoded(&event, |events| {
        let (_, told) = stored_and_told(events);
        assert_eq!((told.tokens, told.understood), (&TOKENS[..], 0));
    });
    assert_eq!(oddities, []);
    for strange in [
        json!([[1, 2], 3]),
        json!([[1, 2, 3]]),
        json!([[1, "a"]]),
        json!([[1, -2]]),
    ] {
        let event = stored(PLAIN, &json!({ "token_ids": strange }));
        let named = |events: &[BlockEvent<'_>]| {
            assert!(
                matches!(events, [BlockEvent::Stored(stored)] if stored.content == Content::Named)
            );
        };
        assert_eq!(
            decoded(&event, named),
            [(Oddity::FieldType, 1)],
            "{strange}"
        );
    }
}

#[test]
fn what_is_missing_or_strange_is_counted_and_costs_no_more_than_it_must() {
    let unreadable = |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Unreadable]);
    let named = |events: &[BlockEvent<'_>]| {
        assert!(matches!(events, [BlockEvent::Stored(stored)] if stored.content == Content::Named));
    };
    let nothing = |events: &[BlockEvent<'_>]| assert_eq!(events, []);
    let with = |more: Json| stored(PLAIN, &more);
    assert_eq!(
        decoded(&with(json!({"block_hashes": ["a"]})), unreadable),
        [(Oddity::FieldType, 1)]
    );
    assert_eq!(
        decoded(&with(json!({"token_ids": null})), named),
        [(Oddity::MissingField, 1)]
    );
    assert_eq!(
        decoded(&with(json!({"parent_block_hash": "x"})), named),
        [(Oddity::FieldType, 1)]
    );
    assert_eq!(
        decoded(&with(json!({"medium": "TAPE"})), nothing),
        [(Oddity::UnknownMedium, 1)]
    );
    assert_eq!(
        decoded(&with(json!({"colour": [1]})), is_plain),
        [(Oddity::UnknownField, 1)]
    );
    let salt = with(json!({"cache_salt": 7}));
    let oddities = decoded(&salt, |events| {
        assert_eq!(stored_and_told(events).1.understood, 0)
    });
    assert_eq!(oddities, [(Oddity::FieldType, 1)]);
    let newer = json!({"type": "BlockPinned", "block_hashes": [1]});
    assert_eq!(decoded(&newer, nothing), [(Oddity::UnknownEvent, 1)]);
}

//! What an engine should not say, or does not say yet.

use baton_sidecar_core::mirror::event::{BlockEvent, Content, Stored};
use proptest::prelude::*;
use serde_json::json;

use super::{decoded, encode, is_plain, plain, stored_and_told, with, without};
use crate::events::Malformed;
use crate::events::decoder::Decoder;
use crate::events::oddity::Oddity;

#[test]
fn what_is_unknown_is_passed_over_and_counted() {
    let nothing = |events: &[BlockEvent<'_>]| assert_eq!(events, []);
    for unknown in [
        json!({"type": "BlockPinned", "block_hashes": [1]}),
        json!(["BlockPinned", [1], {"deep": [[[1]]]}]),
        json!({}),
        json!([]),
        json!(null),
        json!("BlockStored"),
        json!([["BlockStored"], [1]]),
    ] {
        let oddities = decoded(&unknown, nothing);
        assert!(
            oddities.contains(&(Oddity::UnknownEvent, 1)),
            "{unknown}: {oddities:?}"
        );
    }
    let newer = with(
        json!({"colour": {"red": [1, 2]}, "event_version": 1, "session_id": "s", "ownership": "disk-0"}),
    );
    assert_eq!(decoded(&newer, is_plain), [(Oddity::UnknownField, 2)]);
}

#[test]
fn what_is_missing_or_strange_is_left_out_by_degrees() {
    let unreadable = |events: &[BlockEvent<'_>]| assert_eq!(events, [BlockEvent::Unreadable]);
    let named = |events: &[BlockEvent<'_>]| {
        assert!(matches!(
            events,
            [BlockEvent::Stored(Stored {
                content: Content::Named,
                ..
            })]
        ))
    };
    let not_understood =
        |events: &[BlockEvent<'_>]| assert_eq!(stored_and_told(events).1.understood, 0);
    let missing = [(Oddity::MissingField, 1)];
    let strange = [(Oddity::FieldType, 1)];
    assert_eq!(decoded(&without(&["block_hashes"]), unreadable), missing);
    assert_eq!(
        decoded(&json!({"type": "BlockRemoved"}), unreadable),
        missing
    );
    assert_eq!(decoded(&without(&["token_ids"]), named), missing);
    assert_eq!(decoded(&without(&["block_size"]), named), missing);
    for hashes in [json!(7), json!(["ten"]), json!([1, null]), json!(["hex:"])] {
        assert_eq!(
            decoded(&with(json!({"block_hashes": hashes})), unreadable),
            strange
        );
    }
    assert_eq!(
        decoded(&with(json!({"group_idx": "first"})), unreadable),
        strange
    );
    // SGLang's tokens of a speculative tree are pairs.
    for tokens in [
        json!([[1, 2], [3, 4]]),
        json!([1, -2]),
        json!([1, 1u64 << 32]),
        json!({"a": [1]}),
    ] {
        assert_eq!(decoded(&with(json!({"token_ids": tokens})), named), strange);
    }
    assert_eq!(decoded(&with(json!({"block_size": -1})), named), strange);
    assert_eq!(
        decoded(&with(json!({"parent_block_hash": [1]})), named),
        strange
    );
    assert_eq!(
        decoded(
            &with(json!({"lora_name": {"cache_salt": "t"}})),
            not_understood
        ),
        strange
    );
    assert_eq!(
        decoded(&with(json!({"extra_keys": "none"})), not_understood),
        strange
    );
    assert_eq!(
        decoded(&with(json!({"kv_cache_spec_kind": 3})), is_plain),
        strange
    );
}

fn malformed(payload: &[u8]) -> Malformed {
    let mut decoder = Decoder::default();
    let outcome = decoder.decode(payload).map(|batch| format!("{batch:?}"));
    outcome.unwrap_err()
}

#[test]
fn what_is_no_batch_is_one_error() {
    for (json, what) in [
        (json!(null), "neither an array nor a map"),
        (json!("[]"), "neither an array nor a map"),
        (json!([]), "a batch without a time"),
        (json!([1]), "a batch without events"),
        (json!({"ts": 1}), "a batch without events"),
        (json!(["now", []]), "a time that is no number"),
        (
            json!([1, {"type": "BlockStored"}]),
            "events that are no array",
        ),
    ] {
        assert_eq!(malformed(&encode(&json)).what, what, "{json}");
    }
    let good = encode(&json!([1, [plain()], 0]));
    let and_more = [&good[..], &[0xc0]].concat();
    assert_eq!(
        malformed(&and_more),
        Malformed {
            what: "something follows the batch",
            at: good.len()
        }
    );
    for length in 0..good.len() {
        malformed(&good[..length]);
    }
    assert_eq!(
        malformed(&[0x92, 0xc1]).what,
        "a marker that does not exist"
    );
    assert_eq!(
        malformed(&[0x92, 0x01, 0x91, 0x81, 0x01, 0x01]).what,
        "a key that is no text"
    );
}

/// Lengths that are claimed and not there: believed, some of them would ask for 16 GiB.
#[test]
fn claimed_lengths_are_not_believed() {
    let event = |field: &str, value: &[u8]| {
        let mut payload = vec![0x92, 0x01, 0x91, 0x82, 0xa4];
        payload.extend(b"type\xabBlockStored");
        payload.push(0xa0 | u8::try_from(field.len()).unwrap());
        payload.extend(field.as_bytes());
        payload.extend(value);
        payload
    };
    for field in [
        "block_hashes",
        "token_ids",
        "extra_keys",
        "medium",
        "colour",
    ] {
        for value in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(malformed(&event(field, value)).what, "a value is cut off");
        }
    }
    malformed(&[0xdd, 0xff, 0xff, 0xff, 0xff]);
    malformed(&[0xdf, 0xff, 0xff, 0xff, 0xff]);
    malformed(&[0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn no_depth_is_too_deep() {
    let mut payload = vec![0x93, 0x01, 0x90];
    payload.extend(std::iter::repeat_n(0x91, 1 << 20));
    payload.push(0xc0);
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&payload).unwrap();
    assert_eq!(batch.oddities.count(Oddity::FieldType), 1);
    payload.pop();
    assert_eq!(malformed(&payload).what, "a value is cut off");
}

proptest! {
    #[test]
    fn any_tokens_come_back(tokens in prop::collection::vec(any::<u32>(), 0..100), hashes in prop::collection::vec(any::<u64>(), 0..20)) {
        let payload = encode(&json!([1, [with(json!({"token_ids": tokens, "block_hashes": hashes}))], 0]));
        let mut decoder = Decoder::default();
        let batch = decoder.decode(&payload).unwrap();
        let events: Vec<_> = batch.events().collect();
        let [BlockEvent::Stored(stored)] = events[..] else { panic!("{events:?}") };
        prop_assert_eq!(stored.hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(), hashes);
        match stored.content {
            Content::Told(told) => prop_assert_eq!(told.tokens, tokens),
            Content::Named => prop_assert!(tokens.is_empty()),
        }
    }

    #[test]
    fn a_damaged_batch_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut payload = encode(&json!([1, [plain(), {"type": "BlockRemoved", "block_hashes": [5]}], 0]));
        let at = at.index(payload.len());
        payload[at] = byte;
        let mut decoder = Decoder::default();
        if let Ok(batch) = decoder.decode(&payload) {
            prop_assert!(batch.events().count() <= 2);
        }
    }
}

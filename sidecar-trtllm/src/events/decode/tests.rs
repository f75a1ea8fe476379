use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../integration/recordings/trtllm/",
            $name
        ))
    };
}

fn read(answer: &Value) -> Vec<Event> {
    let answer = answer.to_string();
    let batch = decode(answer.as_bytes()).unwrap();
    assert_eq!(batch.nameless, 0);
    batch.events.into_iter().map(|(event, _)| event).collect()
}

fn stored(block: &Value) -> Block {
    let event = json!([{"event_id": 1, "data": {"type": "stored", "parent_hash": null, "blocks": [block]}, "window_size": 8}]);
    match read(&event).remove(0).change {
        Change::Stored { mut blocks, .. } => blocks.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_the_same_in_every_era() {
    let eras: Value = serde_json::from_str(recorded!("kv_events_serializer_eras.json")).unwrap();
    let eras = eras.as_object().unwrap();
    let blocks: Vec<Block> = eras
        .values()
        .filter(|era| era.is_object())
        .map(stored)
        .collect();
    assert_eq!(blocks.len(), 3);
    assert!(blocks.iter().all(|block| *block == blocks[0]));
    assert_eq!(
        (blocks[0].tokens.len(), blocks[0].text, blocks[0].level),
        (32, true, 0)
    );
}

#[test]
fn names_are_numbers_or_hexadecimal_digits() {
    let recorded: Value = serde_json::from_str(recorded!("kv_events_v2_sha256.json")).unwrap();
    let events = read(&recorded);
    assert!(events.iter().all(|event| !event.v1_names));
    let Change::Stored { blocks, .. } = &events[1].change else {
        panic!("{events:?}");
    };
    assert_eq!(blocks[0].hash, EngineHash(0xca97_8112_ca1b_bdca));
    assert_eq!(events[2].change, Change::Removed(vec![blocks[1].hash]));
    for (hash, name) in [
        (json!(u64::MAX), Some(u64::MAX)),
        (json!(-1), Some(u64::MAX)),
        (json!("00ff"), Some(0xff)),
        (json!("no name"), None),
        (json!(""), None),
        (json!("ääääääää"), None),
        (json!(1.5), None),
    ] {
        let removed = json!([{"event_id": 1, "data": {"type": "removed", "block_hashes": [hash]}}]);
        let expected = name.map_or(Change::Unreadable, |name| {
            Change::Removed(vec![EngineHash(name)])
        });
        assert_eq!(read(&removed)[0].change, expected, "{hash}");
    }
}

#[test]
fn images_and_what_stands_for_them_are_no_text() {
    let recorded: Value = serde_json::from_str(recorded!("kv_events_mm_and_salt.json")).unwrap();
    let blocks: Vec<Block> = read(&recorded)
        .into_iter()
        .map(|event| match event.change {
            Change::Stored { mut blocks, .. } => blocks.remove(0),
            other => panic!("{other:?}"),
        })
        .collect();
    let seen: Vec<(bool, Option<&str>)> = blocks
        .iter()
        .map(|block| (block.text, block.salt.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [(false, None), (false, None), (true, Some("tenant-a"))]
    );
    let token = |id: Value, extra: u64| {
        stored(&json!({"block_hash": 1, "tokens": [{"token_id": id, "token_extra_id": extra}]}))
    };
    assert!(token(json!(7), 0).text);
    assert!(!token(json!(7), 1).text && !token(json!("0aff"), 0).text && !token(json!(-1), 0).text);
}

#[test]
fn a_null_difference_is_none() {
    let recorded: Value =
        serde_json::from_str(recorded!("kv_events_offload_updated.json")).unwrap();
    let changes: Vec<Change> = read(&recorded)
        .into_iter()
        .map(|event| event.change)
        .collect();
    let hash = EngineHash(10_007_796_145_622_571_252);
    assert_eq!(
        changes[2],
        Change::Moved {
            hash,
            from: 0,
            to: 1
        }
    );
    assert_eq!(changes[3], Change::Nothing);
    assert_eq!(
        changes[4],
        Change::Moved {
            hash,
            from: 1,
            to: 0
        }
    );
    for levels in [
        json!(null),
        json!({"new_value": 1, "old_value": null}),
        json!({"new_value": 1, "old_value": 1}),
    ] {
        let event = json!([{"event_id": 1, "data": {"type": "updated", "block_hash": 1, "cache_level": levels}}]);
        assert_eq!(read(&event)[0].change, Change::Nothing);
    }
}

#[test]
fn what_cannot_be_read_is_known_to_have_been_there() {
    let answer = json!([
        {},
        {"event_id": 3, "data": {"type": "stored", "parent_hash": null}},
        {"event_id": 4, "data": {"type": "polished"}},
        {"event_id": 5, "data": null},
        {"data": {"type": "created"}},
    ]);
    let answer = answer.to_string();
    let batch = decode(answer.as_bytes()).unwrap();
    assert_eq!(batch.nameless, 1);
    let seen: Vec<(u64, &Change)> = batch
        .events
        .iter()
        .map(|(event, _)| (event.id, &event.change))
        .collect();
    assert_eq!(
        seen,
        [
            (3, &Change::Unreadable),
            (4, &Change::Unknown),
            (5, &Change::Unreadable)
        ]
    );
    assert!(decode(b"{}").is_err() && decode(b"").is_err());
    assert!(decode(b"[]").unwrap().events.is_empty());
}

proptest! {
    /// Whatever bytes come, there is an answer or a reason; cutting one short never makes more of it.
    #[test]
    fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..4000) {
        let _ = decode(&bytes);
        let whole = recorded!("kv_events_mm_and_salt.json").as_bytes();
        prop_assert!(decode(&whole[..cut.min(whole.len() - 2)]).is_err());
    }

    /// A changed byte changes what is read, or makes it unreadable, and never ends in a panic.
    #[test]
    fn a_changed_byte_is_survived(at in 0usize..2000, to in any::<u8>()) {
        let mut bytes = recorded!("kv_events_offload_updated.json").as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(batch) = decode(&bytes) {
            prop_assert!(batch.events.len() as u64 + batch.nameless <= 6);
        }
    }
}

//! Against the recordings: each frame decoded, rebuilt from the types, and written again.

use rmpv::Value;

use super::*;

const RECORDINGS: [(&str, &str, HashForm); 5] = [
    (
        "agg",
        include_str!("../../../../recordings/vllm/kv_events/agg.jsonl"),
        HashForm::Int,
    ),
    (
        "decode",
        include_str!("../../../../recordings/vllm/kv_events/decode.jsonl"),
        HashForm::Int,
    ),
    (
        "prefill",
        include_str!("../../../../recordings/vllm/kv_events/prefill.jsonl"),
        HashForm::Int,
    ),
    (
        "dp_rank0_sha256cbor_bytes",
        include_str!("../../../../recordings/vllm/kv_events/dp_rank0_sha256cbor_bytes.jsonl"),
        HashForm::Bytes,
    ),
    (
        "lora_salt_session_bytes_hash",
        include_str!("../../../../recordings/vllm/kv_events/lora_salt_session_bytes_hash.jsonl"),
        HashForm::Bytes,
    ),
];

fn payloads(recording: &str) -> Vec<Vec<u8>> {
    let payload = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        unhex(record["frames_hex"][2].as_str().unwrap())
    };
    recording.lines().map(payload).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn batch(payload: &[u8]) -> Batch {
    let value = rmpv::decode::read_value(&mut &payload[..]).unwrap();
    let [ts, events, rank] = &value.as_array().unwrap()[..] else {
        panic!("no batch: {value}");
    };
    Batch {
        ts: ts.as_f64().unwrap(),
        events: events.as_array().unwrap().iter().map(event).collect(),
        rank: u32::try_from(rank.as_u64().unwrap()).unwrap(),
    }
}

fn event(value: &Value) -> Event {
    match value["type"].as_str().unwrap() {
        "BlockStored" => Event::Stored(stored(value)),
        "BlockRemoved" => Event::Removed(Removed {
            hashes: value["block_hashes"].as_array().unwrap().iter().map(hash).collect(),
        }),
        "AllBlocksCleared" => Event::Cleared,
        other => panic!("unknown event {other}"),
    }
}

fn stored(value: &Value) -> Stored {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let token = |token: &Value| u32::try_from(token.as_u64().unwrap()).unwrap();
    let lora_name = text("lora_name");
    // The salt is told nowhere but in the extra keys: what the first block has beyond the adapter.
    let first_keys = value["extra_keys"][0].as_array().cloned().unwrap_or_default();
    let salt = first_keys
        .iter()
        .filter_map(Value::as_str)
        .find(|key| Some(*key) != lora_name.as_deref());
    Stored {
        hashes: value["block_hashes"].as_array().unwrap().iter().map(hash).collect(),
        parent: (!value["parent_block_hash"].is_nil()).then(|| hash(&value["parent_block_hash"])),
        tokens: value["token_ids"].as_array().unwrap().iter().map(token).collect(),
        block_size: token(&value["block_size"]),
        lora_id: value["lora_id"].as_u64(),
        salt: salt.map(str::to_owned),
        lora_name,
        session_id: text("session_id"),
    }
}

/// A number tells only the last eight bytes.
fn hash(value: &Value) -> BlockHash {
    let mut hash = [0; 32];
    match value.as_u64() {
        Some(int) => hash[24..].copy_from_slice(&int.to_be_bytes()),
        None => hash.copy_from_slice(value.as_slice().unwrap()),
    }
    hash
}

#[test]
fn every_recorded_frame_is_written_again_byte_for_byte() {
    let mut frames = 0;
    for (name, recording, hash_form) in RECORDINGS {
        for (at, payload) in payloads(recording).into_iter().enumerate() {
            let again = batch(&payload).encode(Form::Maps, hash_form);
            assert_eq!(again, payload, "frame {at} of {name}");
            frames += 1;
        }
    }
    assert_eq!(frames, 121);
}

#[test]
fn sha256_cbor_hashes_are_computed_as_vllm_does() {
    let mut hashes = 0;
    for payload in payloads(RECORDINGS[3].1) {
        for event in batch(&payload).events {
            let Event::Stored(stored) = event else {
                continue;
            };
            let mut parent = stored.parent;
            let blocks = stored.tokens.chunks(stored.block_size as usize);
            for (hash, tokens) in stored.hashes.iter().zip(blocks) {
                assert_eq!(block_hash(parent.as_ref(), tokens, &[]), *hash);
                parent = Some(*hash);
                hashes += 1;
            }
        }
    }
    assert_eq!(hashes, RECORDED_CBOR_HASHES);
}

const RECORDED_CBOR_HASHES: usize = 8;

#[test]
fn extra_keys_change_the_hash() {
    let lora = ExtraKey::Lora {
        name: "ada".to_owned(),
        path: "/adapters/ada".to_owned(),
    };
    let salt = ExtraKey::CacheSalt("tenant-a".to_owned());
    let variants = [&[][..], &[lora.clone()], &[salt.clone()], &[lora, salt]];
    let hashes: std::collections::BTreeSet<_> = variants
        .iter()
        .map(|extra| block_hash(None, &[1, 70_000], extra))
        .collect();
    assert_eq!(hashes.len(), variants.len());
}

#[test]
fn salt_is_in_the_first_block_of_a_sequence_only() {
    let mut stored = Stored {
        hashes: vec![[1; 32], [2; 32]],
        lora_name: Some("ada".to_owned()),
        salt: Some("tenant-a".to_owned()),
        ..Stored::default()
    };
    let first = [Some(vec!["ada", "tenant-a"]), Some(vec!["ada"])];
    assert_eq!(stored.extra_keys(), first);
    stored.parent = Some([3; 32]);
    let later = [Some(vec!["ada"]), Some(vec!["ada"])];
    assert_eq!(stored.extra_keys(), later);
}

#[test]
fn arrays_have_the_tag_first() {
    let events = vec![
        Event::Stored(Stored {
            hashes: vec![[7; 32]],
            tokens: vec![5, 6],
            block_size: 2,
            session_id: Some("not told by arrays".to_owned()),
            ..Stored::default()
        }),
        Event::Removed(Removed {
            hashes: vec![[7; 32]],
        }),
        Event::Cleared,
    ];
    let batch = Batch {
        ts: 1.5,
        events,
        rank: 3,
    };
    let bytes = batch.encode(Form::Arrays, HashForm::Int);
    let value = rmpv::decode::read_value(&mut &bytes[..]).unwrap();
    let hash = "[506381209866536711]";
    let stored = format!(r#"["BlockStored", {hash}, nil, [5, 6], 2, nil, "GPU", nil]"#);
    let removed = format!(r#"["BlockRemoved", {hash}, "GPU"]"#);
    let expected = format!(r#"[1.5, [{stored}, {removed}, ["AllBlocksCleared"]], 3]"#);
    assert_eq!(value.to_string(), expected);
}

//! The recordings as tests read them.

use rmpv::Value;

use super::events::{Batch, BlockHash, Event, HashForm, Removed, Stored};

/// Name, lines, and how hashes are written.
pub(in crate::emulated) const RECORDINGS: [(&str, &str, HashForm); 5] = [
    (
        "agg",
        include_str!("../../../recordings/vllm/kv_events/agg.jsonl"),
        HashForm::Int,
    ),
    (
        "decode",
        include_str!("../../../recordings/vllm/kv_events/decode.jsonl"),
        HashForm::Int,
    ),
    (
        "prefill",
        include_str!("../../../recordings/vllm/kv_events/prefill.jsonl"),
        HashForm::Int,
    ),
    (
        "dp_rank0_sha256cbor_bytes",
        include_str!("../../../recordings/vllm/kv_events/dp_rank0_sha256cbor_bytes.jsonl"),
        HashForm::Bytes,
    ),
    (
        "lora_salt_session_bytes_hash",
        include_str!("../../../recordings/vllm/kv_events/lora_salt_session_bytes_hash.jsonl"),
        HashForm::Bytes,
    ),
];

/// The payload of each message.
pub(in crate::emulated) fn payloads(recording: &str) -> Vec<Vec<u8>> {
    let payload = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        unhex(record["frames_hex"][2].as_str().unwrap())
    };
    recording.lines().map(payload).collect()
}

pub(in crate::emulated) fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// A payload, read into the types that write it.
pub(in crate::emulated) fn batch(payload: &[u8]) -> Batch {
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
            hashes: value["block_hashes"]
                .as_array()
                .unwrap()
                .iter()
                .map(hash)
                .collect(),
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
    let first_keys = value["extra_keys"][0]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let salt = first_keys
        .iter()
        .filter_map(Value::as_str)
        .find(|key| Some(*key) != lora_name.as_deref());
    Stored {
        hashes: value["block_hashes"]
            .as_array()
            .unwrap()
            .iter()
            .map(hash)
            .collect(),
        parent: (!value["parent_block_hash"].is_nil()).then(|| hash(&value["parent_block_hash"])),
        tokens: value["token_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(token)
            .collect(),
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

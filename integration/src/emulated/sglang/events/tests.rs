//! What was recorded is written byte for byte, and its hashes follow from its tokens.

use std::collections::HashMap;

use rmpv::Value;

use super::*;

const AGGREGATED: &str = include_str!("../../../../recordings/sglang/zmq_agg_gpu.jsonl");
const PREFILL: &str = include_str!("../../../../recordings/sglang/zmq_prefill.jsonl");
const VARIANTS: &str = include_str!("../../../../recordings/sglang/zmq_encoder_all_variants.jsonl");

/// What of the encoder's variants an emulated engine never says, and why.
const NEVER_SAID: [(&str, &str); 4] = [
    ("DISK", "no release so far calls a page so"),
    ("EXTERNAL", "no release so far calls a page so"),
    ("bigram", "speculative decoding is not emulated"),
    ("lora_id=3", "0.5.23 always says nil"),
];

struct Recorded {
    note: String,
    frames: Vec<Vec<u8>>,
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Messages, without those that replay or end one.
fn recorded(text: &str) -> Vec<Recorded> {
    let lines = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let frames = line["frames_hex"].as_array().unwrap().iter();
        Recorded {
            note: line["note"].as_str().unwrap_or_default().to_owned(),
            frames: frames.map(|frame| unhex(frame.as_str().unwrap())).collect(),
        }
    });
    lines.filter(|line| line.frames.len() == 3).collect()
}

fn field<'a>(event: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = event.as_map().unwrap();
    let found = fields.iter().find(|(key, _)| key.as_str() == Some(name));
    found.map(|(_, value)| value)
}

fn text(event: &Value, name: &str) -> Option<String> {
    Some(field(event, name)?.as_str()?.to_owned())
}

fn hashes(event: &Value) -> Vec<i64> {
    let hashes = field(event, "block_hashes").unwrap().as_array().unwrap();
    hashes.iter().map(|hash| hash.as_i64().unwrap()).collect()
}

fn medium(event: &Value) -> Option<Medium> {
    match text(event, "medium")?.as_str() {
        "GPU" => Some(Medium::Gpu),
        "CPU_PINNED" => Some(Medium::CpuPinned),
        other => panic!("{other} is never said"),
    }
}

fn event(event: &Value) -> Event {
    match text(event, "type").unwrap().as_str() {
        "BlockStored" => {
            let tokens = field(event, "token_ids").unwrap().as_array().unwrap();
            let tokens = tokens.iter().map(|token| token.as_u64().unwrap());
            Event::Stored(Stored {
                hashes: hashes(event),
                parent: field(event, "parent_block_hash").unwrap().as_i64(),
                tokens: tokens.map(|token| u32::try_from(token).unwrap()).collect(),
                page_size: u32::try_from(field(event, "block_size").unwrap().as_u64().unwrap())
                    .unwrap(),
                medium: medium(event),
                salt: text(event, "cache_salt"),
                session: text(event, "session_id"),
                lora_name: text(event, "lora_name"),
            })
        }
        "BlockRemoved" => Event::Removed {
            hashes: hashes(event),
            medium: medium(event),
        },
        "AllBlocksCleared" => Event::Cleared,
        other => panic!("{other} is no event"),
    }
}

fn batch(payload: &[u8]) -> (f64, Vec<Event>, u32) {
    let value = rmpv::decode::read_value(&mut &payload[..]).unwrap();
    let [ts, events, rank] = &value.as_array().unwrap()[..] else {
        panic!("no batch: {value}");
    };
    (
        ts.as_f64().unwrap(),
        events.as_array().unwrap().iter().map(event).collect(),
        u32::try_from(rank.as_u64().unwrap()).unwrap(),
    )
}

#[test]
fn recorded_batches_are_written_byte_for_byte() {
    let mut written = 0;
    for text in [AGGREGATED, PREFILL, VARIANTS] {
        for Recorded { note, frames } in recorded(text) {
            if NEVER_SAID.iter().any(|(what, _)| note.contains(what)) {
                continue;
            }
            let (ts, events, rank) = batch(&frames[2]);
            assert_eq!(encode(ts, &events, rank, Form::Maps), frames[2], "{note}");
            written += 1;
        }
    }
    assert_eq!(written, 13 + 15 + 16);
}

/// The extra key and the salt of the batches of prefill's log that are in a namespace, by their numbers.
const NAMESPACES: [(usize, Option<&str>, Option<&str>); 3] = [
    (4, Some("tenantX"), None),
    (5, None, Some("saltY")),
    (6, Some("tenantX"), Some("saltY")),
];

fn recomputed(text: &str, namespaces: &[(usize, Option<&str>, Option<&str>)]) -> usize {
    let mut digests: HashMap<i64, BlockHash> = HashMap::new();
    let mut pages = 0;
    for Recorded { frames, .. } in recorded(text) {
        let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
        let namespace = namespaces.iter().find(|(at, ..)| *at as u64 == number);
        for event in batch(&frames[2]).1 {
            let Event::Stored(stored) = event else {
                continue;
            };
            let mut before = match (stored.parent, &stored.salt) {
                (Some(parent), _) => digests[&parent].to_vec(),
                (None, Some(salt)) => salt_seed(salt).to_vec(),
                (None, None) => Vec::new(),
            };
            let tokens = stored.tokens.chunks(stored.page_size as usize);
            for (told, tokens) in stored.hashes.iter().zip(tokens) {
                let digest = chain(&before, tokens);
                let plain = name(&digest);
                let wanted =
                    namespace.map_or(plain, |(_, extra, salt)| renamed(plain, *extra, *salt));
                assert_eq!(*told, wanted, "batch {number}");
                digests.insert(*told, digest);
                before = digest.to_vec();
                pages += 1;
            }
        }
    }
    pages
}

#[test]
fn recorded_hashes_follow_from_their_tokens() {
    // In the format "default" an extra key is not in the hash, and nothing tells that there was one.
    assert_eq!(recomputed(AGGREGATED, &[]), 31);
    assert_eq!(recomputed(PREFILL, &NAMESPACES), 1385);
}

#[test]
fn a_replay_repeats_what_was_published_and_says_where_it_ends() {
    let replayed = include_str!("../../../../recordings/sglang/zmq_replay.jsonl");
    let replayed: Vec<Vec<Vec<u8>>> = replayed
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let frames = line["frames_hex"].as_array().unwrap().iter();
            frames.map(|frame| unhex(frame.as_str().unwrap())).collect()
        })
        .collect();
    let (end, batches) = replayed.split_last().unwrap();
    assert_eq!(end, &[vec![], vec![], vec![0xff; 8], vec![]]);
    let published = recorded(PREFILL);
    for (replayed, published) in batches.iter().zip(&published) {
        assert!(replayed[0].is_empty());
        assert_eq!(replayed[1..], published.frames);
    }
    assert!(!batches.is_empty());
}

#[test]
fn older_releases_write_arrays() {
    let stored = Event::Stored(Stored {
        hashes: vec![7],
        tokens: vec![1, 2],
        page_size: 2,
        medium: Some(Medium::Gpu),
        salt: Some("s".to_owned()),
        ..Stored::default()
    });
    let read = |form| {
        let bytes = encode(0.5, std::slice::from_ref(&stored), 0, form);
        let value = rmpv::decode::read_value(&mut &bytes[..]).unwrap();
        value[1][0].as_array().unwrap().clone()
    };
    let array = read(Form::Arrays);
    assert_eq!(array.len(), 7);
    assert_eq!(
        (array[0].as_str(), array[6].as_str()),
        (Some("BlockStored"), Some("GPU"))
    );
    let between = read(Form::ArraysWithExtras);
    assert_eq!(between[..7], array[..]);
    assert_eq!(between[7]["cache_salt"].as_str(), Some("s"));
    // What says nothing is not told.
    let cleared = encode(0.5, &[Event::Cleared], 0, Form::ArraysWithExtras);
    let value = rmpv::decode::read_value(&mut &cleared[..]).unwrap();
    assert_eq!(value[1][0].as_array().unwrap().len(), 1);
}

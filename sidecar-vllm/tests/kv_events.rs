//! Decoder and mirror against what real vLLM 0.32.0 engines published (`integration/recordings/vllm/kv_events`).
//!
//! Each line of a recording has a message's frames and, as JSON, what vLLM's own library decoded them to. What the sidecar
//! makes of the frames is compared with an oracle that knows only the JSON and shares no code with the sidecar.

#![expect(
    clippy::unwrap_used,
    reason = "a recording that cannot be read fails the test"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use baton_proto::event::KvEvent;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::{BlockEvent, Content};
use baton_sidecar_core::mirror::oddity::Oddity;
use baton_sidecar_core::mirror::order::{Arrival, Stamp};
use baton_sidecar_core::mirror::{Mirror, TIERS};
use baton_sidecar_vllm::events::decoder::Decoder;
use baton_sidecar_vllm::events::message::{Message, Replayed};
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MODEL: &str = "tiny";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration/recordings/vllm/kv_events")
}

struct Recorded {
    frames: Vec<Vec<u8>>,
    seq: u64,
    topic: String,
    decoded: Value,
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn frames(list: &Value) -> Vec<Vec<u8>> {
    let frames = list.as_array().unwrap().iter();
    frames.map(|frame| unhex(frame.as_str().unwrap())).collect()
}

/// All recordings by name.
fn recordings() -> BTreeMap<String, Vec<Recorded>> {
    let paths = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = paths.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    logs.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(path).unwrap();
        (name, text.lines().map(recorded).collect())
    })
    .collect()
}

fn recorded(line: &str) -> Recorded {
    let line: Value = serde_json::from_str(line).unwrap();
    Recorded {
        frames: frames(&line["frames_hex"]),
        seq: line["seq"].as_u64().unwrap(),
        topic: line["topic"].as_str().unwrap().to_owned(),
        decoded: line["decoded"].clone(),
    }
}

/// What vLLM's library calls a block, as the sidecar's key.
fn key(hash: &Value) -> u64 {
    match hash.as_str().map(|text| text.strip_prefix("hex:").unwrap()) {
        Some(hex) => u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap(),
        None => hash.as_u64().unwrap(),
    }
}

fn keys(hashes: &Value) -> Vec<u64> {
    hashes.as_array().unwrap().iter().map(key).collect()
}

/// What the JSON alone says of an engine's cache: the hash of every block's text, and how many copies there are.
#[derive(Default)]
struct Oracle {
    last_seq: Option<u64>,
    texts: HashMap<u64, u64>,
    copies: HashMap<u64, u64>,
}

impl Oracle {
    fn hear(&mut self, recorded: &Recorded) {
        if self.last_seq.is_some_and(|last| recorded.seq <= last) {
            *self = Self::default();
        }
        self.last_seq = Some(recorded.seq);
        for event in recorded.decoded[1].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "BlockStored" => self.store(event),
                "BlockRemoved" => {
                    for hash in keys(&event["block_hashes"]) {
                        *self.copies.get_mut(&hash).unwrap() -= 1;
                    }
                }
                "AllBlocksCleared" => self.copies.clear(),
                other => panic!("the oracle does not know {other}"),
            }
        }
    }

    fn store(&mut self, event: &Value) {
        let lora = event["lora_name"].as_str().unwrap_or_default();
        let mut parent = if event["parent_block_hash"].is_null() {
            let first = event["extra_keys"][0].as_array();
            // Adapter first, salt last; these recordings have nothing else.
            let salt = first.and_then(|keys| keys.get(usize::from(!lora.is_empty())));
            let salt = salt.map_or("", |salt| salt.as_str().unwrap());
            xxh3_64(format!("baton/1\0{MODEL}\0{lora}\0{salt}").as_bytes())
        } else {
            self.texts[&key(&event["parent_block_hash"])]
        };
        let size = usize::try_from(event["block_size"].as_u64().unwrap()).unwrap();
        let tokens: Vec<u64> = event["token_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| token.as_u64().unwrap())
            .collect();
        for (hash, block) in keys(&event["block_hashes"])
            .into_iter()
            .zip(tokens.chunks(size))
        {
            let content: Vec<u8> = block
                .iter()
                .flat_map(|token| u32::try_from(*token).unwrap().to_le_bytes())
                .collect();
            parent = xxh3_64_with_seed(&content, parent);
            self.texts.insert(hash, parent);
            *self.copies.entry(hash).or_default() += 1;
        }
    }

    fn view(&self) -> BTreeSet<u64> {
        let held = self.copies.iter().filter(|(_, copies)| **copies > 0);
        held.map(|(hash, _)| self.texts[hash]).collect()
    }
}

fn feed(
    mirror: &mut Mirror,
    decoder: &mut Decoder,
    message: &Message<'_>,
) -> (Arrival, Vec<KvEvent>) {
    let batch = decoder.decode(message.payload).unwrap();
    assert_eq!(batch.oddities.iter().count(), 0, "{:?}", batch.oddities);
    let stamp = Stamp {
        seq: message.seq,
        time: batch.time,
    };
    let applied = mirror.apply(batch.rank.unwrap(), stamp, batch.events());
    (applied.arrival, applied.changes)
}

#[test]
fn the_view_of_every_recording_equals_the_oracle_s_at_every_message() {
    let recordings = recordings();
    assert_eq!(recordings.len(), 5);
    for (name, log) in recordings {
        let (mut mirror, mut decoder, mut oracle) = (
            Mirror::new(MODEL, None),
            Decoder::default(),
            Oracle::default(),
        );
        for recorded in &log {
            let message = Message::published(&recorded.frames).unwrap();
            feed(&mut mirror, &mut decoder, &message);
            oracle.hear(recorded);
            let view = mirror.rank(0).unwrap();
            let held: BTreeSet<u64> = view.blocks(Tier::Device).map(|block| block.0).collect();
            assert_eq!(held, oracle.view(), "{name} at {}", recorded.seq);
            assert!(view.doubts().is_empty(), "{name} at {}", recorded.seq);
            let digest = held.iter().fold(0u64, |sum, block| {
                sum.wrapping_add(xxh3_64(&block.to_le_bytes()))
            });
            let told = mirror.digests();
            let told: Vec<_> = told
                .iter()
                .map(|told| (told.tier, told.blocks, told.digest))
                .collect();
            let expected = [(Tier::Device, held.len() as u64, digest)];
            assert_eq!(
                told,
                expected[..usize::from(!held.is_empty())],
                "{name} at {}",
                recorded.seq
            );
        }
        assert!(
            !oracle.view().is_empty(),
            "{name} ends with nothing to compare"
        );
        for tier in &TIERS[1..] {
            assert_eq!(mirror.rank(0).unwrap().blocks(*tier).count(), 0);
        }
    }
}

/// What is known of these recordings: blocks at the end, lives of the engine beyond the first, copies that a report of
/// reused blocks (`kv_cache_report_mode: full`) added.
#[test]
fn recordings_hold_what_is_known_of_them() {
    let expected = BTreeMap::from([
        ("agg", (2, 0, 0)),
        ("decode", (251, 4, 0)),
        ("dp_rank0_sha256cbor_bytes", (2, 0, 0)),
        ("lora_salt_session_bytes_hash", (13, 0, 3)),
        ("prefill", (255, 0, 0)),
    ]);
    for (name, log) in recordings() {
        let (mut mirror, mut decoder) = (Mirror::new(MODEL, Some(32)), Decoder::default());
        for recorded in &log {
            let message = Message::published(&recorded.frames).unwrap();
            assert_eq!(message.topic, recorded.topic.as_bytes());
            assert_eq!(message.seq, recorded.seq);
            feed(&mut mirror, &mut decoder, &message);
        }
        let view = mirror.rank(0).unwrap();
        let (blocks, restarts, copies) = expected[name.as_str()];
        assert_eq!(view.blocks(Tier::Device).count(), blocks, "{name}");
        assert_eq!(view.tally().count(Oddity::Restart), restarts, "{name}");
        assert_eq!(view.tally().count(Oddity::SecondCopy), copies, "{name}");
        let counted: u64 = view.tally().iter().map(|(_, count)| count).sum();
        assert_eq!(counted, restarts + copies, "{name}: {:?}", view.tally());
    }
}

/// Field by field, what the sidecar decodes is what vLLM's library decoded.
#[test]
fn every_event_is_decoded_as_the_engine_s_library_does() {
    let mut events = 0;
    for recorded in recordings().into_values().flatten() {
        let message = Message::published(&recorded.frames).unwrap();
        let mut decoder = Decoder::default();
        let batch = decoder.decode(message.payload).unwrap();
        let said = recorded.decoded[1].as_array().unwrap();
        // serde_json reads the last digit of a number as it likes.
        assert!((batch.time - recorded.decoded[0].as_f64().unwrap()).abs() < 1e-6);
        assert_eq!(batch.rank.map(u64::from), recorded.decoded[2].as_u64());
        assert_eq!(batch.events().count(), said.len());
        for (event, expected) in batch.events().zip(said) {
            events += 1;
            let kind = match event {
                BlockEvent::Stored(stored) => {
                    let Content::Told(told) = stored.content else {
                        panic!("only named: {expected}");
                    };
                    let hashes: Vec<u64> = stored.hashes.iter().map(|hash| hash.0).collect();
                    assert_eq!(hashes, keys(&expected["block_hashes"]));
                    assert_eq!(Value::from(told.tokens), expected["token_ids"]);
                    assert_eq!(Value::from(told.block_size), expected["block_size"]);
                    assert_eq!(
                        told.lora,
                        expected["lora_name"].as_str().unwrap_or_default()
                    );
                    let parent = &expected["parent_block_hash"];
                    assert_eq!(
                        told.parent.map(|hash| hash.0),
                        (!parent.is_null()).then(|| key(parent))
                    );
                    assert_eq!((told.understood, told.items), (hashes.len(), &[][..]));
                    "BlockStored"
                }
                BlockEvent::Removed(removed) => {
                    let hashes: Vec<u64> = removed.hashes.iter().map(|hash| hash.0).collect();
                    assert_eq!(hashes, keys(&expected["block_hashes"]));
                    "BlockRemoved"
                }
                BlockEvent::Cleared { tier: None } => "AllBlocksCleared",
                other => panic!("{other:?}"),
            };
            assert_eq!(kind, expected["type"]);
        }
    }
    assert_eq!(events, 13 + 41 + 1 + 69 + 81 + 2 + 4 + 1 + 6 + 40 + 220);
}

/// A recording whose middle is missing: the view is a subset of the oracle's from there on, and says so.
#[test]
fn a_gap_leaves_a_subset() {
    let recordings = recordings();
    let log = &recordings["prefill"];
    let mut found = 0;
    for missing in 1..log.len() - 1 {
        let (mut mirror, mut decoder, mut oracle) = (
            Mirror::new(MODEL, None),
            Decoder::default(),
            Oracle::default(),
        );
        for (at, recorded) in log.iter().enumerate() {
            oracle.hear(recorded);
            if at == missing {
                continue;
            }
            let (arrival, _) = feed(
                &mut mirror,
                &mut decoder,
                &Message::published(&recorded.frames).unwrap(),
            );
            let view = mirror.rank(0).unwrap();
            assert_eq!(arrival == Arrival::Gap { missing: 1 }, at == missing + 1);
            assert_eq!(view.doubts().is_empty(), at < missing);
            let held: BTreeSet<u64> = view.blocks(Tier::Device).map(|block| block.0).collect();
            assert!(held.is_subset(&oracle.view()), "without {missing} at {at}");
            found += held.len();
        }
    }
    assert!(
        found > 10_000,
        "subsets as small as {found} blocks in all prove nothing"
    );
}

#[test]
fn the_replay_socket_s_answers_are_read() {
    let text = std::fs::read_to_string(folder().join("replay_exchange.json")).unwrap();
    let exchanges: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut heard = Vec::new();
    for exchange in &exchanges[..2] {
        for answer in exchange["received_frames_hex"].as_array().unwrap() {
            match Replayed::read(&frames(answer)).unwrap() {
                Replayed::Message(message) => {
                    assert_eq!(message.topic, b"kv@agg@tiny");
                    Decoder::default().decode(message.payload).unwrap();
                    heard.push(Some(message.seq));
                }
                Replayed::End => heard.push(None),
            }
        }
    }
    assert_eq!(heard, [Some(11), Some(12), None, None]);
    // A `REQ` socket takes the empty frame away.
    let without_delimiter = frames(&exchanges[3]["received_frames_hex"][0]);
    assert!(
        matches!(Replayed::read(&without_delimiter), Ok(Replayed::Message(message)) if message.seq == 0)
    );
}

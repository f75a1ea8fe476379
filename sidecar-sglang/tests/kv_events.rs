//! Decoder and mirror against what real SGLang 0.5.23 engines published (`integration/recordings/sglang`).
//!
//! Each line of a recording has a message's frames and, as JSON, what SGLang's own library decoded them to. What the sidecar
//! makes of the frames is compared with an oracle that knows only the JSON and shares no code with the sidecar.

#![expect(
    clippy::unwrap_used,
    reason = "a recording that cannot be read fails the test"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use baton_kv_events::message::{Message, Replayed};
use baton_kv_events::oddity::Oddity as Strange;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::oddity::Oddity;
use baton_sidecar_core::mirror::order::{Arrival, Stamp};
use baton_sidecar_core::mirror::{Mirror, TIERS};
use baton_sidecar_sglang::events::Decoder;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MODEL: &str = "tiny";

/// Messages of `zmq_prefill` whose blocks were computed for a request with an `extra_key`, as the requests tell that were
/// sent meanwhile. The publisher's format was `dynamo`.
const KEYED: [u64; 2] = [4, 6];

struct Recorded {
    note: String,
    frames: Vec<Vec<u8>>,
    seq: Option<u64>,
    decoded: Value,
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn recording(name: &str) -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration/recordings/sglang");
    let text = std::fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let frames = line["frames_hex"].as_array().unwrap().iter();
        Recorded {
            note: line["note"].as_str().unwrap_or_default().to_owned(),
            frames: frames.map(|frame| unhex(frame.as_str().unwrap())).collect(),
            seq: line["seq"].as_u64(),
            decoded: line["decoded"].clone(),
        }
    });
    lines.collect()
}

fn keys(hashes: &Value) -> Vec<u64> {
    let hashes = hashes.as_array().unwrap().iter();
    hashes
        .map(|hash| hash.as_i64().unwrap().cast_unsigned())
        .collect()
}

fn tier(event: &Value) -> Tier {
    match event["medium"].as_str() {
        None | Some("GPU") => Tier::Device,
        Some("CPU_PINNED") => Tier::Host,
        Some(other) => panic!("the recordings have no {other}"),
    }
}

/// What the JSON alone says of an engine's cache: the hash of every block's text, and how many copies there are.
#[derive(Default)]
struct Oracle {
    /// Of blocks in namespaces that are told.
    texts: HashMap<u64, u64>,
    copies: HashMap<(Tier, u64), u64>,
}

impl Oracle {
    fn hear(&mut self, seq: u64, decoded: &Value, keyed: &[u64]) {
        for event in decoded[1].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "BlockStored" => self.store(event, keyed.contains(&seq)),
                "BlockRemoved" => {
                    for hash in keys(&event["block_hashes"]) {
                        *self.copies.get_mut(&(tier(event), hash)).unwrap() -= 1;
                    }
                }
                "AllBlocksCleared" => self.copies.clear(),
                other => panic!("the oracle does not know {other}"),
            }
        }
    }

    fn store(&mut self, event: &Value, keyed: bool) {
        let mut parent = if event["parent_block_hash"].is_null() {
            let salt = event["cache_salt"].as_str().unwrap_or_default();
            let root = [b"baton/1\0", MODEL.as_bytes(), b"\0\0", salt.as_bytes()].concat();
            (!keyed).then(|| xxh3_64(&root))
        } else {
            let parent = event["parent_block_hash"].as_i64().unwrap().cast_unsigned();
            self.texts.get(&parent).copied()
        };
        let tokens = event["token_ids"].as_array().unwrap();
        let size = usize::try_from(event["block_size"].as_u64().unwrap()).unwrap();
        let hashes = keys(&event["block_hashes"]);
        assert_eq!(tokens.len(), hashes.len() * size);
        for (hash, page) in hashes.into_iter().zip(tokens.chunks(size)) {
            let bytes: Vec<u8> = page
                .iter()
                .flat_map(|token| {
                    u32::try_from(token.as_u64().unwrap())
                        .unwrap()
                        .to_le_bytes()
                })
                .collect();
            *self.copies.entry((tier(event), hash)).or_default() += 1;
            let Some(before) = parent else { continue };
            let text = xxh3_64_with_seed(&bytes, before);
            self.texts.insert(hash, text);
            parent = Some(text);
        }
    }

    /// Texts that each tier holds.
    fn view(&self) -> BTreeMap<Tier, BTreeSet<u64>> {
        let mut view: BTreeMap<Tier, BTreeSet<u64>> = BTreeMap::new();
        for ((tier, hash), copies) in &self.copies {
            if let Some(text) = self.texts.get(hash).filter(|_| *copies > 0) {
                view.entry(*tier).or_default().insert(*text);
            }
        }
        view
    }
}

fn view(mirror: &Mirror) -> BTreeMap<Tier, BTreeSet<u64>> {
    let rank = mirror.rank(0).unwrap();
    let held = TIERS.map(|tier| (tier, rank.blocks(tier).map(|block| block.0).collect()));
    held.into_iter()
        .filter(|(_, blocks): &(Tier, BTreeSet<u64>)| !blocks.is_empty())
        .collect()
}

/// Plays a recording to its end; after each message sidecar and oracle hold the same.
fn play(name: &str, keyed: &[u64]) -> (Mirror, usize) {
    let mut mirror = Mirror::new(MODEL, None);
    let mut oracle = Oracle::default();
    let mut decoder = Decoder::default();
    let mut most = 0;
    for recorded in recording(name) {
        let message = Message::published(&recorded.frames).unwrap();
        assert_eq!(Some(message.seq), recorded.seq);
        let batch = decoder.decode(message.payload).unwrap();
        assert_eq!((batch.rank, batch.oddities.iter().count()), (Some(0), 0));
        let stamp = Stamp {
            seq: message.seq,
            time: batch.time,
        };
        let applied = mirror.apply(0, stamp, batch.events());
        assert!(matches!(applied.arrival, Arrival::First | Arrival::Next));
        oracle.hear(message.seq, &recorded.decoded, keyed);
        assert_eq!(
            view(&mirror),
            oracle.view(),
            "{name}, message {}",
            message.seq
        );
        most = most.max(view(&mirror).values().map(BTreeSet::len).sum());
    }
    (mirror, most)
}

#[test]
fn a_prefill_engine_under_eviction_is_followed_exactly() {
    let (mirror, most) = play("zmq_prefill", &KEYED);
    let rank = mirror.rank(0).unwrap();
    assert!(rank.doubts().is_empty());
    // Ten pages of two namespaces that nobody told, and nothing that was removed unknown.
    assert_eq!(rank.tally().count(Oddity::UnknownNamespace), 10);
    assert_eq!(rank.tally().count(Oddity::UnknownRemoval), 0);
    assert!(most > 500, "{most} blocks at most");
}

#[test]
fn an_aggregated_engine_that_was_joined_late_is_certain_after_a_reset() {
    let (mirror, most) = play("zmq_agg_gpu", &[]);
    let rank = mirror.rank(0).unwrap();
    // It was heard from message 3 on, and flushed its cache with message 14.
    assert_eq!(rank.tally().count(Oddity::JoinedLate), 1);
    assert!(rank.doubts().is_empty());
    // An extra key in the format `default`: five pages under the names of five others.
    assert_eq!(rank.held(Tier::Device), 5);
    assert!(most > 15, "{most} blocks at most");
}

#[test]
fn a_replay_says_what_was_published() {
    let published = recording("zmq_prefill");
    let mut messages = 0;
    let replay = recording("zmq_replay");
    let (end, answers) = replay.split_last().unwrap();
    assert_eq!(Replayed::read(&end.frames), Ok(Replayed::End));
    for (answer, published) in answers.iter().zip(&published) {
        let published = Message::published(&published.frames).unwrap();
        assert_eq!(
            Replayed::read(&answer.frames),
            Ok(Replayed::Message(published))
        );
        messages += 1;
    }
    assert_eq!((messages, answers.len()), (4, 4));
}

/// SGLang's own encoder, with names that are no hashes: all forms are read, and no name is believed.
#[test]
fn every_form_of_its_encoder_is_read() {
    let mut decoder = Decoder::default();
    let mut read = 0;
    for recorded in recording("zmq_encoder_all_variants") {
        if recorded.note.contains("REPLAY") {
            Replayed::read(&recorded.frames).unwrap();
            continue;
        }
        let message = Message::published(&recorded.frames).unwrap();
        let batch = decoder.decode(message.payload).unwrap();
        let strange: Vec<(Strange, u64)> = batch.oddities.iter().collect();
        assert_eq!(strange, [], "{}", recorded.note);
        let events = recorded.decoded[1].as_array().unwrap();
        assert_eq!(batch.events().count(), events.len(), "{}", recorded.note);
        let rank = u32::from(recorded.note.starts_with("rank1"));
        assert_eq!(batch.rank, Some(rank));
        read += events.len();
    }
    assert_eq!(read, 26);
}

/// A batch of one `BlockStored` or `BlockRemoved` of two pages that SGLang named so.
fn two_pages(kind: &str, medium: &str) -> Vec<u8> {
    let hashes = [5_428_511_633_061_281_808_i64, -13_757_886_277_339_546];
    let numbers =
        |numbers: &[i64]| rmpv::Value::Array(numbers.iter().copied().map(Into::into).collect());
    let mut fields = vec![
        ("type", kind.into()),
        ("block_hashes", numbers(&hashes)),
        ("medium", medium.into()),
    ];
    if kind == "BlockStored" {
        fields.extend([
            ("parent_block_hash", rmpv::Value::Nil),
            ("token_ids", numbers(&[10, 11, 12, 13, 14, 15, 16, 17])),
            ("block_size", 4.into()),
            ("lora_id", rmpv::Value::Nil),
        ]);
    }
    let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
    let event = rmpv::Value::Map(fields.collect());
    let batch = vec![1.5.into(), rmpv::Value::Array(vec![event]), 0.into()];
    let mut payload = Vec::new();
    rmpv::encode::write_value(&mut payload, &rmpv::Value::Array(batch)).unwrap();
    payload
}

/// What HiCache tells: written through to host memory, evicted from the device, loaded back, evicted from host memory.
#[test]
fn eviction_from_one_tier_is_not_removal_from_the_other() {
    let mut mirror = Mirror::new(MODEL, None);
    let mut decoder = Decoder::default();
    let both = [Tier::Device, Tier::Host];
    for (seq, (kind, medium, held)) in [
        ("BlockStored", "GPU", &both[..1]),
        ("BlockStored", "CPU_PINNED", &both),
        ("BlockRemoved", "GPU", &both[1..]),
        ("BlockStored", "GPU", &both),
        ("BlockRemoved", "CPU_PINNED", &both[..1]),
        ("BlockRemoved", "GPU", &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let payload = two_pages(kind, medium);
        let batch = decoder.decode(&payload).unwrap();
        let stamp = Stamp {
            seq: u64::try_from(seq).unwrap(),
            time: batch.time,
        };
        mirror.apply(0, stamp, batch.events());
        let view = view(&mirror);
        assert_eq!(
            view.keys().copied().collect::<Vec<_>>(),
            held,
            "{kind} {medium}"
        );
        assert!(view.values().all(|blocks| blocks.len() == 2));
    }
    let rank = mirror.rank(0).unwrap();
    assert!(rank.doubts().is_empty() && !rank.state().broken);
    assert_eq!(rank.tally().iter().count(), 0);
}

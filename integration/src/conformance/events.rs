//! Logs of KV events: recorded, replayed or heard, and how two of them are compared.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::shape::{self, Difference};
use super::wire;

/// One message of an engine's event stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// What subscribers filter by.
    pub topic: String,
    /// Counts the messages of a process.
    pub seq: u64,
    /// Seconds, of a clock of the engine's own.
    pub at: f64,
    /// Data-parallel rank.
    pub rank: Option<u64>,
    /// `BlockStored`, `BlockRemoved`, `AllBlocksCleared`; binary hashes as `hex:…`.
    pub events: Vec<Value>,
}

/// What one process said from its start, in order.
pub type Log = Vec<Batch>;

#[derive(Deserialize)]
struct Line {
    frames_hex: [String; 3],
}

impl Batch {
    /// Reads a message's parts.
    pub fn read(topic: &str, seq: u64, payload: &[u8]) -> Result<Self, String> {
        let value = wire::unpacked(payload)?;
        let Some([at, events, rest @ ..]) = value.as_array().map(Vec::as_slice) else {
            return Err(format!("no event batch: {value}"));
        };
        let (Some(at), Some(events)) = (at.as_f64(), events.as_array()) else {
            return Err(format!("no event batch: {value}"));
        };
        Ok(Self {
            topic: topic.to_owned(),
            seq,
            at,
            rank: rest.first().and_then(Value::as_u64),
            events: events.clone(),
        })
    }
}

/// The recorded logs in `recordings/vllm/kv_events`, by name. A file may hold the logs of several processes in a row.
pub fn recorded() -> &'static BTreeMap<&'static str, Vec<Log>> {
    static LOGS: LazyLock<BTreeMap<&str, Vec<Log>>> = LazyLock::new(|| {
        let files = FILES.into_iter();
        files.map(|(name, text)| (name, logs(text))).collect()
    });
    &LOGS
}

const FILES: [(&str, &str); 5] = [
    (
        "agg",
        include_str!("../../recordings/vllm/kv_events/agg.jsonl"),
    ),
    (
        "decode",
        include_str!("../../recordings/vllm/kv_events/decode.jsonl"),
    ),
    (
        "prefill",
        include_str!("../../recordings/vllm/kv_events/prefill.jsonl"),
    ),
    (
        "dp_rank0_sha256cbor_bytes",
        include_str!("../../recordings/vllm/kv_events/dp_rank0_sha256cbor_bytes.jsonl"),
    ),
    (
        "lora_salt_session_bytes_hash",
        include_str!("../../recordings/vllm/kv_events/lora_salt_session_bytes_hash.jsonl"),
    ),
];

fn logs(text: &str) -> Vec<Log> {
    let mut logs: Vec<Log> = Vec::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line).expect("a recorded event message");
        let frame = |frame: &String| wire::unhex(frame).expect("hexadecimal digits");
        let [topic, seq, payload] = line.frames_hex.each_ref().map(frame);
        let seq = seq.try_into().map_or(0, u64::from_be_bytes);
        let batch = Batch::read(&String::from_utf8_lossy(&topic), seq, &payload);
        let batch = batch.expect("an event batch");
        match logs.last_mut() {
            Some(log) if batch.seq > 0 => log.push(batch),
            _ => logs.push(vec![batch]),
        }
    }
    logs
}

/// Whether block hashes must be the recorded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hashes {
    /// They hash tokens alone, by a rule that is the same everywhere.
    Equal,
    /// They hash generated tokens too, or by a rule of one process: one name for one block is all that is compared.
    Renamed,
}

/// Compares two logs of the same requests, batch by batch.
pub fn compare(recorded: &[Batch], seen: &[Batch], hashes: Hashes) -> Vec<Difference> {
    let mut found = Vec::new();
    if recorded.len() != seen.len() {
        let what = format!("{} batches instead of {}", seen.len(), recorded.len());
        found.push(Difference::new("log", what));
    }
    let (mut then, mut now) = (Names::default(), Names::default());
    for (recorded, seen) in recorded.iter().zip(seen) {
        let (mut recorded, mut seen) = (recorded.clone(), seen.clone());
        if hashes == Hashes::Renamed {
            recorded
                .events
                .iter_mut()
                .for_each(|event| then.rename(event));
            seen.events.iter_mut().for_each(|event| now.rename(event));
        }
        found.extend(batches(&recorded, &seen));
    }
    found
}

fn batches(recorded: &Batch, seen: &Batch) -> Vec<Difference> {
    let at = format!("batch {}", recorded.seq);
    let mut found = Vec::new();
    let outer = |batch: &Batch| (batch.topic.clone(), batch.seq, batch.rank);
    if outer(recorded) != outer(seen) {
        let what = format!("{:?} instead of {:?}", outer(seen), outer(recorded));
        found.push(Difference::new(at.as_str(), what));
    }
    let kinds = |batch: &Batch| -> Vec<String> {
        let kind = |event: &Value| event["type"].as_str().unwrap_or("?").to_owned();
        batch.events.iter().map(kind).collect()
    };
    if kinds(recorded) != kinds(seen) {
        let what = format!("{:?} instead of {:?}", kinds(seen), kinds(recorded));
        found.push(Difference::new(at, what));
        return found;
    }
    for (number, (recorded, seen)) in recorded.events.iter().zip(&seen.events).enumerate() {
        let differences =
            shape::documents(&json!({"event": recorded}), &json!({"event": seen}), &[]);
        let at = format!("{at} event {number}");
        found.extend(differences.into_iter().map(|difference| difference.of(&at)));
    }
    found
}

/// Names for hashes, by their first appearance.
#[derive(Default)]
struct Names {
    known: BTreeMap<String, usize>,
}

impl Names {
    fn rename(&mut self, event: &mut Value) {
        if let Some(hashes) = event["block_hashes"].as_array_mut() {
            for hash in hashes {
                *hash = self.name(hash);
            }
        }
        if let Some(parent) = event
            .get_mut("parent_block_hash")
            .filter(|parent| !parent.is_null())
        {
            *parent = self.name(parent);
        }
    }

    /// Keeps the hash's type.
    fn name(&mut self, hash: &Value) -> Value {
        let next = self.known.len();
        let number = *self.known.entry(hash.to_string()).or_insert(next);
        match hash {
            Value::String(text) => {
                Value::String(format!("hash of {} bytes {number}", text.len() / 2 - 2))
            }
            _ => Value::from(number),
        }
    }
}

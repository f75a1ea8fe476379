//! Laws of an event log that begins with its process.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::super::events::Batch;
use super::super::wire;
use super::{BLOCK_SIZE, Broken};

/// A law: what is wrong with a log under it.
type Law = fn(&[Batch]) -> Vec<String>;

/// All laws of event logs, by name.
pub const LAWS: &[(&str, Law)] = &[
    ("sequence numbers run from 0 without a gap", sequence),
    ("the clock does not run backwards", clock),
    ("an event's tokens fill its blocks", tokens_fill_blocks),
    ("a parent is stored", parent_is_stored),
    ("what is removed was stored", removed_was_stored),
    ("a sequence loses its tail first", tail_first),
    ("a clearing comes first in its batch", cleared_comes_first),
    ("hashes are of one kind", one_kind_of_hash),
    ("every event is for device memory", medium),
];

/// Everything that is wrong with a log.
pub fn broken(log: &[Batch]) -> Vec<Broken> {
    let judged = LAWS.iter().flat_map(|(name, law)| {
        let broken = law(log).into_iter();
        broken.map(move |what| (*name, what))
    });
    judged.collect()
}

fn events(log: &[Batch]) -> impl Iterator<Item = (u64, &Value)> {
    log.iter()
        .flat_map(|batch| batch.events.iter().map(move |event| (batch.seq, event)))
}

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap_or_default()
}

fn hashes(event: &Value) -> impl Iterator<Item = &Value> {
    event["block_hashes"].as_array().into_iter().flatten()
}

/// An event without its long lists.
fn told(seq: u64, event: &Value) -> String {
    let mut event = event.clone();
    event
        .as_object_mut()
        .and_then(|event| event.remove("token_ids"));
    format!("batch {seq}: {event}")
}

fn sequence(log: &[Batch]) -> Vec<String> {
    let counted = log.iter().zip(0..);
    let wrong = counted.filter(|(batch, expected)| batch.seq != *expected);
    wrong
        .map(|(batch, expected)| format!("{} where {expected} is due", batch.seq))
        .collect()
}

fn clock(log: &[Batch]) -> Vec<String> {
    let pairs = log.windows(2);
    pairs
        .filter(|pair| pair[1].at < pair[0].at)
        .map(|pair| format!("batch {} is older than the one before", pair[1].seq))
        .collect()
}

fn tokens_fill_blocks(log: &[Batch]) -> Vec<String> {
    let stored = events(log).filter(|(_, event)| kind(event) == "BlockStored");
    let wrong = stored.filter(|(_, event)| {
        let count = |key: &str| event[key].as_array().map_or(0, Vec::len) as u64;
        let blocks = count("block_hashes");
        blocks == 0
            || event["block_size"] != BLOCK_SIZE
            || count("token_ids") != blocks * BLOCK_SIZE
            || count("extra_keys") != blocks
    });
    wrong.map(|(seq, event)| told(seq, event)).collect()
}

/// The blocks that an engine has said it holds: how often, and after which other block.
///
/// A block may be announced again while it is held (`kv_cache_report_mode: full`), and two requests that computed the same
/// block at the same time hold it twice.
#[derive(Default)]
struct Held<'a> {
    blocks: BTreeMap<String, (u64, Option<&'a Value>)>,
}

impl<'a> Held<'a> {
    fn holds(&self, hash: &Value) -> bool {
        self.blocks
            .get(&hash.to_string())
            .is_some_and(|(count, _)| *count > 0)
    }

    fn take(&mut self, event: &'a Value) {
        match kind(event) {
            "BlockStored" => self.store(event),
            "BlockRemoved" => hashes(event).for_each(|hash| self.remove(hash)),
            _ => self.blocks.clear(),
        }
    }

    fn store(&mut self, event: &'a Value) {
        let mut parent = Some(&event["parent_block_hash"]).filter(|parent| !parent.is_null());
        for hash in hashes(event) {
            let block = self.blocks.entry(hash.to_string()).or_insert((0, parent));
            block.0 += 1;
            parent = Some(hash);
        }
    }

    fn remove(&mut self, hash: &Value) {
        if let Some((count, _)) = self.blocks.get_mut(&hash.to_string()) {
            *count = count.saturating_sub(1);
        }
    }

    fn child_of(&self, hash: &Value) -> Option<&String> {
        let mut held = self.blocks.iter().filter(|(_, (count, _))| *count > 0);
        held.find(|(_, (_, parent))| *parent == Some(hash))
            .map(|(child, _)| child)
    }
}

/// Goes through a log and judges each event by what was held before it.
fn judged<'a>(
    log: &'a [Batch],
    mut judge: impl FnMut(&Held<'a>, &'a Value) -> Option<String>,
) -> Vec<String> {
    let mut held = Held::default();
    let mut wrong = Vec::new();
    for (seq, event) in events(log) {
        wrong.extend(judge(&held, event).map(|what| format!("batch {seq}: {what}")));
        held.take(event);
    }
    wrong
}

fn parent_is_stored(log: &[Batch]) -> Vec<String> {
    judged(log, |held, event| {
        let parent = &event["parent_block_hash"];
        let known = kind(event) != "BlockStored" || parent.is_null() || held.holds(parent);
        (!known).then(|| format!("parent {parent}"))
    })
}

fn removed_was_stored(log: &[Batch]) -> Vec<String> {
    judged(log, |held, event| {
        let removed = hashes(event).filter(|_| kind(event) == "BlockRemoved");
        let mut unknown = removed.filter(|hash| !held.holds(hash));
        unknown.next().map(|hash| format!("block {hash}"))
    })
}

fn tail_first(log: &[Batch]) -> Vec<String> {
    let mut held = Held::default();
    let mut wrong = Vec::new();
    for (seq, event) in events(log) {
        held.take(event);
        if kind(event) != "BlockRemoved" {
            continue;
        }
        for hash in hashes(event).filter(|hash| !held.holds(hash)) {
            let orphan = held.child_of(hash);
            wrong.extend(orphan.map(|child| format!("batch {seq}: {hash} before {child}")));
        }
    }
    wrong
}

fn cleared_comes_first(log: &[Batch]) -> Vec<String> {
    let late = log.iter().filter(|batch| {
        let mut later = batch.events.iter().skip(1);
        later.any(|event| kind(event) == "AllBlocksCleared")
    });
    late.map(|batch| format!("batch {}", batch.seq)).collect()
}

fn one_kind_of_hash(log: &[Batch]) -> Vec<String> {
    let all = || events(log).flat_map(|(_, event)| hashes(event));
    let numbers = all().all(Value::is_u64);
    let bytes = all().all(|hash| {
        let digits = hash.as_str().and_then(|text| text.strip_prefix("hex:"));
        digits.is_some_and(|digits| digits.len() == 64)
    });
    if numbers || bytes {
        Vec::new()
    } else {
        vec!["neither all are 64-bit numbers nor all 32 bytes".to_owned()]
    }
}

/// On the CPU too: what it is called there is "GPU".
fn medium(log: &[Batch]) -> Vec<String> {
    let of_blocks = events(log).filter(|(_, event)| kind(event) != "AllBlocksCleared");
    let wrong = of_blocks.filter(|(_, event)| event["medium"] != "GPU" || event["group_idx"] != 0);
    wrong.map(|(seq, event)| told(seq, event)).collect()
}

/// With `--prefix-caching-hash-algo sha256_cbor` and whole hashes, anybody can compute a block's hash: SHA-256 over the
/// canonical CBOR of [parent, tokens, extra keys]. Only blocks without extra keys are judged, whose third element is null.
pub fn hashes_can_be_computed(log: &[Batch]) -> Vec<String> {
    let root = Sha256::digest(cbor_text("vllm-none-hash"));
    let mut wrong = Vec::new();
    for (seq, event) in events(log).filter(|(_, event)| kind(event) == "BlockStored") {
        let mut parent = match bytes(&event["parent_block_hash"]) {
            Some(parent) => parent,
            None => root.to_vec(),
        };
        let tokens: Vec<u64> = event["token_ids"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        let block_size = usize::try_from(BLOCK_SIZE).unwrap_or(1);
        for (hash, tokens) in hashes(event).zip(tokens.chunks(block_size)) {
            let computed = block_hash(&parent, tokens);
            if bytes(hash).as_deref() != Some(computed.as_slice()) {
                wrong.push(format!(
                    "batch {seq}: {hash} instead of {}",
                    wire::hex(&computed)
                ));
            }
            parent = computed;
        }
    }
    wrong
}

fn bytes(hash: &Value) -> Option<Vec<u8>> {
    wire::unhex(hash.as_str()?.strip_prefix("hex:")?)
}

fn block_hash(parent: &[u8], tokens: &[u64]) -> Vec<u8> {
    let mut cbor = vec![0x83];
    cbor.extend(cbor_head(2, parent.len() as u64));
    cbor.extend(parent);
    cbor.extend(cbor_head(4, tokens.len() as u64));
    cbor.extend(tokens.iter().flat_map(|token| cbor_head(0, *token)));
    cbor.push(0xf6);
    Sha256::digest(&cbor).to_vec()
}

fn cbor_text(text: &str) -> Vec<u8> {
    let mut cbor = cbor_head(3, text.len() as u64);
    cbor.extend(text.bytes());
    cbor
}

/// The head of a CBOR item in its shortest form, which is the canonical one.
fn cbor_head(major: u8, value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    // Small values are in the first byte; of others it says how many bytes follow.
    let (info, following) = match value {
        0..=23 => (bytes[7], 0),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    let mut head = vec![(major << 5) + info];
    head.extend(&bytes[8 - following..]);
    head
}

/// Every stored block lies on one of the sequences that the engine was asked for, and every full block of them was stored.
///
/// A sequence is the prompt and what was generated but for the last token: nothing was computed from that.
pub fn blocks_of(log: &[Batch], sequences: &[Vec<u64>]) -> Vec<String> {
    let block_size = usize::try_from(BLOCK_SIZE).unwrap_or(1);
    let mut prefixes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (seq, event) in events(log).filter(|(_, event)| kind(event) == "BlockStored") {
        let parent = prefixes.get(&event["parent_block_hash"].to_string());
        let mut prefix = parent.cloned().unwrap_or_default();
        let tokens = event["token_ids"].as_array().into_iter().flatten();
        let tokens: Vec<u64> = tokens.filter_map(Value::as_u64).collect();
        for (hash, tokens) in hashes(event).zip(tokens.chunks(block_size)) {
            prefix.extend(tokens);
            prefixes.insert(hash.to_string(), prefix.clone());
        }
        if !sequences
            .iter()
            .any(|sequence| sequence.starts_with(&prefix))
        {
            let tokens = prefix.len();
            wrong.push(format!(
                "batch {seq}: {tokens} tokens that nobody asked for"
            ));
        }
    }
    let stored: BTreeSet<&[u64]> = prefixes.values().map(Vec::as_slice).collect();
    for sequence in sequences {
        let full = (1..=sequence.len() / block_size).map(|block| &sequence[..block * block_size]);
        let mut missing = full.filter(|prefix| !stored.contains(prefix));
        if let Some(prefix) = missing.next() {
            wrong.push(format!(
                "{} tokens of {} were never stored",
                prefix.len(),
                sequence.len()
            ));
        }
    }
    wrong
}

//! Messages of vLLM's event socket, one after the other, against what another implementation of MessagePack makes of them;
//! then the mirror that they build, against what a watcher of its changes knows.
//!
//! The input is `[length u16 BE][step u8][payload]`, again and again; the sequence number goes on by `step`.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::digest::BlockSetDigest;
use baton_proto::event::{KvEvent, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::{BlockEvent, Content};
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::mirror::{Mirror, TIERS};
use baton_sidecar_vllm::events::decoder::Decoder;
use libfuzzer_sys::fuzz_target;
use rmpv::Value;

/// The reference descends by recursion; ours does not, so it reads deeper values, too.
const DEPTH: usize = 100;

/// An event as both sides see it.
#[derive(Debug, PartialEq)]
enum Seen {
    Stored { hashes: Vec<u64>, tokens: Option<Vec<u32>> },
    Removed { hashes: Vec<u64> },
    Cleared,
    Unreadable,
}

fn seen(event: BlockEvent<'_>) -> Seen {
    let numbers = |hashes: &[baton_sidecar_core::mirror::event::EngineHash]| hashes.iter().map(|hash| hash.0).collect();
    match event {
        BlockEvent::Stored(stored) => Seen::Stored {
            hashes: numbers(stored.hashes),
            tokens: match stored.content {
                Content::Told(told) => Some(told.tokens.to_vec()),
                Content::Named => None,
            },
        },
        BlockEvent::Removed(removed) => Seen::Removed { hashes: numbers(removed.hashes) },
        BlockEvent::Cleared { .. } => Seen::Cleared,
        BlockEvent::Unreadable => Seen::Unreadable,
    }
}

/// Whether the reference sees a batch, and its events. Nothing if it cannot tell.
fn reference(payload: &[u8]) -> Option<Result<Vec<Seen>, ()>> {
    let mut rest = payload;
    let batch = match rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH) {
        Ok(batch) => batch,
        Err(rmpv::decode::Error::DepthLimitExceeded) => return None,
        Err(_) => return Some(Err(())),
    };
    Some(if rest.is_empty() { events_of(&batch).ok_or(()) } else { Err(()) })
}

fn events_of(batch: &Value) -> Option<Vec<Seen>> {
    let members: Vec<(&[u8], &Value)> = match batch {
        Value::Array(values) => [&b"ts"[..], b"events", b"data_parallel_rank"].into_iter().zip(values).collect(),
        Value::Map(pairs) => pairs.iter().map(|(key, value)| Some((text(key)?, value))).collect::<Option<_>>()?,
        _ => return None,
    };
    let (mut time, mut events) = (false, None);
    for (key, value) in members {
        match key {
            b"ts" => {
                time = matches!(value, Value::F32(_) | Value::F64(_)) || value.is_u64();
                time.then_some(())?;
            }
            b"events" => {
                let all: &mut Vec<Seen> = events.get_or_insert_default();
                for event in value.as_array()? {
                    all.extend(event_of(event)?);
                }
            }
            _ => {}
        }
    }
    time.then_some(events?)
}

const STORED: &[&str] = &["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"];
const REMOVED: &[&str] = &["block_hashes", "medium", "group_idx"];

/// Outside: the batch is none. Inside: the event is one to pass over.
fn event_of(event: &Value) -> Option<Option<Seen>> {
    let mut fields: BTreeMap<&[u8], &Value> = BTreeMap::new();
    match event {
        Value::Map(pairs) => {
            for (key, value) in pairs {
                fields.insert(text(key)?, value);
            }
        }
        Value::Array(values) => {
            let Some((tag, values)) = values.split_first() else { return Some(None) };
            fields.insert(b"type", tag);
            let order = match text(tag) {
                Some(b"BlockStored") => STORED,
                Some(b"BlockRemoved") => REMOVED,
                _ => &[],
            };
            fields.extend(order.iter().map(|name| name.as_bytes()).zip(values));
        }
        _ => return Some(None),
    }
    Some(meaning(&fields))
}

fn meaning(fields: &BTreeMap<&[u8], &Value>) -> Option<Seen> {
    let field = |name: &str| fields.get(name.as_bytes()).copied().filter(|value| !value.is_nil());
    let kind = text(field("type")?)?;
    if kind == b"AllBlocksCleared" {
        return Some(Seen::Cleared);
    }
    if kind != b"BlockStored" && kind != b"BlockRemoved" {
        return None;
    }
    let medium = field("medium").map(text);
    if let Some(Some(medium)) = medium {
        let known = ["GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL"];
        known.iter().any(|known| medium.eq_ignore_ascii_case(known.as_bytes())).then_some(())?;
    }
    let hashes = field("block_hashes").and_then(Value::as_array);
    let hashes = hashes.and_then(|hashes| hashes.iter().map(hash).collect::<Option<Vec<u64>>>());
    let group = field("group_idx").is_none_or(|group| number(group).is_some());
    let (Some(hashes), true, false) = (hashes, group, medium == Some(None)) else { return Some(Seen::Unreadable) };
    if kind == b"BlockRemoved" {
        return Some(Seen::Removed { hashes });
    }
    let tokens = field("token_ids").and_then(Value::as_array);
    let tokens = tokens.and_then(|tokens| tokens.iter().map(number).collect::<Option<Vec<u32>>>());
    let told = field("block_size").and_then(number).is_some()
        && field("parent_block_hash").is_none_or(|parent| hash(parent).is_some());
    let device = medium.flatten().is_none_or(|medium| medium.eq_ignore_ascii_case(b"GPU"));
    let name_is_strange = field("lora_name").is_some_and(|name| text(name).and_then(|name| std::str::from_utf8(name).ok()).is_none());
    let adapter_is_unknown = name_is_strange || field("lora_name").is_none() && field("lora_id").is_some();
    let placed = device || adapter_is_unknown || field("extra_keys").is_some();
    Some(Seen::Stored { hashes, tokens: tokens.filter(|tokens| told && placed && !tokens.is_empty()) })
}

fn text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::String(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn hash(value: &Value) -> Option<u64> {
    match value {
        Value::Binary(bytes) if !bytes.is_empty() => {
            let mut last = [0; 8];
            let taken = bytes.len().min(8);
            last[8 - taken..].copy_from_slice(&bytes[bytes.len() - taken..]);
            Some(u64::from_be_bytes(last))
        }
        _ => value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)),
    }
}

/// What a watcher knows, who hears of changes only.
#[derive(Default)]
struct Watcher {
    tiers: BTreeMap<Tier, BTreeSet<SequenceHash>>,
    state: ViewState,
}

impl Watcher {
    fn hear(&mut self, changes: &[KvEvent]) {
        for change in changes {
            match change {
                KvEvent::Stored { blocks, tier } => {
                    for block in &blocks.0 {
                        assert!(self.tiers.entry(*tier).or_default().insert(*block), "stored twice");
                    }
                }
                KvEvent::Removed { blocks, tier } => {
                    for block in &blocks.0 {
                        assert!(self.tiers.entry(*tier).or_default().remove(block), "removed twice");
                    }
                }
                KvEvent::Cleared { tier } => self.tiers.retain(|of, _| tier.is_some_and(|tier| *of != tier)),
                KvEvent::Uncertain => self.state.uncertain = true,
                KvEvent::Certain => self.state.uncertain = false,
                KvEvent::Broken => self.state.broken = true,
                KvEvent::Whole => self.state.broken = false,
                KvEvent::Unknown => unreachable!(),
            }
        }
    }

    fn compare(&mut self, mirror: &Mirror) {
        let Some(view) = mirror.rank(0) else { return };
        assert_eq!(self.state, view.state());
        assert_eq!(self.state.uncertain, !view.doubts().is_empty());
        let digests = mirror.digests();
        for tier in TIERS {
            let held: BTreeSet<SequenceHash> = view.blocks(tier).collect();
            assert_eq!(&held, self.tiers.entry(tier).or_default());
            let digest: BlockSetDigest = held.iter().copied().collect();
            let told = digests.iter().find(|digest| digest.tier == tier).map_or((0, 0), |told| (told.blocks, told.digest));
            assert_eq!(told, (held.len() as u64, digest.value()));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (mut mirror, mut decoder, mut watcher) = (Mirror::new("tiny", None), Decoder::default(), Watcher::default());
    let (mut rest, mut seq) = (data, 0u64);
    while let Some((&[high, low, step], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (payload, after) = after.split_at(length.min(after.len()));
        rest = after;
        seq = seq.wrapping_add(u64::from(step));
        let expected = reference(payload);
        let applied = match decoder.decode(payload) {
            Ok(batch) => {
                if let Some(expected) = expected {
                    let got: Vec<Seen> = batch.events().map(seen).collect();
                    assert_eq!(Ok(got), expected);
                }
                let stamp = Stamp { seq, time: batch.time };
                mirror.apply(0, stamp, batch.events())
            }
            Err(malformed) => {
                assert!(matches!(expected, None | Some(Err(()))), "{malformed}");
                assert!(malformed.at <= payload.len());
                mirror.undecoded(0, Stamp { seq, time: f64::NAN })
            }
        };
        watcher.hear(&applied.changes);
        watcher.compare(&mirror);
    }
});

//! Payloads of SGLang's event socket and of its load socket, against what another implementation of MessagePack makes of them.

#![no_main]

use std::collections::BTreeMap;

use baton_sidecar_core::mirror::event::{BlockEvent, Content};
use baton_sidecar_sglang::events::Decoder;
use baton_sidecar_sglang::load::LoadStat;
use libfuzzer_sys::fuzz_target;
use rmpv::Value;

/// The reference descends by recursion; ours does not, so it reads deeper values, too.
const DEPTH: usize = 100;

const STORED: &[&str] = &["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"];

/// An event as both sides see it.
#[derive(Debug, PartialEq)]
enum Seen {
    Stored { hashes: Vec<u64>, tokens: Option<Vec<u32>>, salt: String },
    Removed { hashes: Vec<u64> },
    Cleared,
    Unreadable,
}

fn seen(event: BlockEvent<'_>) -> Seen {
    let numbers = |hashes: &[baton_sidecar_core::mirror::event::EngineHash]| hashes.iter().map(|hash| hash.0).collect();
    match event {
        BlockEvent::Stored(stored) => {
            let told = match stored.content {
                Content::Told(told) => {
                    assert!(told.understood == 0 || told.understood == stored.hashes.len());
                    Some(told)
                }
                Content::Named => None,
            };
            Seen::Stored {
                hashes: numbers(stored.hashes),
                tokens: told.map(|told| told.tokens.to_vec()),
                salt: told.map_or_else(String::new, |told| told.salt.to_owned()),
            }
        }
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
        Value::Array(values) => [&b"ts"[..], b"events", b"attn_dp_rank"].into_iter().zip(values).collect(),
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
                Some(b"BlockRemoved") => &["block_hashes", "medium"],
                _ => &[],
            };
            fields.extend(order.iter().map(|name| name.as_bytes()).zip(values));
            if let (Some(b"BlockStored"), Some(Value::Map(more))) = (text(tag), values.get(STORED.len())) {
                for (key, value) in more {
                    fields.insert(text(key)?, value);
                }
            }
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
    let (Some(hashes), false) = (hashes, medium == Some(None)) else { return Some(Seen::Unreadable) };
    if kind == b"BlockRemoved" {
        return Some(Seen::Removed { hashes });
    }
    let tokens = field("token_ids").and_then(Value::as_array).and_then(tokens);
    let told = field("block_size").and_then(number).is_some()
        && field("parent_block_hash").is_none_or(|parent| hash(parent).is_some());
    let tokens = tokens.filter(|tokens| told && !tokens.is_empty());
    let salt = field("cache_salt").and_then(text).and_then(|salt| std::str::from_utf8(salt).ok());
    let salt = salt.filter(|_| tokens.is_some()).unwrap_or_default().to_owned();
    Some(Seen::Stored { hashes, tokens, salt })
}

/// Tokens, or the first ones of pairs of tokens.
fn tokens(values: &Vec<Value>) -> Option<Vec<u32>> {
    let first = |pair: &Value| match &pair.as_array()?[..] {
        [first, second] if second.is_u64() => number(first),
        _ => None,
    };
    let pairs = matches!(values.first(), Some(Value::Array(pair)) if pair.len() == 2);
    values.iter().map(|value| if pairs { first(value) } else { number(value) }).collect()
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

fuzz_target!(|payload: &[u8]| {
    let expected = reference(payload);
    let mut decoder = Decoder::default();
    match decoder.decode(payload) {
        Ok(batch) => {
            if let Some(expected) = expected {
                let got: Vec<Seen> = batch.events().map(seen).collect();
                assert_eq!(Ok(got), expected);
            }
        }
        Err(malformed) => {
            assert!(matches!(expected, None | Some(Err(()))), "{malformed}");
            assert!(malformed.at <= payload.len());
        }
    }
    if let Some(stat) = LoadStat::read(payload) {
        let mut rest = payload;
        let Ok(Value::Array(values)) = rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH) else { return };
        let told = |at: usize| values.get(at).and_then(Value::as_u64).unwrap_or_default();
        assert_eq!([stat.running, stat.waiting, stat.used_tokens, stat.all_tokens, stat.waiting_tokens], [1, 2, 3, 4, 6].map(told));
    }
});

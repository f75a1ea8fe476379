//! What must hold of more than an exchange: the event log, the families of metrics, the keys of the configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::super::answer::Body;
use super::super::events::Batch;
use super::super::shape::Difference;
use super::super::wire;
use super::Session;

/// The recorded events of the aggregated server, whose session [`Session::Aggregated`] is; its first ones are not in it.
pub fn log() -> Vec<Batch> {
    #[derive(Deserialize)]
    struct Message {
        topic: String,
        seq: u64,
        frames_hex: [String; 3],
    }
    let text = include_str!("../../../recordings/sglang/zmq_agg_gpu.jsonl");
    let messages = text.lines().map(|line| {
        let line: Message = serde_json::from_str(line).expect("a recorded message");
        let payload = wire::unhex(&line.frames_hex[2]).expect("hexadecimal digits");
        Batch::read(&line.topic, line.seq, &payload).expect("a recorded batch")
    });
    messages.collect()
}

/// Compares what was told with what was recorded, batch by batch: what it is about, how much of it, and every hash that
/// follows from tokens which both have. Pages that a model wrote are named otherwise. How many pages have the recorded hash.
pub fn compare_logs(recorded: &[Batch], seen: &[Batch]) -> Result<usize, Difference> {
    if recorded.len() != seen.len() {
        let what = format!("{} batches instead of {}", seen.len(), recorded.len());
        return Err(Difference::new("log", what));
    }
    let mut same = 0;
    for (recorded, seen) in recorded.iter().zip(seen) {
        if recorded.events.len() != seen.events.len() {
            let what = format!("{:?} instead of {:?}", seen.events, recorded.events);
            return Err(Difference::new(format!("batch {}", recorded.seq), what));
        }
        for (recorded_event, seen_event) in recorded.events.iter().zip(&seen.events) {
            let found = compare_events(recorded_event, seen_event);
            same +=
                found.map_err(|what| Difference::new(format!("batch {}", recorded.seq), what))?;
        }
    }
    Ok(same)
}

fn compare_events(recorded: &Value, seen: &Value) -> Result<usize, String> {
    let told = format!("{seen} instead of {recorded}");
    let shape = |event: &Value| {
        let mut event = event.clone();
        for list in ["block_hashes", "token_ids"] {
            if let Some(items) = event[list].as_array() {
                event[list] = items.len().into();
            }
        }
        if let Some(object) = event.as_object_mut() {
            let follows = object
                .remove("parent_block_hash")
                .map(|parent| !parent.is_null());
            object.insert("follows".to_owned(), follows.into());
        }
        event
    };
    if shape(recorded) != shape(seen) {
        return Err(told);
    }
    let pages = recorded["block_hashes"].as_array().map_or(0, Vec::len);
    if pages == 0 || recorded["token_ids"] != seen["token_ids"] {
        return Ok(0);
    }
    if recorded["block_hashes"] != seen["block_hashes"] {
        return Err(told);
    }
    Ok(pages)
}

/// The recorded families of metrics, with their types; those of a page are among them.
pub fn families() -> BTreeMap<String, String> {
    let pages = Session::Pair
        .exchanges()
        .into_iter()
        .chain(Session::Aggregated.exchanges());
    let pages = pages.filter(|exchange| exchange.path == "/metrics");
    let texts = pages.filter_map(|page| match page.answer?.body {
        Body::Text(text) => Some(types(&text)),
        _ => None,
    });
    texts.flatten().collect()
}

/// Families and their types.
pub fn types(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

/// The keys of `/server_info` that were recorded, of the engine itself and of its ranks.
pub fn server_info_keys(info: &Value) -> [BTreeSet<String>; 2] {
    [info, &info["internal_states"][0]].map(|object| {
        let keys = object
            .as_object()
            .into_iter()
            .flat_map(|object| object.keys());
        keys.cloned().collect()
    })
}

/// The recorded `/server_info` of prefill.
pub fn server_info() -> Value {
    let text = include_str!("../../../recordings/sglang/server_info_prefill.json");
    serde_json::from_str(text).expect("the recording is JSON")
}

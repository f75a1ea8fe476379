//! What the router and the sidecar know, as they tell it.

use std::collections::BTreeSet;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use baton_proto::call::path;
use baton_proto::frame::FrameReader;
use baton_proto::hash::SequenceHash;
use baton_proto::watch::WatchFrame;
use baton_proto::worker::Tier;
use serde_json::Value;

use crate::page::Page;
use crate::real::http;

/// The only rank of the engine.
const RANK: u32 = 0;

/// What the router knows of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// Exactly what the engine holds.
    pub certain: bool,
    /// Blocks on the device.
    pub blocks: u64,
    /// Their digest.
    pub digest: u64,
    /// How often the view did not fit and was built anew.
    pub resyncs: u64,
}

/// What the sidecar tells whoever watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Exactly what the engine holds.
    pub certain: bool,
    /// Blocks on the device.
    pub blocks: BTreeSet<SequenceHash>,
}

/// What the sidecar shows operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// All ranks are exact.
    pub certain: bool,
    /// Blocks on the device.
    pub blocks: i64,
}

/// `GET /fleet`; nothing while the router does not know the worker or its rank.
pub fn router(base: &str, token: &str, worker: &str) -> Result<Option<Routed>> {
    let fleet = http::get(&format!("{base}/fleet"), Some(token))?.json()?;
    let workers = fleet["workers"]
        .as_array()
        .context("a fleet without workers")?;
    let Some(known) = workers.iter().find(|known| known["id"] == worker) else {
        return Ok(None);
    };
    let view = &known["view"];
    let ranks = view["ranks"]
        .as_array()
        .context("a worker without a view")?;
    let Some(rank) = ranks.iter().find(|rank| rank["rank"] == RANK) else {
        return Ok(None);
    };
    let digest = match rank["digest"]["device"].as_str() {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => 0,
    };
    Ok(Some(Routed {
        certain: rank["certain"] == true,
        blocks: number(&rank["blocks"]["device"])?,
        digest,
        resyncs: number(&view["resyncs"])?,
    }))
}

/// Whether the router sends the worker requests.
pub fn is_ready(base: &str, token: &str, worker: &str) -> Result<bool> {
    let Ok(answer) = http::get(&format!("{base}/fleet"), Some(token)) else {
        return Ok(false);
    };
    let fleet = answer.json()?;
    let workers = fleet["workers"]
        .as_array()
        .context("a fleet without workers")?;
    let ready = |known: &Value| known["id"] == worker && known["state"] == "ready";
    Ok(workers.iter().any(ready))
}

/// `GET /metrics` of the sidecar; nothing while no rank is watched.
pub fn sidecar(base: &str) -> Result<Option<Shown>> {
    let page = metrics(base)?;
    let ranks = |state| page.sum("baton_sidecar_view_ranks", &[("state", state)]);
    let (exact, uncertain) = (ranks("exact"), ranks("uncertain"));
    Ok((exact + uncertain > 0).then(|| Shown {
        certain: uncertain == 0,
        blocks: page.sum("baton_sidecar_view_blocks", &[("tier", "device")]),
    }))
}

/// A page of metrics.
pub fn metrics(base: &str) -> Result<Page> {
    Ok(Page::new(http::get(&format!("{base}/metrics"), None)?.text))
}

/// The snapshot at the beginning of a watch stream; nothing if the sidecar watches no rank.
pub fn watch(base: &str, token: &str) -> Result<Option<Watched>> {
    let url = format!("{base}{}", path::WATCH);
    let request = http::agent()
        .get(&url)
        .header("authorization", format!("Bearer {token}"));
    let answer = request.call().context("the sidecar cannot be watched")?;
    let mut stream = answer.into_body().into_reader();
    let mut frames = FrameReader::default();
    let mut bytes = vec![0; 64 << 10];
    let mut watched = None;
    loop {
        let length = stream.read(&mut bytes)?;
        ensure!(length > 0, "a watch stream ended before its snapshot");
        frames.push(&bytes[..length]);
        while let Some(frame) = frames.next::<WatchFrame>()? {
            if is_last(frame, &mut watched) {
                return Ok(watched);
            }
        }
    }
}

/// Takes a frame; whether no more belong to the snapshot. One without any rank has no part, and a heartbeat follows.
fn is_last(frame: WatchFrame, watched: &mut Option<Watched>) -> bool {
    let (state, tier, blocks, last) = match frame {
        WatchFrame::Snapshot {
            state,
            tier,
            blocks,
            last,
            ..
        } => (state, tier, blocks, last),
        other => return matches!(other, WatchFrame::Heartbeat { .. }),
    };
    let watched = watched.get_or_insert_with(|| Watched {
        certain: !state.uncertain,
        blocks: BTreeSet::new(),
    });
    if tier == Tier::Device {
        watched.blocks.extend(blocks.0);
    }
    last
}

fn number(value: &Value) -> Result<u64> {
    value
        .as_u64()
        .with_context(|| format!("{value} is no number"))
}

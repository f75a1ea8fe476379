//! What a sidecar does with an event before the router hears of it: the engine's names become sequence hashes.
//!
//! Peers key their trees by the engine's names, so their figures have this in them; ours are added up. Each sidecar has a
//! host of its own, so one is measured after another.

use anyhow::{Result, ensure};
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::EngineHash;
use baton_sidecar_core::mirror::holdings::{Holdings, Taken};

use crate::clock;
use crate::workload::{Event, Workload};

struct Announced {
    stored: bool,
    parent: Option<EngineHash>,
    hashes: Vec<EngineHash>,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) ns_per_block: f64,
    pub(crate) bytes_per_block: f64,
}

pub(crate) fn measure(workload: &Workload, workers: usize) -> Result<Measured> {
    let before = clock::heap()?;
    let mut mirrors = Vec::with_capacity(workers);
    let (mut blocks, mut time) = (0, 0);
    for worker in 0..workers {
        let mut mirror = Holdings::default();
        let events = workload.filling().filter(|event| event.worker() == worker);
        let events: Vec<Announced> = events.map(|event| announced(&event)).collect();
        blocks += events.iter().map(|event| event.hashes.len()).sum::<usize>();
        let start = clock::thread_ns();
        for event in &events {
            apply(&mut mirror, event)?;
        }
        time += clock::thread_ns() - start;
        mirrors.push(mirror);
    }
    let bytes = clock::heap()?.saturating_sub(before);
    let held: u64 = mirrors
        .iter()
        .map(|mirror| mirror.view(Tier::Device).blocks)
        .sum();
    ensure!(
        held == workload.resident as u64,
        "the mirrors hold {held} blocks"
    );
    Ok(Measured {
        ns_per_block: time as f64 / blocks as f64,
        bytes_per_block: bytes as f64 / workload.resident as f64,
    })
}

fn announced(event: &Event<'_>) -> Announced {
    match *event {
        Event::Stored { parent, blocks, .. } => Announced {
            stored: true,
            parent: parent.map(EngineHash),
            hashes: blocks
                .iter()
                .map(|block| EngineHash(block.sequence))
                .collect(),
        },
        Event::Removed { blocks, .. } => Announced {
            stored: false,
            parent: None,
            hashes: blocks.iter().copied().map(EngineHash).collect(),
        },
    }
}

fn apply(mirror: &mut Holdings, event: &Announced) -> Result<()> {
    if let Some(parent) = event.parent {
        ensure!(mirror.find(parent).is_some(), "a parent is not there");
    }
    for (place, hash) in event.hashes.iter().enumerate() {
        mirror.fetch_ahead(&event.hashes, place);
        if event.stored {
            store(mirror, *hash)?;
        } else {
            let taken = mirror.take(*hash, Tier::Device);
            ensure!(matches!(taken, Taken::Gone(_)), "a block was not there");
        }
    }
    Ok(())
}

/// As `RankView` does. Computing the sequence hash is left out: whoever wants one must, and the peers are given theirs.
fn store(mirror: &mut Holdings, hash: EngineHash) -> Result<()> {
    let sequence = SequenceHash(hash.0 ^ 0x5bd1_e995);
    let new = mirror.put_new(hash, sequence, Tier::Device);
    ensure!(new, "a block was there already");
    Ok(())
}

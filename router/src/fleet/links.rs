//! Has the way between workers measured, one pair after the other, so that plans know something of it before the first
//! transfer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::Incarnation;
use baton_proto::link::LinkMeasured;
use baton_proto::load::Transport;

use super::{Fleet, Snapshot, WorkerView};
use crate::calls::Calls;

/// Pause between two looks for pairs that were not measured.
const PAUSE: Duration = Duration::from_secs(2);

/// Pause between two measurements: engines have to live beside them.
const BREATH: Duration = Duration::from_millis(200);

/// A prefill engine's life and a decode engine's.
type Lives = (Incarnation, Incarnation);

/// Measures until it is dropped.
pub async fn measure(fleet: Arc<Fleet>, calls: Calls) {
    let mut seen = HashSet::new();
    loop {
        let snapshot = fleet.snapshot();
        let alive: HashSet<Lives> = pairs(&snapshot).map(|(lives, ..)| lives).collect();
        seen.retain(|lives| alive.contains(lives));
        for (lives, prefill, decode) in pairs(&snapshot) {
            if !seen.insert(lives) {
                continue;
            }
            match calls.measure_link(&prefill.worker, &decode.worker).await {
                Ok(measured) => note(&fleet, prefill, decode, &measured),
                Err(why) => {
                    tracing::debug!(from = %prefill.id(), to = %decode.id(), %why, "no link was measured");
                }
            }
            tokio::time::sleep(BREATH).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn pairs(snapshot: &Snapshot) -> impl Iterator<Item = (Lives, &WorkerView, &WorkerView)> {
    crate::planner::pairs(snapshot).filter_map(|(prefill, decode)| {
        let (prefill, decode) = (&snapshot.workers[prefill], &snapshot.workers[decode]);
        let lives = prefill
            .incarnation()
            .cloned()
            .zip(decode.incarnation().cloned());
        Some((lives?, prefill, decode))
    })
}

fn note(fleet: &Fleet, prefill: &WorkerView, decode: &WorkerView, measured: &LinkMeasured) {
    let sides = (
        (prefill.worker.books().as_ref(), prefill.place()),
        (decode.worker.books().as_ref(), decode.place()),
    );
    let LinkMeasured {
        bytes,
        seconds,
        small_bytes,
        small_seconds,
        transport,
    } = *measured;
    for (bytes, seconds) in [(small_bytes, small_seconds), (bytes, seconds)] {
        if seconds.is_finite() && seconds > 0.0 {
            fleet
                .planner
                .link_measured(sides.0, sides.1, bytes, seconds);
        }
    }
    let (from, to) = (prefill.id(), decode.id());
    let mib_per_s = to_mib(bytes) / seconds;
    if transport == Transport::Tcp {
        tracing::warn!(%from, %to, mib_per_s, "the link is TCP");
    } else {
        tracing::info!(%from, %to, mib_per_s, transport = transport.word(), "a link was measured");
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a log line")]
fn to_mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

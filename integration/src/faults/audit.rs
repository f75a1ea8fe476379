//! What must be true when nothing is wrong any more and nobody asks.

use std::net::SocketAddr;
use std::time::Duration;

use baton_proto::digest::BlockSetDigest;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::seat::RouterSeat;
use super::stand::{Stand, Worker};
use super::tally::Tally;
use crate::emulated::vllm::Fate;
use crate::fleet::Emulated;
use crate::{client, fleet, kv_scene};

/// So long nobody asks before it is looked at what is left, beyond what engines may hold it for.
const QUIET: Duration = Duration::from_secs(5);

/// So long workers may take to be back at every router.
const COMES_BACK: Duration = Duration::from_secs(20);

/// Digests come every two seconds; a view has so long to be the engine's.
const CONVERGES: Duration = Duration::from_secs(6);

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(50);

/// Lifts all faults, waits, and looks at everything.
pub async fn quiet_point(stand: &Stand, tally: &mut Tally) {
    lift(stand).await;
    all_are_back(stand, tally).await;
    let held = stand.workers().map(|worker| worker.subject().holds_for());
    sleep(QUIET + held.max().unwrap_or_default()).await;
    for worker in stand.workers() {
        engine_is_empty(worker, tally);
        sidecar_is_idle(worker, tally).await;
    }
    for (number, router) in stand.routers.iter().enumerate() {
        router_is_idle(number, router, tally).await;
        for worker in stand.workers() {
            view_is_right(number, router, worker, tally).await;
        }
    }
    forget_requests(stand, tally);
    let engines = stand.workers().map(Worker::engine);
    let timed_out: u64 = engines.filter_map(Emulated::timed_out_blocks).sum();
    tally.timed_out_blocks = usize::try_from(timed_out).unwrap_or(usize::MAX);
}

/// Everything runs and nothing is wrong with it.
pub async fn lift(stand: &Stand) {
    for router in &stand.routers {
        router.start().await;
    }
    for worker in stand.workers() {
        worker.lift().await;
    }
}

/// What engines were asked is counted, and forgotten by them.
pub fn forget_requests(stand: &Stand, tally: &mut Tally) {
    for worker in stand.workers() {
        tally.reached(worker.subject(), &worker.engine().take_seen());
    }
}

/// Every router uses every worker again.
pub async fn all_are_back(stand: &Stand, tally: &mut Tally) {
    let wanted = stand.workers().count() as u64;
    for (number, router) in stand.routers.iter().enumerate() {
        let ready = becomes(COMES_BACK, || async {
            let answer = client::call(router.address(), "GET", "/readyz", &[], "").await;
            let ready = answer.json()["workers_ready"].as_u64().unwrap_or_default();
            (ready == wanted).then_some(ready).ok_or(ready)
        });
        if let Err(ready) = ready.await {
            tally.not_ready += usize::try_from(wanted - ready).unwrap_or_default();
            tally.tell(
                "not_ready",
                format!("router {number} sees {ready} of {wanted} workers ready"),
            );
        }
    }
}

/// No block of an engine is in use that is not merely cached. KV held for decode is told by its id.
fn engine_is_empty(worker: &Worker, tally: &mut Tally) {
    let engine = worker.engine();
    for of in engine.died_of() {
        tally.killed_engines += 1;
        tally.tell(
            "killed_engines",
            format!("the engine of {} died of {of}", worker.name),
        );
    }
    let held = engine.held();
    tally.holds(&engine.agent(), &held);
    let works = engine.working_on();
    let blocks: usize = engine.stats().iter().map(|stats| stats.blocks_used).sum();
    let told: usize = held.iter().map(|(_, blocks)| blocks).sum();
    // Held KV may share blocks, so that fewer are in use than are told of; of a request that still runs all are in use.
    let lost = blocks.saturating_sub(told);
    let works = usize::try_from(works).unwrap_or_default();
    if lost > 0 || works > 0 {
        // A request that still waits will have a block at least.
        tally.leaked_blocks += lost.max(works);
        let seen = engine.seen();
        let running = seen.iter().filter(|seen| seen.fate() == Fate::Running);
        let ids: Vec<&str> = running
            .filter_map(|seen| seen.header("x-request-id"))
            .collect();
        tally.tell(
            "leaked_blocks",
            format!(
                "{} works on {works} requests in {lost} blocks: {ids:?}",
                worker.name
            ),
        );
    }
}

async fn sidecar_is_idle(worker: &Worker, tally: &mut Tally) {
    let page = fleet::page(worker.sidecar()).await;
    let mut open = vec![
        ("legs", page.sum("baton_sidecar_in_flight", &[])),
        ("queued legs", page.sum("baton_sidecar_queued", &[])),
    ];
    for state in ["running", "claimed", "stranded"] {
        let tickets = page.sum("baton_sidecar_tickets", &[("state", state)]);
        open.push((state, tickets));
    }
    still_open(&format!("the sidecar of {}", worker.name), &open, tally);
}

async fn router_is_idle(number: usize, router: &RouterSeat, tally: &mut Tally) {
    let page = fleet::page(router.address()).await;
    let view = fleet::view(router.address()).await;
    let workers = view["workers"].as_array().into_iter().flatten();
    let reserved = workers.filter_map(|worker| worker["reserved"]["requests"].as_i64());
    let open = [
        ("requests", page.sum("baton_router_in_flight", &[])),
        ("reservations", reserved.sum()),
    ];
    still_open(&format!("router {number}"), &open, tally);
}

fn still_open(whose: &str, open: &[(&str, i64)], tally: &mut Tally) {
    for (what, count) in open.iter().filter(|(_, count)| *count != 0) {
        tally.open_work += usize::try_from(count.unsigned_abs()).unwrap_or_default();
        tally.tell("open_work", format!("{whose} has still {count} {what}"));
    }
}

/// What a router that is certain knows is what the engine holds.
async fn view_is_right(number: usize, router: &RouterSeat, worker: &Worker, tally: &mut Tally) {
    let engine = worker.engine();
    let held = kv_scene::held_by(engine, engine.block_size(), 0);
    let digest: BlockSetDigest = held.iter().copied().collect();
    let holds = (held.len() as u64, digest.value());
    let right = becomes(CONVERGES, || async {
        match certain_view(router.address(), &worker.name).await {
            Some(known) if known != holds => Err(known),
            // An uncertain rank claims nothing.
            known => Ok(known),
        }
    });
    match right.await {
        Ok(known) => tally.views_right += usize::from(known.is_some()),
        Err(known) => {
            tally.view_wrong += 1;
            tally.tell("view_wrong", format!(
                "router {number} is certain of {}: {} blocks, digest {:016x}; it holds {} with {:016x}",
                worker.name, known.0, known.1, holds.0, holds.1
            ));
        }
    }
}

/// Blocks and digest of a worker's rank, if the router is certain of them.
async fn certain_view(router: SocketAddr, name: &str) -> Option<(u64, u64)> {
    let view = fleet::view(router).await;
    let mut workers = view["workers"].as_array()?.iter();
    let worker: &Value = workers.find(|worker| worker["id"] == name)?;
    let rank = worker["view"]["ranks"].get(0)?;
    let digest = rank["digest"]["device"].as_str().unwrap_or("0");
    let blocks = rank["blocks"]["device"].as_u64().unwrap_or_default();
    let known = (blocks, u64::from_str_radix(digest, 16).ok()?);
    (rank["certain"] == true).then_some(known)
}

/// Waits until something is as it should be; the last thing that was seen instead.
async fn becomes<T, E, F>(patience: Duration, mut look: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Err(_) if Instant::now() < deadline => sleep(GLANCE).await,
            seen => return seen,
        }
    }
}

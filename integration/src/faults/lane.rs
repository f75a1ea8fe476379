//! Faults happen: each begins, lasts and ends.

use std::future::ready;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::schedule::{Fault, Kind, Lane};
use super::stand::{Sabotage, Stand, Worker};
use crate::emulated::vllm::script::Leg;
use crate::emulated::vllm::{EngineId, Fate, Seen};
use crate::fleet;
use crate::kv_scene::proxy::Way;

/// A worker has so long to come back before the next fault of its lane.
const BREATH: Duration = Duration::from_millis(250);

/// A slow engine works for so long, and then stands still for so long.
const SLOW: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(25));

/// Batches of KV events that are lost at a time.
const LOST_BATCHES: usize = 3;

/// So long a swap waits for its decode engine to be known, and for a handoff.
const JOINS: Duration = Duration::from_secs(10);
const FILLS: Duration = Duration::from_secs(10);

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(20);

/// Between two orders to drop everything.
const ORDERS: Duration = Duration::from_millis(4);

/// After how many requests the first of these faults begins.
pub fn first_due(faults: &[Fault]) -> usize {
    faults.first().map_or(usize::MAX, |fault| fault.after)
}

/// Lets a lane's faults befall the fleet until all have been or nobody asks any more.
///
/// `begun` is how many requests of the phase have begun; `next_due` is told after how many the next fault begins. How many
/// faults were there is returned.
pub async fn run(
    stand: &Stand,
    lane: Lane,
    faults: &[Fault],
    mut begun: watch::Receiver<usize>,
    next_due: impl Fn(usize),
    over: &CancellationToken,
) -> usize {
    let mut happened = 0;
    for (number, fault) in faults.iter().enumerate() {
        let due = begun.wait_for(|begun| *begun > fault.after);
        if over.run_until_cancelled(due).await.is_none() {
            break;
        }
        let has_begun = || next_due(first_due(&faults[number + 1..]));
        if fault.kind != Kind::Swap {
            has_begun();
        }
        tracing::info!(?lane, %fault, "a fault begins");
        match lane {
            Lane::Prefill => befall(&stand.prefill[fault.target], fault, over).await,
            Lane::Decode if fault.kind == Kind::Swap => {
                swap(stand, &stand.decode[fault.target], fault, has_begun, over).await;
            }
            Lane::Decode => befall(&stand.decode[fault.target], fault, over).await,
            Lane::Router => stop_router(stand, fault).await,
            Lane::Events => disturb_events(stand, fault).await,
        }
        tracing::info!(?lane, %fault, "a fault has ended");
        happened += 1;
    }
    happened
}

async fn disturb_events(stand: &Stand, fault: &Fault) {
    let silently = stand.sabotage == Some(Sabotage::Gap);
    let worker = stand.workers().nth(fault.target);
    let worker = worker.expect("a fault's target is one of the workers");
    match fault.kind {
        Kind::RenewEngine => worker.boot(EngineId::New).await,
        _ => worker.lose_events(LOST_BATCHES, silently).await,
    }
}

async fn stop_router(stand: &Stand, fault: &Fault) {
    let router = &stand.routers[fault.target];
    match fault.kind {
        Kind::StopRouter => router.stop().await,
        _ => router.kill().await,
    }
    sleep(fault.lasts).await;
    router.start().await;
    sleep(BREATH).await;
}

/// Nobody waits for the end of a fault that nobody can see.
async fn last(fault: &Fault, over: &CancellationToken) {
    let _ = over.run_until_cancelled(sleep(fault.lasts)).await;
}

/// Where nobody can tell the engine that a leg is over, it has to find out for itself that its connection is closed; elsewhere
/// it is to be told.
async fn befall(worker: &Worker, fault: &Fault, over: &CancellationToken) {
    let cut_off = matches!(
        fault.kind,
        Kind::KillSidecar | Kind::MuteEngine | Kind::CutEngine | Kind::PauseEngine
    );
    worker.engine().watch_connections(cut_off);
    befall_worker(worker, fault, over).await;
    let _ = over.run_until_cancelled(sleep(BREATH)).await;
    worker.engine().watch_connections(false);
}

async fn befall_worker(worker: &Worker, fault: &Fault, over: &CancellationToken) {
    match fault.kind {
        Kind::KillEngine { same_id } => {
            worker.kill_engine().await;
            last(fault, over).await;
            worker.boot(life(same_id)).await;
        }
        Kind::PauseEngine => {
            stop(worker, true);
            last(fault, over).await;
            stop(worker, false);
        }
        Kind::SlowEngine => slow(worker, fault.lasts, over).await,
        Kind::StallLink => {
            worker.engine().stall_link(true);
            last(fault, over).await;
            worker.engine().stall_link(false);
        }
        Kind::MuteSidecar | Kind::MuteEngine => {
            let sidecar = fault.kind == Kind::MuteSidecar;
            let proxy = if sidecar {
                worker.front()
            } else {
                worker.back()
            };
            proxy.set(Way::Stalled);
            last(fault, over).await;
            proxy.set(Way::Through);
            // Some networks come back with all that was under way, others without.
            if fault.after.is_multiple_of(2) {
                proxy.cut();
            }
        }
        Kind::CutSidecar => worker.front().cut(),
        Kind::CutEngine => worker.back().cut(),
        Kind::KillSidecar => {
            worker.kill_sidecar().await;
            last(fault, over).await;
            worker.start_sidecar().await;
        }
        Kind::DrainWorker => {
            worker.drain().await;
            last(fault, over).await;
            worker.start_sidecar().await;
        }
        Kind::AbortAll => abort_all(worker, fault.lasts, over).await,
        Kind::KillRouter | Kind::StopRouter | Kind::LoseEvents | Kind::RenewEngine | Kind::Swap => {
            unreachable!("they are no affair of a worker's lane")
        }
    }
}

fn life(same_id: bool) -> EngineId {
    if same_id {
        EngineId::Same
    } else {
        EngineId::New
    }
}

/// As SIGSTOP and SIGCONT do: neither its scheduler nor its server nor its memory answers, and nothing of what it was sent is
/// lost.
fn stop(worker: &Worker, stopped: bool) {
    worker.engine().freeze(stopped);
    worker.engine().stall_link(stopped);
    worker
        .back()
        .set(if stopped { Way::Stalled } else { Way::Through });
}

async fn abort_all(worker: &Worker, lasts: Duration, over: &CancellationToken) {
    let aborting = async {
        loop {
            worker.abort_all().await;
            sleep(ORDERS).await;
        }
    };
    let bounded = tokio::time::timeout(lasts, aborting);
    let _ = over.run_until_cancelled(bounded).await;
}

async fn slow(worker: &Worker, lasts: Duration, over: &CancellationToken) {
    let toggling = async {
        loop {
            worker.engine().freeze(true);
            sleep(SLOW.1).await;
            worker.engine().freeze(false);
            sleep(SLOW.0).await;
        }
    };
    let bounded = tokio::time::timeout(lasts, toggling);
    let _ = over.run_until_cancelled(bounded).await;
    worker.engine().freeze(false);
}

/// The decode engine has met nobody yet when it goes on, so that whatever is at the prefill engine's place by then is
/// taken for what was handed over: only settling tells. It has begun when routers send handoffs to the new engine.
async fn swap(
    stand: &Stand,
    decode: &Worker,
    fault: &Fault,
    has_begun: impl FnOnce(),
    over: &CancellationToken,
) {
    decode.boot(EngineId::New).await;
    within(JOINS, over, || has_engine(decode)).await;
    decode.engine().freeze(true);
    let before = decode.engine().seen().len();
    has_begun();
    within(FILLS, over, || {
        ready(holder(stand, decode, before).is_some())
    })
    .await;
    last(fault, over).await;
    if let Some(prefill) = holder(stand, decode, before) {
        tracing::info!(
            prefill = prefill.name,
            decode = decode.name,
            "handoffs are swapped"
        );
        prefill.boot(EngineId::Same).await;
    }
    decode.engine().freeze(false);
    let _ = over.run_until_cancelled(sleep(BREATH)).await;
}

/// Waits until something holds, but not for long, and not when nobody asks any more.
async fn within<F: Future<Output = bool>>(
    bound: Duration,
    over: &CancellationToken,
    holds: impl Fn() -> F,
) {
    let waiting = async {
        while !holds().await {
            sleep(GLANCE).await;
        }
    };
    let waiting = tokio::time::timeout(bound, waiting);
    let _ = over.run_until_cancelled(waiting).await;
}

/// Whether the worker's sidecar has an engine, which routers learn at once.
async fn has_engine(worker: &Worker) -> bool {
    let page = fleet::page(worker.sidecar()).await;
    page.sum("baton_sidecar_engine_up", &[]) == 1
}

/// Who holds most of what this engine was asked to decode since, and is alive.
fn holder<'a>(stand: &'a Stand, decode: &Worker, since: usize) -> Option<&'a Worker> {
    let seen = decode.engine().seen().into_iter().skip(since);
    let waiting: Vec<Seen> = seen
        .filter(|seen| seen.leg == Leg::Decode && seen.fate() == Fate::Running)
        .collect();
    let held_by = |worker: &Worker| {
        let mark = worker.subject().mark(worker.engine());
        let holds = |seen: &&Seen| mark.as_ref().is_some_and(|mark| seen.body.contains(mark));
        waiting.iter().filter(holds).count()
    };
    let counted = stand.prefill.iter().map(|worker| (held_by(worker), worker));
    let (held, most) = counted.max_by_key(|(held, _)| *held)?;
    (held > 0).then_some(most)
}

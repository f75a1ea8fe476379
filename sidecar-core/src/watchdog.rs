//! The watchdog: looks at the engine about once a second, notices its restarts, and keeps the books swept.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::load::{LoadReport, Measured, Origin, Stall};
use baton_proto::{ErrorKind, Stage};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::core::Core;
use crate::engine::{Attached, Engine, EngineLoad};
use crate::relay::progress::Own;
use crate::relearn::Relearn;
use crate::status::EngineStatus;
use crate::transfers::{Carried, Transfers};

/// How often the engine is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Longest an engine may take for a sign of life. One that is merely busy answers within it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest an engine may take to introduce itself.
const ATTACH_TIME: Duration = Duration::from_secs(20);

/// Signs of life that may be missed in a row before the engine counts as down. A refused connection counts at once.
const MISSES: u32 = 3;

/// The engine introduces itself anew every so many ticks, so that a restart between two ticks is noticed.
const REATTACH_TICKS: u64 = 5;

/// Runs until the sidecar closes.
pub async fn run<E: Engine>(core: Arc<Core<E>>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut dog = Watchdog {
        misses: 0,
        said: None,
    };
    let mut relearn = Relearn::default();
    let mut transfers = Transfers::default();
    for tick in 0u64.. {
        tokio::select! {
            () = core.closing.cancelled() => return,
            () = core.look_again.notified() => {}
            _ = ticks.tick() => {}
        }
        dog.look(&core, tick).await;
        core.ledger.sweep(|router| core.routers.is_gone(router));
        if tick % 60 == 59 {
            core.used.sweep();
            core.routers.sweep();
            core.links.sweep();
        }
        if core.incarnation().is_some() {
            relearn.look(&core).await;
            core.publish_load(load(&core, &mut transfers).await);
        }
        core.publish();
    }
}

struct Watchdog {
    misses: u32,
    said: Option<String>,
}

impl Watchdog {
    async fn look<E: Engine>(&mut self, core: &Core<E>, tick: u64) {
        let was_up = core.incarnation().is_some();
        if was_up {
            match timeout(PATIENCE, core.engine.alive()).await {
                Ok(Ok(())) => self.misses = 0,
                // Nobody listens any more: the process is gone.
                Ok(Err(error)) if error.kind == ErrorKind::Unreachable => self.misses = MISSES,
                Ok(Err(_)) | Err(_) => self.misses += 1,
            }
            if self.misses >= MISSES {
                tracing::warn!("the engine does not answer");
                return core.engine_seen(EngineStatus::Down);
            }
            if self.misses > 0 || !tick.is_multiple_of(REATTACH_TICKS) {
                return;
            }
        }
        match timeout(ATTACH_TIME, core.engine.attach()).await {
            Ok(Ok(attached)) => self.attached(core, attached),
            Ok(Err(error)) => self.say(error.to_string()),
            Err(_) => self.say("the engine took too long to introduce itself".to_owned()),
        }
    }

    fn attached<E: Engine>(&mut self, core: &Core<E>, mut attached: Attached) {
        self.said = None;
        self.misses = 0;
        attached.info.topology = core.args.labels();
        core.engine_seen(EngineStatus::Up(Arc::new(attached)));
    }

    /// Says the same thing once, not every second.
    fn say(&mut self, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            tracing::warn!(reason, "cannot attach to the engine yet");
            self.said = Some(reason);
        }
    }
}

/// What the engine says of its load, completed with what only the sidecar knows.
async fn load<E: Engine>(core: &Core<E>, transfers: &mut Transfers) -> LoadReport {
    let asked = Instant::now();
    let EngineLoad {
        mut report,
        work,
        moved,
    } = match timeout(PATIENCE, core.engine.load()).await {
        Ok(Ok(load)) => {
            core.ledger.engine_answered(asked);
            load
        }
        Ok(Err(_)) | Err(_) => EngineLoad::default(),
    };
    if let Some(moved) = moved {
        transfers.look(moved, Carried::now(), &core.metrics.transfers);
    }
    report.kv_in = transfers.kv_in();
    report.quarantined = core.quarantine_name().is_some();
    let has = |count: &Option<Measured<u32>>| count.as_ref().is_some_and(|count| count.value > 0);
    let busy = has(&report.running) || has(&report.waiting);
    report.stall = stall(core, Own { work, busy }).map(|value| Measured {
        value,
        from: Origin::InFlightTable,
    });
    let own = |count: usize| {
        Some(Measured {
            value: u32::try_from(count).unwrap_or(u32::MAX),
            from: Origin::InFlightTable,
        })
    };
    report.handoffs_held = own(core.ledger.counts().held());
    report.handoffs_pulling = own(core.in_flight.count_of(Stage::Decode));
    if report.queued_prefill_tokens.is_none() {
        report.queued_prefill_tokens = Some(Measured {
            value: core.in_flight.queued_tokens(),
            from: Origin::InFlightTable,
        });
    }
    if report.running.is_none() {
        report.running = own(core.in_flight.count());
    }
    report
}

/// Whether the engine works on what it was given, noted where it changes.
fn stall<E: Engine>(core: &Core<E>, own: Own) -> Option<Stall> {
    let owed = core.in_flight.owed(own, core.progress.stalled_at());
    let stall = core.progress.judge(owed, own);
    let times = i64::from(stall.as_ref().map_or(0, |stall| stall.times));
    let before = core.metrics.stalled.set(times);
    match &stall {
        Some(stall) if times > before => {
            core.metrics.stalls.inc();
            tracing::warn!(%stall, "the engine is suspect");
        }
        None if before > 0 => tracing::info!("the engine makes progress again"),
        _ => {}
    }
    stall
}

//! Gives KV back that nobody wants, and has the engine keep what somebody still waits for.
//!
//! Decode is asked first whether it may be fetching ([`crate::ledger::Fetcher`]). What cannot be given back ends with the
//! engine's lease, and is counted as stranded then.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::call::Revoked;
use baton_proto::{Error, ErrorKind, Source, Stage, TicketId, frame};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::core::Core;
use crate::engine::{Engine, Returned};
use crate::ledger::{Due, Fetcher};
use crate::peers::{Failed, strange};

/// Longest a decode worker may take to say what became of a ticket.
const REVOKE_TIME: Duration = Duration::from_millis(1500);

/// Longest an engine may take to be told something.
const TELL_TIME: Duration = Duration::from_millis(1500);

/// How often leases are looked at.
const KEEP: Duration = Duration::from_secs(1);

/// Gives back until the sidecar closes.
pub(crate) async fn run<E: Engine>(core: Arc<Core<E>>) {
    let mut attempts = JoinSet::new();
    loop {
        for due in core.ledger.due() {
            attempts.spawn(attempt(Arc::clone(&core), due));
        }
        tokio::select! {
            () = core.closing.cancelled() => break,
            () = core.ledger.left() => {}
            () = next(core.ledger.next_due()) => {}
            Some(_) = attempts.join_next() => {}
        }
    }
}

async fn next(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn attempt<E: Engine>(core: Arc<Core<E>>, due: Due) {
    let id = &due.id;
    if let Fetcher::At(decode) = &due.fetcher {
        return match revoke(&core, decode, id).await {
            Ok(revoked) => core.ledger.revoked(id, revoked),
            Err(error) => {
                tracing::info!(ticket = %id, decode, %error, "the decode worker does not say whether it fetches");
                core.ledger.put_off(id);
            }
        };
    }
    if due.by_leg {
        // It says itself when it has ended.
        return core.ledger.end_leg(id);
    }
    let told = timeout(TELL_TIME, core.engine.give_back(&due.metadata)).await;
    match told.unwrap_or_else(|_| Err(slow("told that it may have KV back"))) {
        Ok(Returned::Told) => core.ledger.given_back(id),
        Ok(Returned::AtItsLease) => core.ledger.left_to_lease(id),
        Err(error) => {
            core.metrics.give_back_failures.inc();
            tracing::info!(ticket = %id, %error, "KV could not be given back");
            core.ledger.put_off(id);
        }
    }
}

/// Has a decode worker's sidecar see to it that a ticket is not used any more.
async fn revoke<E: Engine>(core: &Core<E>, decode: &str, id: &TicketId) -> Result<Revoked, Error> {
    match core.peers.ticket(decode, id, "revoke", REVOKE_TIME).await {
        Ok(body) => frame::from_bytes(&body).map_err(|bad| strange(&bad.to_string())),
        // Nobody listens there any more: with that process its connection to the engine ended, and so did the leg.
        Err(Failed { refused: true, .. }) => Ok(Revoked::Cut),
        Err(Failed { error, .. }) => Err(error),
    }
}

/// Has the engine keep what is claimed, for as long as its request may want it.
pub(crate) async fn keep<E: Engine>(core: Arc<Core<E>>) {
    if !core.engine.extends_leases() {
        return;
    }
    let mut ticks = tokio::time::interval(KEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = core.closing.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let (ids, metadata): (Vec<_>, Vec<_>) = core.ledger.expiring().into_iter().unzip();
        if ids.is_empty() {
            continue;
        }
        let asked = Instant::now();
        let told = timeout(TELL_TIME, core.engine.keep(&metadata)).await;
        match told.unwrap_or_else(|_| Err(slow("asked to keep KV"))) {
            Ok(longer) => core.ledger.extended(&ids, asked + longer),
            Err(error) => {
                tracing::info!(tickets = ids.len(), %error, "leases could not be extended");
            }
        }
    }
}

fn slow(what: &str) -> Error {
    let message = format!("the engine could not be {what} in time");
    Error::new(ErrorKind::Timeout, Source::Engine, Stage::Handoff, message)
}

//! What must hold when a row is over: blocks are free, ledgers are empty, and what decode engines have cached is right.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::look;
use super::seat::{Part, Seat};
use super::stand::{Stand, Who};
use crate::real::engine::Kind;
use crate::real::http;

/// Blocks of an engine that lives are free again within this, whatever happened.
pub const SOON: Duration = Duration::from_secs(2);

/// After this nobody waits for blocks any more.
const AT_LAST: Duration = Duration::from_secs(40);

/// Who must be quiet, and from when on until when.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Whose engine and sidecar.
    pub who: Who,
    /// What ended the need for its blocks.
    pub since: Instant,
    /// How long it may take from there.
    pub within: Duration,
}

/// When somebody became quiet.
#[derive(Debug, Clone)]
pub struct Quiet {
    /// Whose blocks.
    pub name: &'static str,
    /// After how long they were free.
    pub after: Duration,
    /// How long it might have taken.
    pub within: Duration,
}

/// What a sidecar has counted of KV that could not be given back in time.
pub fn stranded(seat: &Seat) -> Result<i64> {
    let page = look::page(&seat.sidecar_url())?;
    Ok(page.sum("baton_sidecar_tickets_stranded_total", &[]))
}

/// Waits until these are quiet, in the order in which they become so.
pub fn wait(stand: &mut Stand, expected: &[Expected]) -> Result<Vec<Quiet>> {
    let mut left = expected.to_vec();
    let mut quiet = Vec::new();
    let waited = http::until("all blocks are free", AT_LAST, || {
        stand.check_running()?;
        let mut busy = Vec::new();
        for one in left.drain(..) {
            let seat = stand.seat(one.who)?;
            if is_quiet(stand.parts.kind, seat)? {
                quiet.push(Quiet {
                    name: seat.name,
                    after: one.since.elapsed(),
                    within: one.within,
                });
            } else {
                busy.push(one);
            }
        }
        left = busy;
        Ok(left.is_empty().then_some(()))
    });
    let busy = || {
        let busy = left.iter().map(|one| state(stand, one.who));
        busy.collect::<Vec<_>>().join("; ")
    };
    waited.with_context(busy)?;
    Ok(quiet)
}

/// What somebody who is not quiet tells of itself.
fn state(stand: &Stand, who: Who) -> String {
    let told = stand.seat(who).and_then(|seat| {
        let engine = stand.doing(who)?;
        let sidecar = look::page(&seat.sidecar_url())?;
        let [legs, tickets] =
            ["in_flight", "tickets"].map(|name| sidecar.sum(&format!("baton_sidecar_{name}"), &[]));
        Ok(format!(
            "{}: {engine:?}, {legs} legs, {tickets} tickets",
            seat.name
        ))
    });
    told.unwrap_or_else(|error| format!("{who:?}: {error:#}"))
}

/// Nothing is held or under way in an engine, and its sidecar believes so too.
fn is_quiet(kind: Kind, seat: &Seat) -> Result<bool> {
    if !kind.doing(&seat.engine_url())?.is_nothing() {
        return Ok(false);
    }
    if seat.sidecar.is_none() {
        return Ok(true);
    }
    let page = look::page(&seat.sidecar_url())?;
    let legs = page.sum("baton_sidecar_in_flight", &[]);
    let tickets = page.sum("baton_sidecar_tickets", &[]);
    Ok(legs == 0 && (tickets == 0 || seat.part != Part::Prefill))
}

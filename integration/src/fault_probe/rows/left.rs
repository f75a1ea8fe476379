//! The client goes away, at each stage of its request.

use std::time::Instant;

use anyhow::Result;

use crate::fault_probe::quiet::SOON;
use crate::fault_probe::scene::{Scene, soon};
use crate::fault_probe::stand::Who;

/// Nobody goes away: what the other rows are measured by.
pub(super) fn nobody(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let ended = scene.begin(&asked)?.finish();
        scene.judge_split("an answer", &asked, &ended);
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// The engine computes the prompt.
pub(super) fn while_computing(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let ask = scene.workload.long_prompt(stream);
        let asked = scene.know(ask)?;
        let settled = scene.settled()?;
        let call = scene.begin(&asked)?;
        scene.until("the prompt is computed", || {
            Ok(scene.stand.doing(Who::Prefill)?.usage > 0.0)
        })?;
        drop(call);
        let since = Instant::now();
        scene.not_settled(settled)?;
        scene.quiet_since(since)?;
    }
    Ok(())
}

/// The router has the ticket, and the decode worker has not.
pub(super) fn after_the_ticket(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let settled = scene.settled()?;
        let call = scene.held_by_router(&asked)?;
        drop(call);
        let since = Instant::now();
        scene.stand.router()?.thaw()?;
        scene.quiet_since(since)?;
        scene.not_settled(settled)?;
    }
    Ok(())
}

/// The decode worker has the ticket, and its engine stands still. What the KV was in is given to others before it goes on.
pub(super) fn while_fetching(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let settled = scene.settled()?;
        let call = scene.held_by_decode(&asked)?;
        drop(call);
        let since = Instant::now();
        scene.free(&[soon(Who::Prefill, since, SOON)])?;
        scene.overwrite_prefill()?;
        scene.stand.engine(Who::Decode)?.thaw()?;
        scene.quiet(&[soon(Who::Decode, Instant::now(), SOON)])?;
        scene.not_settled(settled)?;
    }
    Ok(())
}

/// The KV has arrived, and the decode engine generates.
pub(super) fn in_the_answer(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let ask = scene.workload.long_answer(stream);
        let asked = scene.know(ask)?;
        let mut call = scene.begin(&asked)?;
        if stream {
            call.events(5)?;
        } else {
            scene.until("decode generates", || {
                Ok(scene.stand.doing(Who::Decode)?.running > 0.0)
            })?;
        }
        drop(call);
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

//! Something happens to a decode engine.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::look;
use crate::fault_probe::quiet::SOON;
use crate::fault_probe::scene::{Scene, soon};
use crate::fault_probe::stand::{LEASE_S, Who};

/// Beyond the lease, and short enough for its sidecar not to have given the engine up.
const FROZEN: Duration = Duration::from_secs(LEASE_S + 2);

/// It stands still for longer than the prefill engine holds KV by itself. Meanwhile the prefill's sidecar has it kept.
pub(super) fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    let router = scene.stand.router_url();
    for stream in [false, true] {
        let expired = scene.stand.doing(Who::Prefill)?.expired;
        let asked = scene.usual(stream)?;
        let failed = look::attempts(&router)?.failed;
        let call = scene.held_by_decode(&asked)?;
        scene.pass(FROZEN)?;
        scene.stand.engine(Who::Decode)?.thaw()?;
        let ended = call.finish();
        scene.judge_split("an answer", &asked, &ended);
        scene.quiet_since(Instant::now())?;
        let expired = scene.stand.doing(Who::Prefill)?.expired - expired;
        let failed = look::attempts(&router)?.failed - failed;
        let detail = format!("{expired} leases ran out, {failed} attempts failed");
        let kept = expired == 0.0 && failed == 0;
        scene.check("its KV was kept and used", kept, &detail);
    }
    Ok(())
}

/// It dies when it has the ticket and has shown nothing. Another one is there.
pub(super) fn killed_before(scene: &mut Scene<'_>) -> Result<()> {
    scene.join(Who::OtherDecode)?;
    let (asked, call, who) = scene.held_by_somebody()?;
    scene.stand.kill_engine(who)?;
    scene.stand.thaw_all()?;
    let ended = call.finish();
    scene.judge("an answer from elsewhere, or an error", &asked, &ended);
    let since = Instant::now();
    let other = if who == Who::Decode {
        Who::OtherDecode
    } else {
        Who::Decode
    };
    scene.quiet(&[soon(Who::Prefill, since, SOON), soon(other, since, SOON)])
}

/// It dies in the middle of a stream.
pub(super) fn killed_in_answer(scene: &mut Scene<'_>) -> Result<()> {
    let ask = scene.workload.long_answer(true);
    let asked = scene.know(ask)?;
    let mut call = scene.begin(&asked)?;
    call.events(5)?;
    let who = scene.who_decodes()?;
    scene.stand.kill_engine(who)?;
    let ended = call.finish();
    let verdict = scene.judge("a stream that ends in one error", &asked, &ended);
    scene.check(
        "the engine died in time",
        !verdict.is_right(),
        &format!("{verdict:?}"),
    );
    scene.quiet(&[soon(Who::Prefill, Instant::now(), SOON)])
}

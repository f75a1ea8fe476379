//! Something happens to the prefill engine.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::look;
use crate::fault_probe::quiet::SOON;
use crate::fault_probe::scene::{Scene, soon};
use crate::fault_probe::stand::{BOOT_BOUND, Who};
use crate::real::engine::Kind;

/// SGLang's decode engine keeps pages for 30 s that a dead prefill engine may still be writing to (0.5.23).
const STILL_WRITTEN: Duration = Duration::from_secs(34);

/// Long enough to be noticed, short enough for its sidecar not to have given the engine up.
const FROZEN: Duration = Duration::from_secs(4);

/// A router tries twice a second to tell a sidecar's successor what it has given up. The engine must answer something before
/// that is believed to be over, which it is asked once a second, and it has a second to notice.
const TOLD: Duration = Duration::from_secs(4);

/// It stands still with a prompt in it.
pub(super) fn frozen_computing(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        scene.rest()?;
        scene.stand.engine(Who::Prefill)?.freeze()?;
        let call = scene.begin(&asked)?;
        scene.until_begun(1)?;
        scene.pass(FROZEN)?;
        scene.stand.engine(Who::Prefill)?.thaw()?;
        let ended = call.finish();
        scene.judge("an answer", &asked, &ended);
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// It stands still when decode is to fetch its KV.
pub(super) fn frozen_between(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let call = scene.held_by_decode(&asked)?;
        scene.stand.engine(Who::Prefill)?.freeze()?;
        scene.stand.engine(Who::Decode)?.thaw()?;
        scene.pass(FROZEN)?;
        scene.stand.engine(Who::Prefill)?.thaw()?;
        let ended = call.finish();
        scene.judge("an answer", &asked, &ended);
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// Its sidecar dies when it has finished a prompt, before a word of that was read: what it holds is known by its name alone,
/// and to the next sidecar.
pub(super) fn sidecar_killed(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        scene.rest()?;
        scene.stand.engine(Who::Prefill)?.freeze()?;
        let call = scene.begin(&asked)?;
        scene.until_running(1)?;
        scene.stand.sidecar(Who::Prefill)?.freeze()?;
        scene.stand.engine(Who::Prefill)?.thaw()?;
        scene.until("KV is held", || {
            let seen = scene.stand.doing(Who::Prefill)?;
            Ok(seen.running == 0.0 && seen.usage > 0.0)
        })?;
        scene.stand.kill_sidecar(Who::Prefill)?;
        scene.join(Who::Prefill)?;
        let joined = Instant::now();
        let ended = call.finish();
        scene.judge("an answer", &asked, &ended);
        let prefill = soon(Who::Prefill, joined, TOLD);
        scene.quiet(&[prefill, soon(Who::Decode, joined, SOON)])?;
    }
    Ok(())
}

/// It dies when decode is to fetch its KV.
pub(super) fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.revive(Who::Decode)?;
    let asked = scene.usual(true)?;
    let call = scene.held_by_decode(&asked)?;
    scene.stand.kill_engine(Who::Prefill)?;
    scene.stand.engine(Who::Decode)?.thaw()?;
    let ended = call.finish();
    scene.judge("an answer from elsewhere, or an error", &asked, &ended);
    scene.until_claimed(0)?;
    let within = match scene.stand.parts.kind {
        Kind::Vllm => SOON,
        Kind::Sglang => STILL_WRITTEN,
    };
    scene.quiet(&[soon(Who::Decode, Instant::now(), within)])
}

/// It dies while the router has the ticket, and another engine boots in its place, with its id and with other KV. A decode
/// engine that never met the first one, as the one that is there, would take the second for it. A router that read the ticket
/// in time knows its age, and has it confirmed before decode sees it; one that reads it only now believes it fresh, and then
/// the answer is withheld.
pub(super) fn reborn(scene: &mut Scene<'_>) -> Result<()> {
    scene.revive(Who::Prefill)?;
    scene.revive(Who::Decode)?;
    let asked = scene.usual(false)?;
    let before = look::attempts(&scene.stand.router_url())?;
    let call = scene.held_by_router(&asked)?.patient(BOOT_BOUND);
    scene.stand.reboot(Who::Prefill)?;
    scene.until_attached()?;
    scene.until_claimed(0)?;
    scene.overwrite_prefill()?;
    scene.stand.router()?.thaw()?;
    let ended = call.finish();
    scene.judge("an answer, or an error", &asked, &ended);
    let after = look::attempts(&scene.stand.router_url())?;
    let noticed = after.failed > before.failed;
    let detail = format!("{before:?} before, {after:?} after");
    scene.check(
        "nobody was answered by the first one's ticket",
        noticed,
        &detail,
    );
    scene.join(Who::Prefill)?;
    scene.join(Who::Decode)?;
    let again = scene.usual(true)?;
    let ended = scene.begin(&again)?.finish();
    scene.judge("the next answer, or an error", &again, &ended);
    scene.quiet_since(Instant::now())
}

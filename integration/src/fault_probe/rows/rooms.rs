//! Rows of an engine whose two legs are sent at once, meet in a room and wait for each other. The engines themselves would wait
//! for 300 s (SGLang 0.5.23).

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::crowd;
use crate::fault_probe::asks::Ask;
use crate::fault_probe::call::{Call, Ended};
use crate::fault_probe::quiet::SOON;
use crate::fault_probe::scene::{Asked, Scene, soon};
use crate::fault_probe::stand::Who;
use crate::fault_probe::verdict::Verdict;

/// Whoever cannot be served is told within this.
const FAST: Duration = Duration::from_secs(10);

/// The decode engine itself gives up what it cannot reach after about 14 s, and a request is tried three times.
const UNREACHABLE: Duration = Duration::from_secs(50);

/// The engine looks every 4 s whether a connection is still there.
const DISCONNECTED: Duration = Duration::from_secs(6);

/// A router counts as gone when it has had no stream for 3 s, which is looked at once a second; then others are asked.
const ROUTER_GONE: Duration = Duration::from_secs(6);

/// An address of this machine that no engine listens at.
const NOBODY: &str = "127.0.0.9";

/// So many requests at once, of which decode runs four.
const CROWD: usize = 14;

/// The prefill engine stands still when the client goes away.
pub(super) fn left_early(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        scene.rest()?;
        scene.stand.engine(Who::Prefill)?.freeze()?;
        let call = scene.begin(&asked)?;
        scene.until_begun(1)?;
        scene.until_decoding(Who::Decode)?;
        drop(call);
        scene.stand.engine(Who::Prefill)?.thaw()?;
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// The decode engine does, so that the prefill engine waits for it.
pub(super) fn left_late(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let call = scene.held_by_decode(&asked)?;
        drop(call);
        scene.stand.engine(Who::Decode)?.thaw()?;
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// The prefill engine refuses what the decode engine was told to take; nobody tells the latter but Baton.
pub(super) fn prefill_refuses(scene: &mut Scene<'_>) -> Result<()> {
    refused(scene, "return_hidden_states", &json!(true))
}

/// The decode engine refuses what the prefill engine takes, which would wait for it.
pub(super) fn decode_refuses(scene: &mut Scene<'_>) -> Result<()> {
    refused(scene, "priority", &json!(1))
}

fn refused(scene: &mut Scene<'_>, key: &'static str, value: &Value) -> Result<()> {
    scene.of_all_kinds();
    for stream in [false, true] {
        let ask = scene.workload.usual(stream).wanting(key, value.clone());
        let (router, model) = (scene.stand.router_at(), &scene.stand.parts.model);
        let since = Instant::now();
        let ended = Call::begin(router, model, &ask)?.finish();
        // Nobody may say anything to it.
        let verdict = Verdict::of(&ended, "");
        let kind = if stream { "stream" } else { "whole" };
        // The engine's judgement is passed on as it is.
        let judged =
            matches!(&ended, Ended::Answered(answer) if answer.status == 400 && answer.complete);
        let honest = judged || matches!(verdict, Verdict::Honest(_));
        let detail = format!("{verdict:?}");
        scene.check(&format!("an error ({kind})"), honest, &detail);
        in_time(scene, &format!("it comes soon ({kind})"), since, FAST);
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

/// The router dies while the decode engine stands still.
pub(super) fn router_killed(scene: &mut Scene<'_>) -> Result<()> {
    let asked = scene.usual(true)?;
    let call = scene.held_by_decode(&asked)?;
    scene.stand.kill_router();
    let ended = call.finish();
    let alone = matches!(ended, Ended::Silently);
    scene.check("its client is alone", alone, &format!("{ended:?}"));
    scene.stand.engine(Who::Decode)?.thaw()?;
    let thawed = Instant::now();
    scene.stand.start_router()?;
    scene.free(&[Who::Decode, Who::Prefill].map(|who| soon(who, thawed, ROUTER_GONE)))?;
    let both = [Who::Prefill, Who::Decode];
    scene.stand.wait_until_ready(&both)?;
    let again = scene.usual(false)?;
    let ended = scene.begin(&again)?.finish();
    scene.judge_split("the next router serves", &again, &ended);
    scene.quiet_since(Instant::now())
}

/// More at once than decode has places for: prefill waits, and nobody is turned away.
pub(super) fn crowd(scene: &mut Scene<'_>) -> Result<()> {
    let asks: Vec<Ask> = (0..CROWD)
        .map(|at| scene.workload.usual(at.is_multiple_of(2)))
        .collect();
    let crowd: Result<Vec<Asked>> = asks.into_iter().map(|ask| scene.know(ask)).collect();
    let crowd = crowd?;
    scene.of_all_kinds();
    let since = Instant::now();
    let ended = crowd::finish(crowd::begin(scene, &crowd)?);
    scene.figure("all were answered after", since.elapsed());
    crowd::judge(scene, &crowd, &ended);
    scene.quiet_since(Instant::now())
}

/// The prefill's sidecar names a host where nobody is.
pub(super) fn nobody_there(scene: &mut Scene<'_>) -> Result<()> {
    move_prefill(scene, NOBODY)?;
    let asked = scene.usual(true)?;
    let since = Instant::now();
    let ended = scene.begin(&asked)?.finish();
    scene.judge("an error", &asked, &ended);
    in_time(scene, "it comes soon", since, UNREACHABLE);
    scene.quiet_since(Instant::now())?;
    move_prefill(scene, "127.0.0.1")
}

fn move_prefill(scene: &mut Scene<'_>, host: &'static str) -> Result<()> {
    scene.stand.kill_sidecar(Who::Prefill)?;
    scene.stand.wait_until_gone(Who::Prefill)?;
    scene.stand.seat_mut(Who::Prefill)?.told_host = host;
    scene.join(Who::Prefill)
}

/// The prefill's sidecar dies while the decode engine stands still: nobody ends the prefill leg but the engine itself.
pub(super) fn sidecar_killed(scene: &mut Scene<'_>) -> Result<()> {
    for stream in [false, true] {
        let asked = scene.usual(stream)?;
        let call = scene.held_by_decode(&asked)?;
        scene.stand.kill_sidecar(Who::Prefill)?;
        scene.stand.engine(Who::Decode)?.thaw()?;
        let thawed = Instant::now();
        let ended = call.finish();
        scene.judge("an answer, or an error", &asked, &ended);
        in_time(scene, "it comes soon", thawed, FAST);
        scene.quiet(&[
            soon(Who::Decode, Instant::now(), SOON),
            soon(Who::Prefill, thawed, DISCONNECTED),
        ])?;
        scene.join(Who::Prefill)?;
    }
    Ok(())
}

/// The prefill engine dies when it has handed over: decode has all that it needs.
pub(super) fn prefill_killed_in_answer(scene: &mut Scene<'_>) -> Result<()> {
    scene.revive(Who::Decode)?;
    let ask = scene.workload.long_answer(true);
    let asked = scene.know(ask)?;
    let mut call = scene.begin(&asked)?;
    call.events(5)?;
    scene.stand.kill_engine(Who::Prefill)?;
    let ended = call.finish();
    scene.judge_split("a whole answer", &asked, &ended);
    scene.quiet(&[soon(Who::Decode, Instant::now(), SOON)])?;
    scene.revive(Who::Prefill)
}

fn in_time(scene: &Scene<'_>, what: &str, since: Instant, bound: Duration) {
    let took = since.elapsed();
    let detail = format!("after {took:.1?} of {bound:.0?}");
    scene.check(what, took <= bound, &detail);
}

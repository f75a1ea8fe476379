//! The lease runs out although somebody waits for the KV.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::look;
use crate::fault_probe::scene::Scene;
use crate::fault_probe::stand::{LEASE_S, Who};

/// The engine holds KV for this long when nobody has it kept, with room.
const OVER: Duration = Duration::from_secs(LEASE_S + 2);

/// Nobody has the KV kept, for the prefill's sidecar is dead. Its blocks are given to others, and then decode goes on and may
/// fetch what is in them.
pub(super) fn run_out(scene: &mut Scene<'_>) -> Result<()> {
    let router = scene.stand.router_url();
    for stream in [false, true] {
        let before = scene.stand.doing(Who::Prefill)?.expired;
        let asked = scene.usual(stream)?;
        let failed = look::attempts(&router)?.failed;
        let decode = scene.stand.seat(Who::Decode)?.sidecar_url();
        let quarantines = look::quarantines(&decode)?;
        let call = scene.held_by_decode(&asked)?;
        scene.stand.kill_sidecar(Who::Prefill)?;
        scene.pass(OVER)?;
        scene.overwrite_prefill()?;
        let expired = scene.stand.doing(Who::Prefill)?.expired - before;
        let detail = format!("{expired} leases ran out");
        scene.check("the lease ran out", expired > 0.0, &detail);
        let failed = look::attempts(&router)?.failed - failed;
        let detail = format!("{failed} attempts failed");
        scene.check("decode was cut off before it went on", failed > 0, &detail);
        let quarantines = look::quarantines(&decode)? - quarantines;
        let detail = format!("{quarantines} quarantines");
        scene.check("what it may fetch is quarantined", quarantines > 0, &detail);
        scene.stand.engine(Who::Decode)?.thaw()?;
        let ended = call.finish();
        scene.judge("an answer, or an error", &asked, &ended);
        scene.join(Who::Prefill)?;
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

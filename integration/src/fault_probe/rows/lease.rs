//! The lease runs out although somebody waits for the KV.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::look;
use crate::fault_probe::scene::Scene;
use crate::fault_probe::stand::{LEASE_S, Who};

/// The engine holds KV for this long when nobody has it kept, with room.
const OVER: Duration = Duration::from_secs(LEASE_S + 2);

/// Nobody has the KV kept, for the prefill's sidecar is dead. Its blocks are given to others, and then decode goes on and
/// fetches what is in them.
pub(super) fn run_out(scene: &mut Scene<'_>) -> Result<()> {
    let router = scene.stand.router_url();
    for stream in [false, true] {
        let before = scene.stand.doing(Who::Prefill)?.expired;
        let asked = scene.usual(stream)?;
        let call = scene.held_by_decode(&asked)?;
        scene.stand.kill_sidecar(Who::Prefill)?;
        scene.pass(OVER)?;
        scene.overwrite_prefill()?;
        let expired = scene.stand.doing(Who::Prefill)?.expired - before;
        let detail = format!("{expired} leases ran out");
        scene.check("the lease ran out", expired > 0.0, &detail);
        let withheld = look::attempts(&router)?.withheld;
        scene.stand.engine(Who::Decode)?.thaw()?;
        let ended = call.finish();
        scene.judge("an answer, or an error", &asked, &ended);
        let withheld = look::attempts(&router)?.withheld - withheld;
        let detail = format!("{withheld} answers withheld");
        scene.check("decode fetched what was there", withheld > 0, &detail);
        scene.join(Who::Prefill)?;
        scene.quiet_since(Instant::now())?;
    }
    Ok(())
}

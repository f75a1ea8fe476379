//! Something happens to the router.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::call::Ended;
use crate::fault_probe::quiet::SOON;
use crate::fault_probe::scene::{Scene, soon};
use crate::fault_probe::stand::Who;

/// A router counts as gone when it has had no stream for 3 s, which is looked at once a second. Then the decode worker is
/// asked, and its engine is given a second to notice that its leg was cut off.
const GONE: Duration = Duration::from_secs(6);

/// It dies while tickets of its requests are claimed.
pub(super) fn killed(scene: &mut Scene<'_>) -> Result<()> {
    let asked = scene.usual(true)?;
    let call = scene.held_by_decode(&asked)?;
    scene.stand.kill_router();
    let since = Instant::now();
    let ended = call.finish();
    let alone = matches!(ended, Ended::Silently);
    scene.check("its client is alone", alone, &format!("{ended:?}"));
    scene.free(&[soon(Who::Prefill, since, GONE)])?;
    scene.overwrite_prefill()?;
    scene.stand.engine(Who::Decode)?.thaw()?;
    let thawed = Instant::now();
    scene.stand.start_router()?;
    scene.free(&[soon(Who::Decode, thawed, SOON)])?;
    scene.stand.wait_until_ready(&[Who::Prefill, Who::Decode])?;
    scene.quiet(&[])?;
    let again = scene.usual(false)?;
    let ended = scene.begin(&again)?.finish();
    scene.judge_split("the next router serves", &again, &ended);
    scene.quiet_since(Instant::now())
}

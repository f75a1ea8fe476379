//! More requests than anybody has room for.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::asks::USUAL_BLOCKS;
use crate::fault_probe::call::{Call, Ended};
use crate::fault_probe::scene::{Asked, Scene};
use crate::fault_probe::seat::PREFILL_BLOCKS;
use crate::fault_probe::stand::Who;
use crate::fault_probe::verdict::Verdict;

/// So many of the usual prompts fit into the prefill engine at once, beside the null block.
const FITTING: usize = (PREFILL_BLOCKS - 1) / USUAL_BLOCKS;

/// Requests with long prompts, of which two fill it.
const LONG: usize = 8;

/// The last of them waits for all others.
const PATIENCE: Duration = Duration::from_mins(5);

/// Decode is frozen until the prefill engine is full of what it holds for it: more than it has places for. Then come long
/// prompts on top, and decode goes on.
pub(super) fn crowd(scene: &mut Scene<'_>) -> Result<()> {
    let usual = (0..=FITTING).map(|at| scene.workload.usual(at.is_multiple_of(2)));
    let mut asks: Vec<_> = usual.collect();
    asks.extend((0..LONG).map(|at| scene.workload.long_prompt(at.is_multiple_of(2))));
    let crowd: Result<Vec<Asked>> = asks.into_iter().map(|ask| scene.know(ask)).collect();
    let crowd = crowd?;
    scene.of_all_kinds();
    let (usual, long) = crowd.split_at(FITTING + 1);
    scene.stand.engine(Who::Decode)?.freeze()?;
    let mut calls = begin(scene, usual)?;
    until_full(scene)?;
    calls.extend(begin(scene, long)?);
    scene.stand.engine(Who::Decode)?.thaw()?;
    let thawed = Instant::now();
    let ended = finish(calls);
    let since = Instant::now();
    scene.figure("all were answered after", since - thawed);
    judge(scene, &crowd, &ended);
    scene.quiet_since(since)
}

pub(super) fn begin(scene: &Scene<'_>, crowd: &[Asked]) -> Result<Vec<Call>> {
    crowd.iter().map(|asked| scene.begin(asked)).collect()
}

/// All prompts that fit are held, and the one beyond them waits.
fn until_full(scene: &Scene<'_>) -> Result<()> {
    scene.until_claimed(i64::try_from(FITTING)?)?;
    scene.until("a prompt waits for blocks", || {
        Ok(scene.stand.doing(Who::Prefill)?.waiting > 0.0)
    })
}

pub(super) fn finish(calls: Vec<Call>) -> Vec<Ended> {
    std::thread::scope(|scope| {
        let calls = calls.into_iter();
        let waiting: Vec<_> = calls
            .map(|call| scope.spawn(move || call.patient(PATIENCE).finish()))
            .collect();
        let ended = waiting.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|one| one.unwrap_or(Ended::Silently)).collect()
    })
}

pub(super) fn judge(scene: &Scene<'_>, crowd: &[Asked], ended: &[Ended]) {
    let verdicts: Vec<Verdict> = crowd
        .iter()
        .zip(ended)
        .map(|(asked, ended)| Verdict::of(ended, &asked.right))
        .collect();
    let not_right: Vec<String> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_right())
        .map(|verdict| format!("{verdict:?}"))
        .collect();
    let split = verdicts.iter().filter(|verdict| verdict.is_split()).count();
    let right = verdicts.len() - not_right.len();
    let detail = format!(
        "{right} of {}, {split} by two workers; {}",
        verdicts.len(),
        not_right.join("; ")
    );
    scene.check("all answers are right", not_right.is_empty(), &detail);
}

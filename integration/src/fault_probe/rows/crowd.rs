//! More requests than anybody has room for.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::call::{Call, Ended};
use crate::fault_probe::look;
use crate::fault_probe::scene::{Asked, Scene};
use crate::fault_probe::seat::DECODE_PLACES;
use crate::fault_probe::stand::Who;
use crate::fault_probe::verdict::Verdict;

/// Requests with short prompts: with six blocks each they fill the prefill engine.
const SHORT: usize = 16;

/// Requests with long ones, of which two fill it.
const LONG: usize = 8;

/// Share of its blocks beyond which the prefill engine has none for the next prompt.
const FULL: f64 = 0.9;

/// The last of them waits for all others.
const PATIENCE: Duration = Duration::from_mins(5);

/// Decode is frozen until the prefill engine has no block left for the next prompt and more handoffs wait than decode has
/// places for. From then on it is busy.
pub(super) fn crowd(scene: &mut Scene<'_>) -> Result<()> {
    let mut crowd = Vec::new();
    for at in 0..SHORT + LONG {
        let stream = at % 2 == 0;
        let ask = if at < SHORT {
            scene.workload.usual(stream)
        } else {
            scene.workload.long_prompt(stream)
        };
        crowd.push(scene.know(ask)?);
    }
    scene.of_all_kinds();
    scene.stand.engine(Who::Decode)?.freeze()?;
    let calls: Result<Vec<_>> = crowd.iter().map(|asked| scene.begin(asked)).collect();
    let calls = calls?;
    until_full(scene)?;
    scene.stand.engine(Who::Decode)?.thaw()?;
    let thawed = Instant::now();
    let ended = finish(calls);
    let since = Instant::now();
    scene.figure("all were answered after", since - thawed);
    judge(scene, &crowd, &ended);
    scene.quiet_since(since)
}

fn until_full(scene: &Scene<'_>) -> Result<()> {
    let engine = scene.stand.seat(Who::Prefill)?.engine_url();
    let sidecar = scene.stand.seat(Who::Decode)?.sidecar_url();
    scene.until("there is no room", || {
        let prefill = look::engine(&engine)?;
        let full = prefill.usage > FULL && prefill.waiting > 0.0;
        let legs = usize::try_from(look::in_flight(&sidecar, "decode")?)?;
        Ok(full && legs > 2 * DECODE_PLACES)
    })
}

fn finish(calls: Vec<Call>) -> Vec<Ended> {
    std::thread::scope(|scope| {
        let calls = calls.into_iter();
        let waiting: Vec<_> = calls
            .map(|call| scope.spawn(move || call.patient(PATIENCE).finish()))
            .collect();
        let ended = waiting.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|one| one.unwrap_or(Ended::Silently)).collect()
    })
}

fn judge(scene: &Scene<'_>, crowd: &[Asked], ended: &[Ended]) {
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

//! More requests than anybody has room for.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fault_probe::call::Ended;
use crate::fault_probe::scene::{Asked, Scene};
use crate::fault_probe::verdict::Verdict;

/// Requests, all at once: six times as many as decode has places for.
const REQUESTS: usize = 24;

/// A third of them have a prompt of which two fill the prefill engine.
const LONG_EACH: usize = 3;

/// The last of them waits for all others.
const PATIENCE: Duration = Duration::from_mins(5);

/// Decode has four places, prefill has room for two long prompts.
pub(super) fn crowd(scene: &mut Scene<'_>) -> Result<()> {
    let mut crowd = Vec::new();
    for at in 0..REQUESTS {
        let stream = at % 2 == 0;
        let ask = if at % LONG_EACH == 0 {
            scene.workload.long_prompt(stream)
        } else {
            scene.workload.usual(stream)
        };
        crowd.push(scene.know(ask)?);
    }
    scene.of_all_kinds();
    let started = Instant::now();
    let calls: Result<Vec<_>> = crowd.iter().map(|asked| scene.begin(asked)).collect();
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let waiting = calls?
            .into_iter()
            .map(|call| scope.spawn(move || call.patient(PATIENCE).finish()));
        let waiting: Vec<_> = waiting.collect();
        let ended = waiting.into_iter().map(|one| one.join());
        Ok::<_, anyhow::Error>(ended.map(|one| one.unwrap_or(Ended::Silently)).collect())
    })?;
    let since = Instant::now();
    scene.figure("all were answered after", since - started);
    judge(scene, &crowd, &ended);
    scene.quiet_since(since)
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
    let detail = format!(
        "{} of {}, {split} of them split; {}",
        verdicts.len() - not_right.len(),
        verdicts.len(),
        not_right.join("; ")
    );
    scene.check("all answers are right", not_right.is_empty(), &detail);
}

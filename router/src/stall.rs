//! A leg at an engine that stands still, or behind a sidecar that fell silent, is not waited for while another worker could
//! serve its request.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::{Error, ErrorKind, Retry, Source, Stage};

use crate::fleet::Worker;
use crate::planner::Lessons;
use crate::serve::{Attempt, Planned};

/// How often it is looked whether others could serve by now.
const GLANCE: Duration = Duration::from_secs(1);

/// Waits for what a worker answers to a leg. When the worker turns out to stand still, and as soon as there are others, the
/// leg is given up; it ends in the engine because its connection does.
pub async fn unless_stalled<T>(
    attempt: &Attempt<'_>,
    planned: &Planned,
    worker: &Arc<Worker>,
    stage: Stage,
    mut leg: Pin<&mut impl Future<Output = Result<T, Error>>>,
) -> Result<T, Error> {
    let mut stalls = worker.stalls();
    let mut doubted = false;
    loop {
        tokio::select! {
            biased;
            answer = &mut leg => return answer,
            // The worker, and with it the sender, outlives this.
            Ok(()) = stalls.changed() => doubted = true,
            () = tokio::time::sleep(GLANCE), if doubted => doubted = worker.is_doubtful(),
        }
        if doubted && others_could(attempt, planned, worker) && attempt.pay() {
            return Err(stalled(worker, stage));
        }
    }
}

/// Whether somebody else, and nobody whose breaker is open, could serve the request.
fn others_could(attempt: &Attempt<'_>, planned: &Planned, worker: &Worker) -> bool {
    let snapshot = attempt.router.fleet.snapshot();
    let lessons = Lessons {
        failed: vec![worker.id().clone()],
        ..Lessons::default()
    };
    let question = attempt.question(&snapshot, &planned.prediction, &lessons);
    attempt.router.planning.has_good_plan(&question)
}

fn stalled(worker: &Worker, stage: Stage) -> Error {
    let message = format!("{} makes no progress", worker.id());
    Error::new(ErrorKind::Timeout, Source::Sidecar, stage, message).retry(Retry::AfterCancel)
}

//! One suite for what was recorded of a real engine, for the emulated one and for a real one that runs.
//!
//! A [`cases::Case`] sends again what was once sent to vLLM 0.32.0 and compares the answer with the recorded one. What must
//! be equal is status, key set, types, nullness, finish reason, usage and the order of event frames; what may differ is
//! listed once, with reasons, in [`mask`]. What must be new in each request is listed in [`fresh`]. [`laws`] hold for
//! any exchange and any event log, wherever it comes from. Start reading at [`run`].
//!
//! Where a recording and the emulated engine disagree, the emulated engine is wrong. This module must not know which of the
//! two it is talking to: everything about a target is in [`target::Target`].

pub mod answer;
pub mod cases;
pub mod events;
pub mod fresh;
pub mod http;
pub mod laws;
pub mod left_out;
pub mod mask;
pub mod metrics;
pub mod recording;
mod runner;
pub mod sglang;
pub mod shape;
pub mod socket;
pub mod target;
pub mod trtllm;
pub mod wire;

use std::time::Instant;

use serde::Serialize;

use self::cases::Case;
use self::runner::Runner;
use self::shape::Difference;
use self::target::Target;

/// What became of a case.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything that was compared agrees; how many comparisons and laws that were.
    Conforms(usize),
    /// What does not agree.
    Differs(Vec<Difference>),
    /// It was not run, and why.
    Skipped(String),
}

/// A case and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
}

impl CaseReport {
    /// True unless something did not agree.
    pub fn held(&self) -> bool {
        !matches!(self.outcome, Outcome::Differs(_))
    }
}

/// Runs every case that `wanted` names against a target, one after another; `told` hears of each as it ends.
pub fn run(
    target: &mut Target,
    wanted: impl Fn(&Case) -> bool,
    mut told: impl FnMut(&CaseReport),
) -> Vec<CaseReport> {
    let mut reports = Vec::new();
    let cases: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| wanted(case))
        .collect();
    for (number, case) in cases.iter().enumerate() {
        let report = run_case(target, case);
        let next = cases.get(number + 1);
        if next.is_none_or(|next| next.setup != case.setup) {
            target.end(case.setup);
        }
        told(&report);
        reports.push(report);
    }
    reports
}

/// Runs one case against a target.
pub fn run_case(target: &mut Target, case: &Case) -> CaseReport {
    let started = Instant::now();
    target.begin(&case.name);
    let outcome = Runner::new(target, case).run();
    CaseReport {
        name: case.name.clone(),
        outcome,
        seconds: started.elapsed().as_secs_f64(),
    }
}

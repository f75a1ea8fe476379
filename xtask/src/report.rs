//! The report of an end-to-end run: what held and what did not, for people and for programs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::client::{Check, Figure, Outcome, Skipped};

/// All steps of a run, in order.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

#[derive(Serialize)]
struct Step {
    name: &'static str,
    seconds: f64,
    error: Option<String>,
    checks: Vec<Check>,
    skipped: Vec<Skipped>,
    figures: Vec<Figure>,
}

impl Report {
    /// Adds a step: what it reported, or why it reported nothing.
    pub(crate) fn add(&mut self, name: &'static str, took: Duration, outcome: Result<Outcome>) {
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(error) => (Outcome::default(), Some(format!("{error:#}"))),
        };
        let Outcome {
            checks,
            skipped,
            figures,
            ..
        } = outcome;
        self.steps.push(Step {
            name,
            seconds: took.as_secs_f64(),
            error,
            checks,
            skipped,
            figures,
        });
    }

    /// True if everything so far is as it must be.
    pub(crate) fn held(&self) -> bool {
        self.steps.iter().all(|step| step.failed() == 0)
    }

    /// Writes it as JSON.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
    }

    /// Prints it, ending in one line that can be counted.
    pub(crate) fn print(&self) {
        self.steps.iter().for_each(Step::print);
        let passed: usize = self.steps.iter().map(Step::passed).sum();
        let failed: usize = self.steps.iter().map(Step::failed).sum();
        println!("{passed} passed, {failed} failed");
    }
}

impl Step {
    fn passed(&self) -> usize {
        self.checks.iter().filter(|check| check.ok).count()
    }

    fn failed(&self) -> usize {
        self.checks.len() - self.passed() + usize::from(self.error.is_some())
    }

    fn print(&self) {
        println!("{} ({:.1} s)", self.name, self.seconds);
        for Check { name, ok, detail } in &self.checks {
            let verdict = if *ok { "ok    " } else { "FAILED" };
            let separator = if detail.is_empty() { "" } else { ": " };
            println!("  {verdict} {name}{separator}{detail}");
        }
        for Skipped { name, reason } in &self.skipped {
            println!("  skipped {name}: {reason}");
        }
        for Figure { name, value, unit } in &self.figures {
            println!("         {name}: {value} {unit}");
        }
        if let Some(error) = &self.error {
            println!("  FAILED {error}");
        }
    }
}

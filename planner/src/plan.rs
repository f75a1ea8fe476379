//! What a plan is made of: the request, the workers as they stand, and what comes out.

use std::sync::Arc;

use crate::cost::{Cached, Cost};
use crate::topology::Place;
use crate::worker::{Limits, Worker};

/// What of a request decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its prompt's length in tokens, or that of all its prompts together.
    pub tokens: u64,
    /// The longest of them.
    pub longest: u64,
}

/// What a worker may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duty {
    /// Prefill legs.
    pub prefill: bool,
    /// Decode legs.
    pub decode: bool,
    /// Whole requests.
    pub local: bool,
}

/// One worker as it stands when a plan is made.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Its books and what was learnt of it.
    pub worker: &'a Arc<Worker>,
    /// What it may be used for.
    pub duty: Duty,
    /// How big it is.
    pub limits: Limits,
    /// How much of the prompt it has.
    pub cached: Cached,
    /// Where it stands.
    pub place: &'a Place,
    /// Requests before this one that are not given to it yet because they wait for room in it.
    pub ahead: u32,
    /// It was set apart for decode, whose tokens are to come evenly.
    pub guarded: bool,
    /// Seconds that computing the prompt here counts as more: somewhere else it would be kept together with what it
    /// belongs to.
    pub penalty: f64,
}

/// A plan, with workers by their places in the list that it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plan {
    /// One worker does it all.
    Local {
        /// Which.
        worker: usize,
    },
    /// Prefill here, decode there.
    Split {
        /// Who computes the prompt.
        prefill: usize,
        /// Who decodes.
        decode: usize,
    },
}

/// A plan and what it is predicted to cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Who would serve.
    pub plan: Plan,
    /// How long it would take.
    pub cost: Cost,
}

/// The plan that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// It.
    pub candidate: Candidate,
    /// The next best that were looked at, the best first.
    pub others: Vec<Candidate>,
}

/// Which two workers can hand over.
pub trait Pairing {
    /// Whether the first can hand over to the second; places in the list of workers.
    fn fits(&self, prefill: usize, decode: usize) -> bool;
}

impl<F: Fn(usize, usize) -> bool> Pairing for F {
    fn fits(&self, prefill: usize, decode: usize) -> bool {
        self(prefill, decode)
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nobody for it.
    #[error("no worker may serve it")]
    Nobody,
    /// The prompt is longer than any of them can take.
    #[error("its prompt is longer than any worker can take")]
    TooLong,
}

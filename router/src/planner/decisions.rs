//! The last decisions, for operators who ask why a request went where it went.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use baton_planner::Cost;
use serde_json::{Value, json};

use super::explain::{lost_by, shown_cost};
use super::{Chosen, Question};
use crate::prefill::bypass;
use crate::tokens::Known;

/// Decisions that are kept.
const KEPT: usize = 256;

/// What came of a decision.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Seconds from arrival to the first token, or to the whole answer.
    pub first_token: Option<f64>,
    /// Tokens that the engine says were cached.
    pub cached: Option<u64>,
    /// Why it failed.
    pub failed: Option<String>,
}

/// One decision. Its outcome is filled in as it becomes known.
#[derive(Debug, Default)]
pub struct Decision {
    at: f64,
    trace: String,
    request: Value,
    /// By what of its prompt.
    prompt_by: Known,
    chosen: Value,
    cost: Cost,
    others: Vec<Value>,
    outcome: Mutex<Outcome>,
}

impl Decision {
    /// Takes note of what came of it.
    pub fn came(&self, note: impl FnOnce(&mut Outcome)) {
        note(&mut self.outcome.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Predicted seconds to the first token.
    pub fn first_token(&self) -> f64 {
        self.cost.to_first_token()
    }

    /// Seconds since it was made.
    pub fn age(&self, now: f64) -> f64 {
        now - self.at
    }

    fn shown(&self, now: f64) -> Value {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "seconds_ago": now - self.at,
            "trace": self.trace,
            "request": self.request,
            "chosen": self.chosen,
            "predicted": shown_cost(&self.cost),
            "others": self.others,
            "first_token": outcome.first_token,
            "reported_cached_tokens": outcome.cached,
            "failed": outcome.failed,
        })
    }
}

/// The predicted seconds, and by what the best of the others lost, behind a plan's words.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost {
            waiting,
            prefill,
            transfer,
            decode,
            ..
        } = self.cost;
        write!(
            f,
            " prompt_by={} first_token_s={:.4} waiting_s={waiting:.4} prefill_s={prefill:.4} transfer_s={transfer:.4} decode_s={decode:.4}",
            self.prompt_by.word(),
            self.first_token(),
        )?;
        let next = self.others.first().map(|other| &other["lost_by"]);
        match next.map(|by| (by["seconds"].as_f64(), by["mostly"].as_str())) {
            Some((Some(seconds), Some(mostly))) => {
                write!(f, " next_lost_by_s={seconds:.4} mostly={mostly}")
            }
            _ => Ok(()),
        }
    }
}

/// The last decisions.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<VecDeque<Arc<Decision>>>);

impl Decisions {
    /// Writes one down.
    pub fn note(
        &self,
        question: &Question<'_>,
        chosen: &Chosen,
        trace: String,
        at: f64,
    ) -> Arc<Decision> {
        let others = chosen.others.iter().map(|other| {
            let mut shown = question.shown_plan(other.plan);
            shown["lost_by"] = lost_by(&other.cost, &chosen.cost);
            shown
        });
        let decision = Arc::new(Decision {
            at,
            trace,
            request: bypass::shown(question.facts),
            prompt_by: question.facts.known,
            chosen: question.shown_plan(chosen.candidate.plan),
            cost: chosen.cost,
            others: others.collect(),
            outcome: Mutex::default(),
        });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&decision));
        decision
    }

    /// All that are kept, the latest first.
    pub fn shown(&self, now: f64) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter()
            .rev()
            .map(|decision| decision.shown(now))
            .collect()
    }
}

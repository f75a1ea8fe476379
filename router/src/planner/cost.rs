//! What a plan costs: predicted seconds to the first token, in parts that can be shown.
//!
//! Rates are fixed priors for now; they will be learnt per worker and pair. They are chosen so that the order of plans is
//! right where it is clear: a busy worker costs more than an idle one, and moving KV is cheap beside computing it.

use serde_json::{Value, json};

use crate::fleet::WorkerView;
use crate::prefill::bypass::Facts;
use crate::view::{Cached, Prediction};

/// Prompt tokens a worker computes in a second.
const PREFILL_TOKENS_PER_S: f64 = 10_000.0;

/// KV bytes that move between two workers in a second.
const BANDWIDTH: f64 = 5e9;

/// Fixed price of a handoff: two more HTTP legs and the start of a transfer, in seconds.
const HANDOFF_S: f64 = 0.003;

/// KV bytes per token where a worker does not say.
const BYTES_PER_TOKEN: f64 = 100_000.0;

/// What one running sequence adds to a step that a new request waits for, in seconds.
const STEP_PER_SEQUENCE_S: f64 = 0.000_2;

/// Share of a local prefill that each running sequence of the same worker loses: tokens of others are held up meanwhile.
const INTERFERENCE: f64 = 0.1;

/// What a token is worth that is likely to be cached and not known to be.
const LIKELY: f64 = 0.5;

/// Predicted seconds, by part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Waiting for work that came before.
    pub waiting: f64,
    /// Computing the prompt.
    pub prefill: f64,
    /// Moving the KV.
    pub transfer: f64,
    /// Decode: waiting for a step, and what others lose.
    pub decode: f64,
}

impl Cost {
    /// All parts.
    pub fn total(&self) -> f64 {
        self.waiting + self.prefill + self.transfer + self.decode
    }

    /// The parts in JSON.
    pub fn shown(&self) -> Value {
        json!({
            "total": self.total(),
            "waiting": self.waiting,
            "prefill": self.prefill,
            "transfer": self.transfer,
            "decode": self.decode,
        })
    }
}

/// One worker does it all.
pub(super) fn local(worker: &WorkerView, facts: &Facts, prediction: &Prediction) -> Cost {
    let prefill = seconds_of(uncached(facts, prediction.cached(worker.id())));
    let sequences = sequences(worker);
    Cost {
        waiting: waiting(worker),
        prefill,
        transfer: 0.0,
        decode: sequences * STEP_PER_SEQUENCE_S + prefill * INTERFERENCE * sequences,
    }
}

/// Prefill here, decode there.
pub(super) fn split(
    prefill: &WorkerView,
    decode: &WorkerView,
    facts: &Facts,
    prediction: &Prediction,
) -> Cost {
    let computed = uncached(facts, prediction.cached(prefill.id()));
    let moved = uncached(facts, prediction.cached(decode.id()));
    let told = prefill.info().and_then(|info| info.kv_bytes_per_token);
    let bytes_per_token = told.map_or(BYTES_PER_TOKEN, to_f64);
    Cost {
        waiting: waiting(prefill) + waiting(decode),
        prefill: seconds_of(computed),
        transfer: to_f64(moved) * bytes_per_token / BANDWIDTH + HANDOFF_S,
        decode: sequences(decode) * STEP_PER_SEQUENCE_S,
    }
}

/// Prompt tokens that are not in a cache, as far as can be told.
pub(super) fn uncached(facts: &Facts, cached: Cached) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "half of a token count is a token count"
    )]
    let likely = (to_f64(cached.likely) * LIKELY) as u64;
    let saved = cached.known.saturating_add(likely);
    facts.prompt_tokens.saturating_sub(saved)
}

fn seconds_of(tokens: u64) -> f64 {
    to_f64(tokens) / PREFILL_TOKENS_PER_S
}

/// Prompts that this router has given the worker, and those that others have.
fn waiting(worker: &WorkerView) -> f64 {
    let (_, tokens) = worker.worker.reserved();
    let queued = worker
        .load()
        .queued_prefill_tokens
        .map_or(0, |measured| measured.value);
    seconds_of(tokens.max(queued))
}

fn sequences(worker: &WorkerView) -> f64 {
    let (requests, _) = worker.worker.reserved();
    let running = worker.load().running.map_or(0, |measured| measured.value);
    let waiting = worker.load().waiting.map_or(0, |measured| measured.value);
    f64::from(requests.max(running.saturating_add(waiting)))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "token and byte counts are far below 2^52"
)]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;

//! What a plan costs: predicted seconds to the first token, in parts that can be shown.

use crate::book::{Work, to_f64};
use crate::plan::{Ask, Standing};
use crate::tuning::Tuning;
use crate::worker::Figures;

/// KV bytes per token where a worker does not say.
pub(crate) const BYTES_PER_TOKEN: u64 = 100_000;

/// Prompt tokens that a worker need not compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cached {
    /// Tokens that are there.
    pub known: u64,
    /// Of these, how many are not in the device's memory but below it.
    pub lower: u64,
    /// Further tokens that will be there when requests are done that came before.
    pub expected: u64,
    /// Further tokens that may be there.
    pub likely: u64,
}

/// Predicted seconds, by part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Waiting for work that came before, and for room.
    pub waiting: f64,
    /// Of this, what is certain.
    pub waiting_at_least: f64,
    /// Computing the prompt.
    pub prefill: f64,
    /// Moving the KV.
    pub transfer: f64,
    /// Decode: waiting for a step.
    pub decode: f64,
    /// What others lose by it.
    pub others: f64,
    /// What the operator would rather not have.
    pub preference: f64,
}

impl Cost {
    /// What plans are compared by.
    pub fn total(&self) -> f64 {
        self.to_first_token() + self.others + self.preference
    }

    /// When the prompt is to be computed.
    pub fn until_decode(&self) -> f64 {
        self.waiting + self.prefill
    }

    /// When the first token is to be expected.
    pub fn to_first_token(&self) -> f64 {
        self.waiting + self.prefill + self.transfer + self.decode
    }
}

/// What of a request a worker has to compute.
pub(crate) fn work(ask: Ask, cached: Cached, tuning: &Tuning) -> Work {
    let saved = to_f64(cached.known) - to_f64(cached.lower) * tuning.lower_tier
        + to_f64(cached.expected) * tuning.expected
        + to_f64(cached.likely) * tuning.likely;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a token count is a token count"
    )]
    let saved = saved.max(0.0) as u64;
    // The last token is always computed.
    let saved = saved.min(ask.tokens.saturating_sub(1));
    Work {
        tokens: ask.tokens - saved,
        cached: saved,
    }
}

/// One worker's side of a plan that it computes the prompt in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Computing {
    pub(crate) waiting: f64,
    waiting_at_least: f64,
    pub(crate) prefill: f64,
    others: f64,
    penalty: f64,
}

impl Computing {
    pub(crate) fn new(
        worker: &Standing<'_>,
        figures: &Figures,
        ask: Ask,
        tuning: &Tuning,
        now: f64,
    ) -> Self {
        let work = work(ask, worker.cached, tuning);
        let prefill = figures.prefill(work);
        Self {
            waiting: figures.waiting
                + waiting_for_room(worker, figures, ask.tokens)
                + waiting_for_others(worker, figures),
            waiting_at_least: figures.waiting_at_least,
            prefill,
            others: crowding(prefill, figures, tuning)
                + interference(prefill, figures, worker.guarded, tuning)
                + held_up(prefill, worker, figures, now),
            penalty: worker.penalty,
        }
    }

    pub(crate) fn total(&self) -> f64 {
        self.waiting + self.prefill + self.others + self.penalty
    }

    /// As part of a plan.
    pub(crate) fn cost(&self) -> Cost {
        Cost {
            waiting: self.waiting,
            waiting_at_least: self.waiting_at_least,
            prefill: self.prefill,
            others: self.others,
            preference: self.penalty,
            ..Cost::default()
        }
    }
}

/// One worker's side of a plan that it decodes in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoding {
    pub(crate) room: f64,
    pub(crate) step: f64,
    /// Seconds until all prompts are computed that it has.
    pub(crate) busy: f64,
    /// Bytes that must come here.
    pub(crate) bytes: u64,
}

impl Decoding {
    pub(crate) fn new(worker: &Standing<'_>, figures: &Figures, ask: Ask) -> Self {
        Self {
            room: waiting_for_room(worker, figures, ask.tokens)
                + waiting_for_others(worker, figures),
            step: figures.step,
            busy: figures.waiting,
            bytes: moved_bytes(worker, ask),
        }
    }

    /// What it costs at the least, whoever computes the prompt.
    pub(crate) fn total(&self) -> f64 {
        self.room + self.step
    }

    /// Seconds until a sequence that comes then has its first token: it cannot begin before the prompts that are computed here,
    /// which take all of their steps' tokens.
    pub(crate) fn begins(&self, comes: f64) -> f64 {
        self.step + (self.busy - comes).max(0.0)
    }
}

/// Bytes of KV that a decode worker does not have.
pub(crate) fn moved_bytes(decode: &Standing<'_>, ask: Ask) -> u64 {
    let each = decode.limits.bytes_per_token.unwrap_or(BYTES_PER_TOKEN);
    let missing = ask.tokens.saturating_sub(decode.cached.known);
    missing.saturating_mul(each)
}

/// Whoever comes next waits for it, the more likely the more there is to do.
fn crowding(prefill: f64, figures: &Figures, tuning: &Tuning) -> f64 {
    let crowded = figures.waiting.min(tuning.crowded) / tuning.crowded;
    prefill * crowded * tuning.crowding
}

/// A prompt that is computed where others decode holds all of them up.
fn interference(prefill: f64, figures: &Figures, guarded: bool, tuning: &Tuning) -> f64 {
    let share = if guarded {
        tuning.guarded_interference
    } else {
        tuning.interference
    };
    prefill * f64::from(figures.decoding).min(64.0) * share
}

/// A prompt takes all of its steps' tokens, so who comes while it is computed to be decoded there cannot begin.
fn held_up(prefill: f64, worker: &Standing<'_>, figures: &Figures, now: f64) -> f64 {
    if figures.promised == 0 {
        return 0.0;
    }
    let begun = now + figures.waiting;
    worker.worker.held_up(begun, begun + prefill)
}

/// Seconds until those have been given their room that are to be given it first: one for each sequence that ends.
fn waiting_for_others(worker: &Standing<'_>, figures: &Figures) -> f64 {
    let lifetime = figures.step * figures.answer;
    f64::from(worker.ahead) * lifetime / f64::from(figures.sequences.max(1))
}

/// Seconds until sequences have ended whose places or whose KV a new one needs.
fn waiting_for_room(worker: &Standing<'_>, figures: &Figures, tokens: u64) -> f64 {
    let sequences = f64::from(figures.sequences);
    let used = to_f64(figures.kv_tokens);
    let lifetime = figures.step * figures.answer;
    let places = worker.limits.sequences.map_or(0.0, |most| {
        let over = sequences + 1.0 - f64::from(most);
        (over.max(0.0) * lifetime) / sequences.max(1.0)
    });
    let kv = worker.limits.kv_tokens.map_or(0.0, |most| {
        let over = used + to_f64(tokens) - to_f64(most);
        (over.max(0.0) * lifetime) / used.max(1.0)
    });
    places.max(kv)
}

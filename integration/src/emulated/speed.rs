//! How long an engine takes: the time model of a step.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What one step of an engine has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepLoad {
    /// Prompt tokens computed in it.
    pub prefill_tokens: usize,
    /// Sum over those tokens of how many tokens each attends to.
    pub prefill_attention: f64,
    /// Sequences that get one more token.
    pub decode_sequences: usize,
    /// Tokens whose KV those sequences read.
    pub decode_context: usize,
}

/// How fast an engine is. Every cost is in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// A step, whatever is in it: launching kernels, reading the weights.
    pub step: f64,
    /// A prompt token.
    pub prefill_token: f64,
    /// A pair of tokens in prefill attention: the quadratic term.
    pub attention_pair: f64,
    /// A sequence in decode.
    pub decode_sequence: f64,
    /// A token of context that decode reads.
    pub decode_context: f64,
    /// Spread of a step's time: 0.1 is up to 10 % more or less, evenly.
    pub jitter: f64,
}

impl Speed {
    /// No time at all: what is left is the cost of the emulator's own code.
    pub const INSTANT: Self = Self {
        step: 0.0,
        prefill_token: 0.0,
        attention_pair: 0.0,
        decode_sequence: 0.0,
        decode_context: 0.0,
        jitter: 0.0,
    };

    /// As the recorded 2-layer model on one CPU core: 20,000 prompt tokens/s, 70 tokens/s alone, 551 tokens/s for eight.
    pub const TINY: Self = Self {
        step: 14.0e6,
        prefill_token: 50.0e3,
        attention_pair: 1.0,
        decode_sequence: 65.0e3,
        decode_context: 2.0,
        jitter: 0.1,
    };

    /// Of the order of an 8-billion-parameter model on one current GPU: a prior for demos, no measurement.
    pub const FAST: Self = Self {
        step: 7.0e6,
        prefill_token: 40.0e3,
        attention_pair: 1.5,
        decode_sequence: 60.0e3,
        decode_context: 8.0,
        jitter: 0.05,
    };

    /// Time of a step.
    pub fn of(&self, load: &StepLoad, random: &mut StdRng) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
        let count = |count: usize| count as f64;
        let nanoseconds = self.step
            + self.prefill_token * count(load.prefill_tokens)
            + self.attention_pair * load.prefill_attention
            + self.decode_sequence * count(load.decode_sequences)
            + self.decode_context * count(load.decode_context);
        let spread = if self.jitter > 0.0 {
            1.0 + self.jitter * random.random_range(-1.0..=1.0)
        } else {
            1.0
        };
        Duration::from_secs_f64((nanoseconds * spread).max(0.0) / 1e9)
    }
}

/// Randomness of an engine, the same in every run with the same seed.
pub fn random(seed: u64, rank: u32) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(u64::from(rank)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(speed: &Speed, load: StepLoad) -> f64 {
        let speed = Speed {
            jitter: 0.0,
            ..*speed
        };
        speed.of(&load, &mut random(0, 0)).as_secs_f64() * 1e3
    }

    #[test]
    fn the_tiny_model_is_as_fast_as_the_recorded_one() {
        let decode = |sequences| StepLoad {
            decode_sequences: sequences,
            decode_context: 100 * sequences,
            ..StepLoad::default()
        };
        let alone = 1e3 / milliseconds(&Speed::TINY, decode(1));
        let eight = 8e3 / milliseconds(&Speed::TINY, decode(8));
        assert!((65.0..75.0).contains(&alone), "{alone} tokens/s");
        assert!((520.0..580.0).contains(&eight), "{eight} tokens/s");
    }

    #[test]
    fn attention_makes_prefill_quadratic() {
        let prompt = |tokens: u32| StepLoad {
            prefill_tokens: tokens as usize,
            prefill_attention: f64::from(tokens) * f64::from(tokens) / 2.0,
            ..StepLoad::default()
        };
        let step = Speed::FAST.step / 1e6;
        let short = milliseconds(&Speed::FAST, prompt(8_000)) - step;
        let long = milliseconds(&Speed::FAST, prompt(32_000)) - step;
        assert!(long > 5.0 * short, "{short} ms, {long} ms");
    }

    #[test]
    fn the_same_seed_gives_the_same_jitter() {
        let load = StepLoad {
            decode_sequences: 3,
            ..StepLoad::default()
        };
        let times = |seed| {
            let mut random = random(seed, 0);
            (0..20)
                .map(|_| Speed::FAST.of(&load, &mut random))
                .collect::<Vec<_>>()
        };
        assert_eq!(times(7), times(7));
        assert_ne!(times(7), times(8));
    }
}

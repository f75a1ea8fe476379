//! Distributions, in the buckets of the recorded page.

use std::collections::BTreeMap;

use super::exact;
use super::skeleton::{self, Sample};

/// The histograms of a vLLM engine, in the page's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histogram {
    /// Seconds a transfer took.
    NixlTransferSeconds,
    /// Seconds until a transfer was posted.
    NixlPostSeconds,
    /// Bytes of a transfer.
    NixlBytes,
    /// Descriptors of a transfer: blocks times layers.
    NixlDescriptors,
    /// Prompt tokens of a request.
    PromptTokens,
    /// Generated tokens of a request.
    GenerationTokens,
    /// Tokens of an engine step. Transferred ones are not among them.
    IterationTokens,
    /// The most tokens that a request may generate.
    MaxGenerationTokens,
    /// `n` of a request.
    ParamsN,
    /// `max_tokens` of a request.
    ParamsMaxTokens,
    /// Seconds from a request's arrival to its first token.
    TimeToFirstTokenSeconds,
    /// Seconds between two tokens of a request.
    InterTokenSeconds,
    /// Mean seconds per token of a request, the first one left out.
    TimePerOutputTokenSeconds,
    /// Seconds from a request's arrival to its end.
    EndToEndSeconds,
    /// Seconds a request waited.
    QueueSeconds,
    /// Seconds a request ran.
    InferenceSeconds,
    /// Seconds of a request's prefill.
    PrefillSeconds,
    /// Seconds of a request's decode.
    DecodeSeconds,
    /// How often a request had to begin again.
    Preemptions,
    /// Prompt tokens of a request that were computed.
    PrefillComputedTokens,
}

impl Histogram {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::NixlTransferSeconds,
        Self::NixlPostSeconds,
        Self::NixlBytes,
        Self::NixlDescriptors,
        Self::PromptTokens,
        Self::GenerationTokens,
        Self::IterationTokens,
        Self::MaxGenerationTokens,
        Self::ParamsN,
        Self::ParamsMaxTokens,
        Self::TimeToFirstTokenSeconds,
        Self::InterTokenSeconds,
        Self::TimePerOutputTokenSeconds,
        Self::EndToEndSeconds,
        Self::QueueSeconds,
        Self::InferenceSeconds,
        Self::PrefillSeconds,
        Self::DecodeSeconds,
        Self::Preemptions,
        Self::PrefillComputedTokens,
    ];

    /// Name of its family.
    pub fn family(self) -> &'static str {
        match self {
            Self::NixlTransferSeconds => "vllm:nixl_xfer_time_seconds",
            Self::NixlPostSeconds => "vllm:nixl_post_time_seconds",
            Self::NixlBytes => "vllm:nixl_bytes_transferred",
            Self::NixlDescriptors => "vllm:nixl_num_descriptors",
            Self::PromptTokens => "vllm:request_prompt_tokens",
            Self::GenerationTokens => "vllm:request_generation_tokens",
            Self::IterationTokens => "vllm:iteration_tokens_total",
            Self::MaxGenerationTokens => "vllm:request_max_num_generation_tokens",
            Self::ParamsN => "vllm:request_params_n",
            Self::ParamsMaxTokens => "vllm:request_params_max_tokens",
            Self::TimeToFirstTokenSeconds => "vllm:time_to_first_token_seconds",
            Self::InterTokenSeconds => "vllm:inter_token_latency_seconds",
            Self::TimePerOutputTokenSeconds => "vllm:request_time_per_output_token_seconds",
            Self::EndToEndSeconds => "vllm:e2e_request_latency_seconds",
            Self::QueueSeconds => "vllm:request_queue_time_seconds",
            Self::InferenceSeconds => "vllm:request_inference_time_seconds",
            Self::PrefillSeconds => "vllm:request_prefill_time_seconds",
            Self::DecodeSeconds => "vllm:request_decode_time_seconds",
            Self::Preemptions => "vllm:request_num_preemptions",
            Self::PrefillComputedTokens => "vllm:request_prefill_kv_computed_tokens",
        }
    }
}

/// What was observed so far.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    series: BTreeMap<&'static str, Series>,
}

#[derive(Debug, Clone)]
struct Series {
    /// Upper bound, and how many were below it and above the one before.
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl Observed {
    /// Counts one value.
    pub fn observe(&mut self, histogram: Histogram, value: f64) {
        let family = histogram.family();
        let new = || {
            let bounds = skeleton::family(family).bounds();
            Series {
                buckets: bounds.into_iter().map(|bound| (bound, 0)).collect(),
                sum: 0.0,
            }
        };
        let series = self.series.entry(family).or_insert_with(new);
        let bucket = series.buckets.iter_mut().find(|(bound, _)| value <= *bound);
        if let Some((_, count)) = bucket {
            *count += 1;
            series.sum += value;
        }
    }

    /// What a sample of a family says.
    pub(super) fn value(&self, family: &str, sample: &Sample) -> f64 {
        let Some(series) = self.series.get(family) else {
            return 0.0;
        };
        match sample.name.strip_prefix(family) {
            Some("_sum") => series.sum,
            _ => series.up_to(sample.bound().unwrap_or(f64::INFINITY)),
        }
    }
}

impl Series {
    fn up_to(&self, bound: f64) -> f64 {
        let below = self.buckets.iter().take_while(|(upper, _)| *upper <= bound);
        exact(below.map(|(_, count)| count).sum())
    }
}

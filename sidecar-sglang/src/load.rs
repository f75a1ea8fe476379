//! How busy the engine says it is: `GET /v1/loads`, and the stream of it that an engine publishes if it was told to.
//!
//! The stream is as fresh as the engine's last step and needs no answer of its HTTP server, but does not count generated
//! tokens; where both are there, it goes before.

mod stream;
#[cfg(test)]
mod tests;

use baton_proto::load::{LoadReport, Measured, Origin};
use baton_proto::worker::{Tier, TierBlocks};
use baton_sidecar_core::engine::EngineLoad;
use serde::Deserialize;

pub use stream::LoadStat;
pub(crate) use stream::{LoadSource, LoadStream};

/// Place of the generated tokens among the sums over all decode steps (0.5.23).
const GENERATED: usize = 5;

/// What `GET /v1/loads?include=all` answers.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Loads {
    /// One for each data-parallel rank.
    #[serde(default)]
    pub loads: Vec<RankLoad>,
}

/// How busy a rank is.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct RankLoad {
    /// Requests that are computed.
    pub num_running_reqs: u64,
    /// Requests in all its queues.
    pub num_waiting_reqs: u64,
    /// Prompt tokens in its queues that its cache does not have.
    pub num_waiting_uncached_tokens: u64,
    /// Tokens in the KV cache that requests use.
    pub num_used_tokens: u64,
    /// Tokens that the KV cache holds.
    pub max_total_num_tokens: u64,
    /// Prompt tokens computed in its life.
    pub total_prefill_uncached_tokens: u64,
    /// Sums over all decode steps; absent before the first.
    pub decode_moments: Option<Vec<f64>>,
}

impl Loads {
    /// Tokens that the engine has computed and generated in its life.
    fn work(&self) -> Option<u64> {
        let work = |load: &RankLoad| {
            let generated = load.decode_moments.as_ref();
            let generated = generated.and_then(|sums| sums.get(GENERATED).copied());
            load.total_prefill_uncached_tokens
                .saturating_add(whole_number(generated.unwrap_or_default()))
        };
        let each = self.loads.iter().map(work);
        each.reduce(u64::saturating_add)
    }

    fn stats(&self) -> Vec<LoadStat> {
        let stat = |load: &RankLoad| LoadStat {
            running: load.num_running_reqs,
            waiting: load.num_waiting_reqs,
            used_tokens: load.num_used_tokens,
            all_tokens: load.max_total_num_tokens,
            waiting_tokens: load.num_waiting_uncached_tokens,
            ..LoadStat::default()
        };
        self.loads.iter().map(stat).collect()
    }
}

/// What is told of an engine's load, from what it answered and from what it published lately, if either is there.
pub(crate) fn told(
    answered: Option<&Loads>,
    published: Option<Vec<LoadStat>>,
    block_size: u32,
) -> EngineLoad {
    let work = answered.and_then(Loads::work);
    let (stats, from) = match (published, answered) {
        (Some(stats), _) => (stats, Origin::EngineStream),
        (None, Some(loads)) => (loads.stats(), Origin::EngineMetric),
        (None, None) => (Vec::new(), Origin::EngineMetric),
    };
    EngineLoad {
        report: report(&stats, from, block_size),
        work,
        // Only the side that sends KV says how much and how long it took, and routers are told of what comes in.
        moved: None,
    }
}

fn report(stats: &[LoadStat], from: Origin, block_size: u32) -> LoadReport {
    if stats.is_empty() {
        return LoadReport::default();
    }
    let sum = |of: fn(&LoadStat) -> u64| stats.iter().map(of).fold(0, u64::saturating_add);
    let count = |of| Measured {
        value: u32::try_from(sum(of)).unwrap_or(u32::MAX),
        from,
    };
    // Capacity is told per rank, too; the fullest one decides what still fits.
    let free = stats
        .iter()
        .filter(|stat| stat.all_tokens > 0)
        .map(|stat| stat.all_tokens.saturating_sub(stat.used_tokens) / u64::from(block_size.max(1)))
        .min();
    LoadReport {
        running: Some(count(|stat| stat.running)),
        waiting: Some(count(|stat| stat.waiting)),
        queued_prefill_tokens: Some(Measured {
            value: sum(|stat| stat.waiting_tokens),
            from,
        }),
        free: free.map(|blocks| Measured {
            value: vec![TierBlocks {
                tier: Tier::Device,
                blocks,
            }],
            from,
        }),
        ..LoadReport::default()
    }
}

fn whole_number(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of tokens, clamped at 0"
    )]
    let number = value.max(0.0) as u64;
    number
}

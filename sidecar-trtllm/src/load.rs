//! How busy the engine says it is: `GET /metrics`, the statistics of its steps since the last time somebody asked.
//!
//! To ask is to take them away, so there is one who asks ([`sample`]), and all others look at what was last seen. An engine that
//! does nothing makes no step, and may take two seconds to say so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_proto::Error;
use baton_proto::load::{LoadReport, Measured, Origin};
use baton_proto::worker::{Tier, TierBlocks};
use baton_sidecar_core::engine::EngineLoad;
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::engine::TrtllmEngine;
use crate::follow::Ended;
use crate::source::Source;

/// How often they are asked for.
const EVERY: Duration = Duration::from_secs(1);

/// How long the last step says how busy the engine is.
const FRESH: Duration = Duration::from_millis(1500);

/// Requests after which an engine that says how busy it is has said something.
const TELLING_REQUESTS: u64 = 8;

/// What a step of the engine was like.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Step {
    num_active_requests: Option<u64>,
    num_queued_requests: Option<u64>,
    kv_cache_stats: Option<KvCache>,
    inflight_batching_stats: Option<Batching>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KvCache {
    free_num_blocks: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Batching {
    num_ctx_tokens: Option<u64>,
    num_gen_requests: Option<u64>,
}

impl Step {
    /// Prompt tokens that it computed, and one for each request that generates.
    fn work(&self) -> u64 {
        let batch = self.inflight_batching_stats.as_ref();
        let of = |count: fn(&Batching) -> Option<u64>| batch.and_then(count).unwrap_or(0);
        of(|batch| batch.num_ctx_tokens).saturating_add(of(|batch| batch.num_gen_requests))
    }
}

/// Reads an answer; steps that cannot be read are passed over.
pub fn read(answer: &[u8]) -> Result<Vec<Step>, String> {
    let steps: Vec<serde_json::Value> =
        serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let read = steps.into_iter().map(serde_json::from_value);
    Ok(read.filter_map(Result::ok).collect())
}

/// What was last seen of the engine's load.
#[derive(Debug, Default)]
pub(crate) struct LoadSample {
    /// The last step, and when it was heard of.
    last: Option<(Step, Instant)>,
    /// Tokens that it has computed and generated, as far as it was listened to.
    work: u64,
}

impl LoadSample {
    fn take(&mut self, steps: Vec<Step>, now: Instant) {
        let work = steps.iter().map(Step::work);
        self.work = work.fold(self.work, u64::saturating_add);
        if let Some(last) = steps.into_iter().next_back() {
            self.last = Some((last, now));
        }
    }

    /// An engine that has made no step for a while has nothing to do, or does nothing; which of the two is not said. What its
    /// cache has free stays so.
    pub(crate) fn report(&self, now: Instant) -> EngineLoad {
        let Some((last, at)) = &self.last else {
            return EngineLoad::default();
        };
        let from = Origin::EngineMetric;
        let fresh = now.duration_since(*at) <= FRESH;
        let count = |count: Option<u64>| {
            let value = u32::try_from(count.filter(|_| fresh)?).unwrap_or(u32::MAX);
            Some(Measured { value, from })
        };
        let free = last
            .kv_cache_stats
            .as_ref()
            .and_then(|cache| cache.free_num_blocks);
        let free = free.map(|blocks| TierBlocks {
            tier: Tier::Device,
            blocks,
        });
        EngineLoad {
            report: LoadReport {
                running: count(last.num_active_requests),
                waiting: count(last.num_queued_requests),
                free: free.map(|free| Measured {
                    value: vec![free],
                    from,
                }),
                ..LoadReport::default()
            },
            work: Some(self.work),
            moved: None,
        }
    }
}

/// Asks again and again until told to end.
pub(crate) async fn sample(
    source: impl Source,
    sample: Arc<Mutex<LoadSample>>,
    ended: Arc<Ended>,
    stop: CancellationToken,
) {
    *sample.lock().unwrap_or_else(PoisonError::into_inner) = LoadSample::default();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began_at, mut said) = (ended.count(), false);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let told = take(&source, &sample).await;
        let requests = ended.count().saturating_sub(began_at);
        if !told && requests >= TELLING_REQUESTS && !std::mem::replace(&mut said, true) {
            tracing::warn!(
                requests,
                "the engine does not say how busy it is: set its enable_iter_perf_stats, and see that nobody else asks for its \
                 statistics"
            );
        }
    }
}

/// Takes what there is; whether anything was ever told.
async fn take(source: &impl Source, sample: &Mutex<LoadSample>) -> bool {
    let answered = source.take_statistics().await;
    let steps = answered
        .map_err(|error| error.to_string())
        .and_then(|answer| read(&answer));
    let mut sample = sample.lock().unwrap_or_else(PoisonError::into_inner);
    match steps {
        Ok(steps) => sample.take(steps, Instant::now()),
        Err(why) => tracing::debug!(why, "the engine's statistics cannot be had"),
    }
    sample.last.is_some()
}

impl TrtllmEngine {
    /// How busy it was last.
    pub(crate) async fn busy(&self) -> Result<EngineLoad, Error> {
        // That it answers now is part of the question.
        self.reach().await?;
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sample.report(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Vec<Step> {
        let recorded =
            include_str!("../../integration/recordings/trtllm/metrics_iteration_stats.json");
        read(recorded.as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_step_counts_while_it_is_fresh_and_work_adds_up() {
        let mut sample = LoadSample::default();
        assert_eq!(sample.report(Instant::now()), EngineLoad::default());
        sample.take(recorded(), Instant::now());
        sample.take(recorded(), Instant::now());
        let load = sample.report(Instant::now());
        let value = |count: &Option<Measured<u32>>| count.as_ref().map(|count| count.value);
        assert_eq!(
            (value(&load.report.running), value(&load.report.waiting)),
            (Some(1), Some(0))
        );
        assert_eq!(load.report.free.unwrap().value[0].blocks, 101_253);
        assert_eq!(load.work, Some(2));
        tokio::time::advance(2 * FRESH).await;
        sample.take(Vec::new(), Instant::now());
        let load = sample.report(Instant::now());
        assert_eq!((value(&load.report.running), load.work), (None, Some(2)));
        assert!(load.report.free.is_some());
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        assert_eq!(read(b"[]"), Ok(Vec::new()));
        assert_eq!(
            read(br#"[{"numActiveRequests":-1},{"kvCacheStats":null}]"#)
                .unwrap()
                .len(),
            1
        );
        assert!(read(b"{}").is_err() && read(b"").is_err());
    }
}

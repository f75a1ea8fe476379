//! Statistics: of every iteration, of every request, and the numbers of the Prometheus page.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::super::core::{Core, Stats};
use super::super::process::Life;
use super::config::Config;

/// Iterations that are kept at most (`iter_stats_max_iterations`).
const MOST: usize = 1000;

/// The Prometheus page's content type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// What nobody has fetched yet.
pub(super) struct Iterations {
    waiting: Mutex<VecDeque<Value>>,
    came: Notify,
    max_num_tokens: usize,
    max_batch_size: usize,
    on: bool,
    /// Requests that ended, and how many of them are kept.
    finished: Mutex<VecDeque<Value>>,
    keeps: usize,
}

impl Iterations {
    pub(super) fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            came: Notify::new(),
            max_num_tokens: config.max_num_tokens,
            max_batch_size: config.max_batch_size,
            on: config.iteration_stats,
            finished: Mutex::default(),
            keeps: config.request_stats.unwrap_or(0),
        })
    }

    /// One more.
    pub(super) fn add(&self, core: &Core) {
        if !self.on {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap();
        waiting.push_back(self.one(&core.stats(), core.config().block_size));
        if waiting.len() > MOST {
            waiting.pop_front();
        }
        self.came.notify_one();
    }

    /// All of them, which are gone then. None are waited for so long.
    pub(super) async fn take(&self, patience: Duration) -> Vec<Value> {
        let waits = async {
            while self.waiting.lock().unwrap().is_empty() {
                self.came.notified().await;
            }
        };
        if self.on {
            let _ = tokio::time::timeout(patience, waits).await;
        }
        self.waiting.lock().unwrap().drain(..).collect()
    }

    /// A request has its whole answer.
    pub(super) fn finish(&self, ctx_request_id: Option<u64>, took: Duration) {
        let mut finished = self.finished.lock().unwrap();
        finished.push_back(json!({
            "request_id": 0, "server_arrival_time": null, "ctx_request_id": ctx_request_id,
            "perf_metrics": {
                "first_iter": 0, "last_iter": 0,
                "timing_metrics": {
                    "server_arrival_time": 0.0, "arrival_time": 0.0, "first_scheduled_time": 0.0,
                    "first_token_time": 0.0, "server_first_token_time": 0.0, "last_token_time": took.as_secs_f64(),
                    "kv_cache_size": 0, "kv_cache_transfer_start": 0.0, "kv_cache_transfer_end": 0.0,
                },
                "kv_cache_metrics": {
                    "num_total_allocated_blocks": 0, "num_new_allocated_blocks": 0, "num_reused_blocks": 0,
                    "num_missed_blocks": 0,
                },
            },
        }));
        while finished.len() > self.keeps {
            finished.pop_front();
        }
    }

    /// All requests that ended, which are forgotten then.
    pub(super) fn take_finished(&self) -> Vec<Value> {
        self.finished.lock().unwrap().drain(..).collect()
    }

    fn one(&self, stats: &Stats, tokens_per_block: u32) -> Value {
        let completed: u64 = stats.finished.values().sum();
        json!({
            "timestamp": "11-30-2026 02:30:11.000123",
            "iter": stats.steps,
            "iterLatencyMS": 7.0,
            "newActiveRequestsQueueLatencyMS": 0.0,
            "numNewActiveRequests": 0,
            "numActiveRequests": stats.running + stats.fetching,
            "numQueuedRequests": stats.waiting,
            "numCompletedRequests": completed,
            "maxNumActiveRequests": self.max_batch_size,
            "maxBatchSizeStatic": self.max_batch_size,
            "maxBatchSizeTunerRecommended": 0,
            "maxBatchSizeRuntime": self.max_batch_size,
            "maxNumTokensStatic": self.max_num_tokens,
            "maxNumTokensTunerRecommended": 0,
            "maxNumTokensRuntime": self.max_num_tokens,
            "gpuMemUsage": 0,
            "cpuMemUsage": 0,
            "pinnedMemUsage": 0,
            "kvCacheStats": blocks(stats, tokens_per_block),
            "staticBatchingStats": null,
            "inflightBatchingStats": {
                "numScheduledRequests": stats.running,
                "numContextRequests": 0,
                "numGenRequests": stats.running,
                "numPausedRequests": 0,
                "numCtxTokens": 0,
                "microBatchId": 0,
                "avgNumDecodedTokensPerIter": 1.0,
            },
            "specDecodingStats": null,
        })
    }
}

fn blocks(stats: &Stats, tokens_per_block: u32) -> Value {
    let of_tokens = |tokens: u64| tokens / u64::from(tokens_per_block);
    let missed = of_tokens(stats.cache_queries - stats.cache_hits);
    json!({
        "maxNumBlocks": stats.blocks,
        "freeNumBlocks": stats.blocks - stats.blocks_used,
        "usedNumBlocks": stats.blocks_used,
        "tokensPerBlock": tokens_per_block,
        "allocTotalBlocks": missed,
        "allocNewBlocks": missed,
        "reusedBlocks": of_tokens(stats.cache_hits),
        "missedBlocks": missed,
        "cacheHitRate": hit_rate(stats),
    })
}

fn hit_rate(stats: &Stats) -> f64 {
    ratio(stats.cache_hits, stats.cache_queries)
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// `/prometheus/metrics`: only families that were read in the sources.
pub(super) fn page(life: &Life) -> String {
    let labels = "engine_type=\"undefined\",model_name=\"undefined\"";
    let mut page = String::new();
    let stats: Vec<Stats> = life.ranks.iter().map(|rank| rank.core.stats()).collect();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    let used = sum(|stats| stats.blocks_used as u64);
    let all = sum(|stats| stats.blocks as u64);
    let hits = ratio(
        sum(|stats| stats.cache_hits),
        sum(|stats| stats.cache_queries),
    );
    let gauges = [
        ("kv_cache_hit_rate", hits),
        ("kv_cache_utilization", ratio(used, all)),
        ("kv_cache_max_blocks", ratio(all, 1)),
        ("kv_cache_used_blocks", ratio(used, 1)),
        ("kv_cache_free_blocks", ratio(all - used, 1)),
        (
            "num_requests_running",
            ratio(sum(|stats| stats.running as u64), 1),
        ),
        (
            "num_requests_waiting",
            ratio(sum(|stats| stats.waiting as u64), 1),
        ),
    ];
    for (name, value) in gauges {
        let _ = writeln!(page, "# HELP trtllm_{name} {name}");
        let _ = writeln!(page, "# TYPE trtllm_{name} gauge");
        let _ = writeln!(page, "trtllm_{name}{{{labels}}} {value:?}");
    }
    let _ = writeln!(page, "# HELP trtllm_request_success_total request_success");
    let _ = writeln!(page, "# TYPE trtllm_request_success_total counter");
    for reason in ["length", "stop"] {
        let count: u64 = stats
            .iter()
            .filter_map(|stats| stats.finished.get(reason))
            .sum();
        let labels = format!(
            "engine_type=\"undefined\",finished_reason=\"{reason}\",model_name=\"undefined\""
        );
        let _ = writeln!(
            page,
            "trtllm_request_success_total{{{labels}}} {:?}",
            ratio(count, 1)
        );
    }
    page
}

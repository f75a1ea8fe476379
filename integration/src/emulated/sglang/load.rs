//! What a rank has to do, as it tells it: the load stream, and `/v1/loads`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use super::super::core::{Core, Stats};
use super::super::process::{Death, Life};
use super::super::publisher::{Publisher, PublisherConfig};
use super::config::{Config, Mode};

/// The stream's topic.
pub(super) const TOPIC: &str = "load";

/// How often it is looked whether there is something to tell.
const GLANCE: Duration = Duration::from_millis(50);

/// An unchanged load is told so often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What the stream tells at a time.
type LoadStat = (&'static str, [u64; 10]);

fn stat(config: &Config, rank: u32, stats: &Stats) -> LoadStat {
    let page = u64::from(config.page_size);
    let used = stats.blocks_used as u64 * page;
    let numbers = [
        stats.running as u64,
        (stats.waiting + stats.fetching) as u64,
        used,
        u64::from(config.pages) * page,
        rank.into(),
        0,
        used,
        config.max_running_requests as u64,
        stats.computed_tokens,
        stats.steps,
    ];
    ("LoadStat", numbers)
}

fn encode(stat: &LoadStat) -> Vec<u8> {
    let (name, numbers) = stat;
    let parts =
        std::iter::once((*name).into()).chain(numbers.iter().map(|number| (*number).into()));
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Array(parts.collect()))
        .expect("a vector takes all");
    bytes
}

/// Tells the load of a rank until it dies, if that is asked for.
pub(super) async fn start(config: &Config, rank: u32, core: &Arc<Core>, death: &Arc<Death>) {
    let Some(endpoint) = &config.load_endpoint else {
        return;
    };
    let publisher = PublisherConfig {
        endpoint: endpoint.clone(),
        topic: TOPIC.to_owned(),
        ..PublisherConfig::default()
    };
    let publisher = Publisher::start_when_free(&publisher, rank).await;
    let (config, core, dead) = (config.clone(), Arc::clone(core), death.dead.clone());
    tokio::spawn(async move {
        dead.run_until_cancelled(tell(&config, rank, &core, &publisher))
            .await;
        publisher.stop().await;
    });
}

async fn tell(config: &Config, rank: u32, core: &Core, publisher: &Publisher) {
    let mut told: Option<(Instant, LoadStat)> = None;
    let mut glance = tokio::time::interval(GLANCE);
    glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        glance.tick().await;
        let now = stat(config, rank, &core.stats());
        let old = told
            .as_ref()
            .is_some_and(|(at, last)| *last == now && at.elapsed() < HEARTBEAT);
        if !old {
            publisher.publish(|_| encode(&now));
            told = Some((Instant::now(), now));
        }
    }
}

/// `/v1/loads`.
pub(super) fn loads(config: &Config, life: &Life) -> Value {
    let ranks = life.ranks.iter().enumerate();
    let loads: Vec<Value> = ranks
        .map(|(rank, booted)| load(config, rank, &booted.core.stats()))
        .collect();
    json!({
        "timestamp": "2026-11-30T02:31:21.841124+00:00", "version": "0.5.23", "accelerator": null,
        "num_accelerators": 1, "loads": loads,
    })
}

fn load(config: &Config, rank: usize, stats: &Stats) -> Value {
    let page = u64::from(config.page_size);
    let (used, all) = (
        stats.blocks_used as u64 * page,
        u64::from(config.pages) * page,
    );
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
    let part = |some: u64, of: u64| some as f64 / of.max(1) as f64;
    let (prefill, decode) = match config.mode {
        Mode::Null => (0, 0),
        Mode::Prefill => (stats.waiting, 0),
        Mode::Decode => (0, stats.fetching),
    };
    let moments = (config.mode != Mode::Prefill).then_some([0.0; 6]);
    json!({
        "timestamp": 1_796_005_881.839_814_2, "dp_rank": rank, "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting + stats.fetching, "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used, "num_total_tokens": used, "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0, "max_total_num_tokens": all,
        "max_running_requests": config.max_running_requests, "token_usage": part(used, all),
        "gen_throughput": 0.0, "cache_hit_rate": part(stats.cache_hits, stats.cache_queries),
        "utilization": 0.0, "total_prefill_uncached_tokens": stats.computed_tokens,
        "total_prefill_busy_us": stats.steps, "decode_moments": moments,
        "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.002, "graph_gb": 0.0, "token_capacity": all},
        "disaggregation": {
            "mode": config.mode.name(), "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": prefill, "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": decode, "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
        },
        "queues": {"waiting": stats.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::wire::unhex;

    #[test]
    fn recorded_loads_are_written_byte_for_byte() {
        let recorded = include_str!("../../../recordings/sglang/zmq_load.jsonl");
        for line in recorded.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let numbers = line["decoded"].as_array().unwrap()[1..].iter();
            let numbers: Vec<u64> = numbers.map(|number| number.as_u64().unwrap()).collect();
            let stat = ("LoadStat", numbers.try_into().unwrap());
            let payload = line["frames_hex"][2].as_str().unwrap();
            assert_eq!(encode(&stat), unhex(payload).unwrap(), "{line}");
        }
        assert_eq!(recorded.lines().count(), 621);
    }
}

//! Predicted cache hits against those that engines report, through a whole fleet.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::{Config, EventsConfig};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::kv_scene;
use baton_integration::wait::until;
use baton_proto::digest::BlockSetDigest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const BLOCK: u32 = 16;

/// An engine with few blocks that tells of them and of its hits.
fn engine(role: Option<&str>) -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: "kv@tiny".to_owned(),
            buffer_steps: 1000,
            hash_form: HashForm::Int,
        }),
        block_size: BLOCK,
        blocks: 120,
        prompt_tokens_details: true,
        loras: vec!["ada".to_owned()],
        ..Config::new(role)
    }
}

/// A request whose prompt shares a beginning with others.
fn request(random: &mut StdRng) -> Value {
    let shared = random.random_range(0..4_u32);
    let beginning = random.random_range(1..200);
    let end = random.random_range(1..60);
    let mut prompt: Vec<u32> = (0..beginning)
        .map(|at| 40 + (at * (shared + 3)) % 80)
        .collect();
    // Sometimes all of it was there before, to the last block's end.
    if random.random_bool(0.3) && beginning >= BLOCK {
        prompt.truncate((beginning / BLOCK * BLOCK) as usize);
    } else {
        prompt.extend((0..end).map(|_| random.random_range(40..120_u32)));
    }
    let mut body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 3});
    if random.random_bool(0.2) {
        body["cache_salt"] = json!(["red", "blue"][random.random_range(0..2)]);
    }
    if random.random_bool(0.2) {
        body["model"] = json!("ada");
    }
    if random.random_bool(0.3) {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// What the engine itself says that it holds, as the router shows it: number and digest.
fn held(fleet: &Fleet, name: &str) -> (u64, Option<String>) {
    let blocks = kv_scene::held(fleet.engine(name), 0);
    let digest: BlockSetDigest = blocks.iter().copied().collect();
    let shown = (!blocks.is_empty()).then(|| format!("{:016x}", digest.value()));
    (blocks.len() as u64, shown)
}

/// Whether the router knows of a worker exactly what its engine holds.
async fn is_known(fleet: &Fleet, name: &str) -> bool {
    let view = fleet.worker_view(name).await;
    let rank = &view["view"]["ranks"][0];
    let blocks = rank["blocks"]["device"].as_u64().unwrap_or_default();
    let digest = rank["digest"]["device"].as_str().map(str::to_owned);
    rank["certain"] == true && (blocks, digest) == held(fleet, name)
}

/// Waits until the router knows exactly what all engines hold, and expects nothing of this prompt beyond it.
async fn quiet(fleet: &Fleet, names: &[&str], probe: &Value) {
    for name in names {
        until("the router to know what the engine holds", || {
            is_known(fleet, name)
        })
        .await;
    }
    until("predictions to be exact", || async {
        let plan = fleet.post("/v1/plan", probe.to_string()).await.json();
        let candidates = plan["candidates"].as_array().cloned().unwrap_or_default();
        let exact = |candidate: &Value| {
            let cached = candidate["cached"].as_object().unwrap();
            cached.values().all(|cached| cached["basis"] == "exact")
        };
        !candidates.is_empty() && candidates.iter().all(exact)
    })
    .await;
}

async fn compared(fleet: &Fleet) -> [i64; 4] {
    let page = fleet.router_page().await;
    [
        "baton_router_cached_tokens_compared_requests_total",
        "baton_router_cached_tokens_mispredicted_requests_total",
        "baton_router_cached_tokens_predicted_total",
        "baton_router_cached_tokens_reported_total",
    ]
    .map(|name| page.sum(name, &[]))
}

/// Sends probes, each when all is quiet, and compares.
async fn probe(fleet: &Fleet, names: &[&str], random: &mut StdRng, probes: i64) {
    for _ in 0..probes {
        let body = request(random);
        quiet(fleet, names, &body).await;
        fleet.complete(body.to_string()).await.served();
    }
    quiet(fleet, names, &request(random)).await;
    let page = fleet.router_page().await;
    assert_eq!(page.sum("baton_router_view_resyncs_total", &[]), 0);
}

fn two_engines() -> Setup {
    Setup::new()
        .worker("a", engine(None))
        .worker("b", engine(None))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_predicted_is_what_engines_report() {
    let fleet = two_engines().start().await;
    let mut random = StdRng::seed_from_u64(7);
    probe(&fleet, &["a", "b"], &mut random, 150).await;
    let [requests, mispredicted, predicted, reported] = compared(&fleet).await;
    assert_eq!((requests, mispredicted), (150, 0));
    assert_eq!(predicted, reported);
    assert!(predicted > 0, "nothing was ever cached");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_of_split_requests() {
    let fleet = Setup::new()
        .worker("p", engine(Some("kv_producer")))
        .worker("d", engine(Some("kv_consumer")))
        .router(&["--force", "split"])
        .start()
        .await;
    let mut random = StdRng::seed_from_u64(8);
    probe(&fleet, &["p", "d"], &mut random, 80).await;
    // A prefill's report that comes after decode's first token is not waited for.
    let [requests, mispredicted, predicted, reported] = compared(&fleet).await;
    assert_eq!(mispredicted, 0, "of {requests}");
    assert_eq!(predicted, reported);
    assert!(predicted > 0, "nothing was ever cached");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_starts_late_knows_as_much() {
    let mut fleet = two_engines().start().await;
    let mut random = StdRng::seed_from_u64(9);
    for _ in 0..3 {
        probe(&fleet, &["a", "b"], &mut random, 10).await;
        fleet.take_router(0).kill();
        fleet.start_router(0).await;
        fleet.all_ready().await;
        probe(&fleet, &["a", "b"], &mut random, 10).await;
    }
    let [_, mispredicted, predicted, reported] = compared(&fleet).await;
    assert_eq!((mispredicted, predicted), (0, reported));
    fleet.finish().await;
}

//! What routers know of a TensorRT-LLM engine's KV cache, with both of its tiers, while its sidecar polls for it, others do, and
//! lives begin.
//!
//! The engine itself says what it holds, apart from all that is polled; at every quiet point the router knows the same, or says
//! that it does not. It is emulated from paper, and so is the sidecar's reading of it.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::client;
use baton_integration::emulated::Text;
use baton_integration::emulated::trtllm::{Config, Era, EventFault, EventsConfig, HashAlgo};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::{PATIENCE, until};
use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::{Namespace, sequence_hashes};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const SIZE: u32 = 8;
const MODEL: &str = "tiny";

fn engine(era: Era) -> Config {
    Config {
        tokens_per_block: SIZE,
        blocks: 60,
        host_blocks: 40,
        ..Config::new(era)
    }
}

async fn beside(config: Config) -> Fleet {
    Setup::new().worker("t", config).start().await
}

fn prompt(random: &mut StdRng) -> Value {
    let (shared, beginning) = (random.random_range(0..4_u32), random.random_range(1..150));
    let mut prompt: Vec<u32> = (0..beginning)
        .map(|at| 40 + (at * (shared + 3)) % 80)
        .collect();
    prompt.extend((0..40).map(|_| random.random_range(40..120_u32)));
    json!({"model": MODEL, "prompt": prompt, "max_tokens": random.random_range(1..24)})
}

/// How many whole blocks there are of these, and their digest. 1.2 does not tell the salts that it mixes into names: of what is
/// under one a router shall know nothing.
fn digest(era: Era, texts: Vec<Text>) -> (u64, String) {
    let size = SIZE as usize;
    let told = texts
        .into_iter()
        .filter(|text| era == Era::Main || text.salt.is_empty());
    let whole = told.filter(|text| text.tokens.len().is_multiple_of(size));
    let hashes: Vec<_> = whole
        .map(|text| {
            let namespace = Namespace {
                model: MODEL,
                lora: &text.lora,
                salt: &text.salt,
            };
            let root = namespace.root().unwrap();
            *sequence_hashes(root, &text.tokens, size).last().unwrap()
        })
        .collect();
    let digest: BlockSetDigest = hashes.iter().copied().collect();
    (hashes.len() as u64, format!("{:016x}", digest.value()))
}

/// What the router knows of a tier.
fn known(rank: &Value, tier: &str) -> (u64, String) {
    let blocks = rank["blocks"][tier].as_u64().unwrap_or_default();
    let digest = rank["digest"][tier].as_str().unwrap_or("0000000000000000");
    (blocks, digest.to_owned())
}

async fn rank(fleet: &Fleet, rank: usize) -> Value {
    fleet.worker_view("t").await["view"]["ranks"][rank].clone()
}

/// A chat under a cache salt, which the engine knows in chats only.
fn salted_chat(random: &mut StdRng) -> Value {
    let number: u32 = random.random_range(0..3);
    let content = format!(
        "What does tenant {number} say of the year {}?",
        random.random::<u16>()
    );
    json!({"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 9,
        "cache_salt": format!("tenant {number}")})
}

/// Straight to the engine, so that no router has a say in what is cached.
async fn ask(fleet: &Fleet, random: &mut StdRng) {
    let (path, body) = match random.random_range(0..5) {
        0 => ("/v1/chat/completions", salted_chat(random)),
        _ => ("/v1/completions", prompt(random)),
    };
    let (headers, body) = ([("content-type", "application/json")], body.to_string());
    let address = fleet.trtllm("t").address();
    let answer = client::call(address, "POST", path, &headers, body.as_bytes());
    answer.await.served();
}

/// Somebody else takes the events that wait; how many there were.
async fn rival(fleet: &Fleet) -> usize {
    let address = fleet.trtllm("t").address();
    let answer = client::call(address, "POST", "/kv_cache_events", &[], b"").await;
    answer.served().json().as_array().unwrap().len()
}

/// Sooner or later the router knows exactly what a rank of the engine holds, in both tiers.
async fn is_exact(fleet: &Fleet, number: usize, what: &str) {
    let held = || {
        let engine = fleet.trtllm("t");
        [engine.cached(number), engine.copied(number)]
            .map(|texts| digest(engine.config().era, texts))
    };
    let exact = || async {
        let rank = rank(fleet, number).await;
        rank["certain"] == true && ["device", "host"].map(|tier| known(&rank, tier)) == held()
    };
    let wait = tokio::time::timeout(PATIENCE * 3 / 4, until("it", exact)).await;
    if wait.is_err() {
        let rank = rank(fleet, number).await;
        panic!(
            "{what}: the router knows {rank}, the engine holds {:?}",
            held()
        );
    }
}

async fn is_uncertain(fleet: &Fleet) {
    let uncertain = || async { rank(fleet, 0).await["certain"] == false };
    until("the rank to be uncertain", uncertain).await;
}

/// How often this was met in events.
async fn met(fleet: &Fleet, reason: &str) -> i64 {
    let page = fleet.sidecar_page("t").await;
    page.sum(
        "baton_sidecar_kv_event_oddities_total",
        &[("reason", reason)],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_knows_what_an_engine_holds_in_both_tiers_through_its_lives() {
    for (seed, era) in [(1, Era::V12), (2, Era::Main)] {
        let fleet = beside(engine(era)).await;
        let mut random = StdRng::seed_from_u64(seed);
        for round in 0..4 {
            for _ in 0..random.random_range(3..8) {
                ask(&fleet, &mut random).await;
            }
            is_exact(&fleet, 0, &format!("{era:?}, round {round}")).await;
            match round {
                0 => fleet.trtllm("t").restart().await,
                1 => fleet
                    .trtllm("t")
                    .raise_event_fault(EventFault::Nothings { polls: 1 }),
                _ => {}
            }
        }
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_by_sha_256_are_as_good_and_of_several_caches_one_counts() {
    let second = EventsConfig {
        buffer: 4096,
        windows: vec![16, 4096],
        second_manager: true,
    };
    for hash_algo in [HashAlgo::V1BlockKey, HashAlgo::V2Sha256] {
        let config = Config {
            hash_algo,
            events: Some(second.clone()),
            ..engine(Era::Main)
        };
        let fleet = beside(config).await;
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..6 {
            ask(&fleet, &mut random).await;
        }
        is_exact(&fleet, 0, &format!("{hash_algo:?}")).await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_are_known_apart() {
    let config = Config {
        attention_dp: Some(2),
        ..engine(Era::Main)
    };
    let fleet = beside(config).await;
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..8 {
        ask(&fleet, &mut random).await;
    }
    for rank in [0, 1] {
        is_exact(&fleet, rank, "two ranks").await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_uncertain_until_the_engine_begins_anew() {
    let fleet = beside(engine(Era::Main)).await;
    let mut random = StdRng::seed_from_u64(5);
    for fault in [
        EventFault::Lose { events: 1 },
        EventFault::CutPolls { polls: 1 },
    ] {
        ask(&fleet, &mut random).await;
        is_exact(&fleet, 0, "before the loss").await;
        fleet.trtllm("t").raise_event_fault(fault);
        ask(&fleet, &mut random).await;
        ask(&fleet, &mut random).await;
        // A gap shows with what comes after it.
        let shown = || async {
            ask(&fleet, &mut StdRng::seed_from_u64(6)).await;
            ask(&fleet, &mut StdRng::seed_from_u64(rand::random())).await;
            rank(&fleet, 0).await["certain"] == false
        };
        until("the loss to show", shown).await;
        fleet.trtllm("t").clear_event_faults();
        fleet.trtllm("t").restart().await;
        is_exact(&fleet, 0, "after the restart").await;
    }
    fleet.finish().await;
}

/// Between two polls of the sidecar there is room for another.
#[tokio::test(flavor = "multi_thread")]
async fn a_rival_is_noticed_and_named() {
    let fleet = beside(engine(Era::Main)).await;
    let mut random = StdRng::seed_from_u64(7);
    ask(&fleet, &mut random).await;
    is_exact(&fleet, 0, "before the rival").await;
    let noticed = || async {
        ask(&fleet, &mut random.clone()).await;
        ask(&fleet, &mut StdRng::seed_from_u64(rand::random())).await;
        rival(&fleet).await;
        met(&fleet, "rival_consumer").await > 0
    };
    until("the rival to be noticed", noticed).await;
    is_uncertain(&fleet).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_late_to_a_living_engine_does_not_pretend() {
    let mut fleet = beside(engine(Era::Main)).await;
    let mut random = StdRng::seed_from_u64(8);
    ask(&fleet, &mut random).await;
    is_exact(&fleet, 0, "at first").await;
    fleet.take_sidecar("t").kill();
    ask(&fleet, &mut random).await;
    fleet.start_sidecar("t").await;
    fleet.all_ready().await;
    ask(&fleet, &mut random).await;
    is_uncertain(&fleet).await;
    fleet.trtllm("t").restart().await;
    ask(&fleet, &mut random).await;
    is_exact(&fleet, 0, "after the engine began anew").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_events_stays_unknown_and_serves() {
    let config = Config {
        events: None,
        iteration_stats: false,
        ..engine(Era::V12)
    };
    let fleet = beside(config).await;
    let body = json!({"model": MODEL, "prompt": "What is not told is not known.", "max_tokens": 3});
    for _ in 0..10 {
        fleet.complete(body.to_string()).await.served();
    }
    assert_eq!(rank(&fleet, 0).await["certain"], false);
    let said = || async { met(&fleet, "nothing_told").await == 1 };
    until("the silence to be noticed", said).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_load_comes_by_its_statistics() {
    let fleet = beside(engine(Era::Main)).await;
    ask(&fleet, &mut StdRng::seed_from_u64(9)).await;
    let told = || async {
        let load = fleet.worker_view("t").await["load"].clone();
        load["free"]["from"] == "engine_metric" && load["free"]["value"][0]["blocks"].is_u64()
    };
    until("its statistics to come", told).await;
    fleet.finish().await;
}

//! What routers know of an SGLang engine's KV cache, with both of its tiers, while messages are lost and lives begin.
//!
//! The engine itself says what it holds, apart from all that it publishes; at every quiet point the router knows the same.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::client;
use baton_integration::emulated::Text;
use baton_integration::emulated::publisher::EventFault;
use baton_integration::emulated::sglang::events::{Form, Format};
use baton_integration::emulated::sglang::{Config, EventsConfig, Mode};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::ports;
use baton_integration::wait::{PATIENCE, until};
use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::{Namespace, sequence_hashes};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const PAGE: u32 = 8;
const MODEL: &str = "tiny";

fn engine(mode: Mode, form: Form) -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://*:{}", ports::free().port())),
            topic: "kv-events".to_owned(),
            buffer_steps: 300,
            format: Format::Dynamo,
            form,
        }),
        load_endpoint: Some(format!("tcp://*:{}", ports::free().port())),
        page_size: PAGE,
        pages: 60,
        host_pages: 40,
        ..Config::new(mode)
    }
}

fn prompt(random: &mut StdRng) -> Value {
    let (shared, beginning) = (random.random_range(0..4_u32), random.random_range(1..150));
    let mut prompt: Vec<u32> = (0..beginning)
        .map(|at| 40 + (at * (shared + 3)) % 80)
        .collect();
    prompt.extend((0..40).map(|_| random.random_range(40..120_u32)));
    let mut body =
        json!({"model": MODEL, "prompt": prompt, "max_tokens": random.random_range(1..24)});
    match random.random_range(0..6) {
        0 => body["cache_salt"] = json!("tenant"),
        // Nobody is told of it.
        1 => body["extra_key"] = json!("hidden"),
        _ => {}
    }
    body
}

/// How many blocks there are of these, and their digest. Of what is in a hidden namespace a router shall know nothing.
fn digest(texts: Vec<Text>) -> (u64, String) {
    let told = texts.into_iter().filter(|text| text.extra.is_empty());
    let hashes: Vec<_> = told
        .map(|text| {
            let namespace = Namespace {
                model: MODEL,
                lora: &text.lora,
                salt: &text.salt,
            };
            let root = namespace.root().unwrap();
            *sequence_hashes(root, &text.tokens, PAGE as usize)
                .last()
                .unwrap()
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

async fn rank(fleet: &Fleet, name: &str) -> Value {
    let worker = fleet.worker_view(name).await;
    worker["view"]["ranks"][0].clone()
}

/// Straight to the engine, so that no router has a say in what is cached.
async fn ask(fleet: &Fleet, random: &mut StdRng) {
    let body = prompt(random).to_string();
    let headers = [("content-type", "application/json")];
    let address = fleet.sglang("s").address();
    let answer = client::call(
        address,
        "POST",
        "/v1/completions",
        &headers,
        body.as_bytes(),
    );
    answer.await.served();
}

/// Sooner or later the router knows exactly what the engine holds, in both tiers.
async fn is_exact(fleet: &Fleet, what: &str) {
    let held = || {
        let engine = fleet.sglang("s");
        [digest(engine.cached(0)), digest(engine.copied(0))]
    };
    let exact = || async {
        let rank = rank(fleet, "s").await;
        rank["certain"] == true && ["device", "host"].map(|tier| known(&rank, tier)) == held()
    };
    let wait = tokio::time::timeout(PATIENCE * 3 / 4, until("it", exact)).await;
    if wait.is_err() {
        let rank = rank(fleet, "s").await;
        panic!(
            "{what}: the router knows {rank}, the engine holds {:?}",
            held()
        );
    }
}

fn lose(fleet: &Fleet, batches: usize, replayable: bool) {
    let fault = EventFault::Lose {
        batches,
        replayable,
    };
    fleet.sglang("s").event_faults(0).unwrap().raise(fault);
}

/// Something happens that leaves nothing unknown.
async fn happen(fleet: &mut Fleet, random: &mut StdRng) -> &'static str {
    match random.random_range(0..5) {
        0 => {
            fleet.sglang("s").restart().await;
            "the engine begins anew"
        }
        1 => {
            fleet.take_sidecar("s").kill();
            ask(fleet, random).await;
            fleet.start_sidecar("s").await;
            "the sidecar begins anew"
        }
        2 => {
            fleet.sglang("s").reset_prefix_cache();
            "the cache is reset"
        }
        3 => {
            let fault = EventFault::SwapNextTwo;
            fleet.sglang("s").event_faults(0).unwrap().raise(fault);
            "events overtake each other"
        }
        _ => {
            lose(fleet, random.random_range(1..4), true);
            "messages are lost"
        }
    }
}

async fn story(seed: u64, form: Form) {
    let setup = Setup::new().worker("s", engine(Mode::Null, form));
    let mut fleet = setup.start().await;
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..5 {
        for _ in 0..random.random_range(2..6) {
            ask(&fleet, &mut random).await;
        }
        let what = happen(&mut fleet, &mut random).await;
        for _ in 0..random.random_range(2..6) {
            ask(&fleet, &mut random).await;
        }
        fleet.sglang("s").event_faults(0).unwrap().clear();
        is_exact(&fleet, &format!("seed {seed}, round {round}: {what}")).await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_knows_what_an_engine_holds_in_both_tiers() {
    let forms = [Form::Maps, Form::ArraysWithExtras];
    let stories = forms.into_iter().zip(0..);
    let stories: Vec<_> = stories
        .map(|(form, seed)| tokio::spawn(story(seed, form)))
        .collect();
    for story in stories {
        story.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_for_good_is_uncertain_until_the_cache_is_reset() {
    let setup = Setup::new()
        .worker("s", engine(Mode::Null, Form::Maps))
        .sidecars(&["--reset-uncertain-cache"]);
    let fleet = setup.start().await;
    let mut random = StdRng::seed_from_u64(7);
    ask(&fleet, &mut random).await;
    is_exact(&fleet, "at first").await;
    lose(&fleet, 1, false);
    ask(&fleet, &mut random).await;
    fleet.sglang("s").event_faults(0).unwrap().clear();
    // An idle engine is told to forget, and says so at once: what follows is all there is.
    ask(&fleet, &mut random).await;
    let resets = || async {
        let page = fleet.sidecar_page("s").await;
        page.sum("baton_sidecar_view_resets_total", &[]) == 1
    };
    until("the engine to be told to forget", resets).await;
    is_exact(&fleet, "after the reset").await;
    ask(&fleet, &mut random).await;
    is_exact(&fleet, "and what came then").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_that_keeps_no_prefixes_is_certain_to_hold_none() {
    let mut config = engine(Mode::Decode, Form::Maps);
    config.host_pages = 0;
    let fleet = Setup::new().worker("s", config).start().await;
    let empty = || async {
        let rank = rank(&fleet, "s").await;
        rank["certain"] == true && known(&rank, "device").0 == 0
    };
    until("its view to be certain and empty", empty).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_load_comes_by_its_stream() {
    let setup = Setup::new().worker("s", engine(Mode::Null, Form::Maps));
    let fleet = setup.start().await;
    let streamed = || async {
        let load = fleet.worker_view("s").await["load"].clone();
        load["running"]["from"] == "engine_stream" && load["free"]["value"][0]["blocks"] == 60
    };
    until("its load to come by the stream", streamed).await;
    fleet.finish().await;
}

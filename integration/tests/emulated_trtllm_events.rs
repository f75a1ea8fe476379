//! The KV events of the emulated TensorRT-LLM: a queue that polls empty, and all that can be missed of it.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::time::{Duration, Instant};

use baton_integration::client;
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::trtllm::{
    Config, EmulatedTrtllm, Era, EventFault, EventsConfig, v1_block_key,
};
use baton_integration::wait;
use serde_json::{Value, json};

async fn started(config: Config) -> EmulatedTrtllm {
    let engine = EmulatedTrtllm::new(config);
    engine.start().await;
    engine
}

fn events_of(config: Config, change: impl FnOnce(&mut EventsConfig)) -> Config {
    let mut config = config;
    change(config.events.as_mut().unwrap());
    config
}

/// Few blocks, so that they are evicted.
fn small(era: Era) -> Config {
    Config {
        blocks: 6,
        ..Config::new(era)
    }
}

async fn poll(engine: &EmulatedTrtllm) -> Vec<Value> {
    let answer = client::call(engine.address(), "POST", "/kv_cache_events", &[], "").await;
    answer.served().json().as_array().unwrap().clone()
}

/// A prompt of so many tokens that begin with this one.
async fn say(engine: &EmulatedTrtllm, first: u32, tokens: u32) {
    let prompt: Vec<u32> = (first..first + tokens).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1});
    let path = "/v1/completions";
    client::call(engine.address(), "POST", path, &[], body.to_string())
        .await
        .served();
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let events = events.iter();
    events
        .map(|event| event["data"]["type"].as_str().unwrap_or("nothing"))
        .collect()
}

fn ids(events: &[Value]) -> Vec<u64> {
    let events = events.iter().filter_map(|event| event["event_id"].as_u64());
    events.collect()
}

fn tokens_of(block: &Value) -> Vec<u32> {
    let tokens = block["tokens"].as_array().unwrap().iter();
    tokens
        .map(|token| u32::try_from(token["token_id"].as_u64().unwrap()).unwrap())
        .collect()
}

#[tokio::test]
async fn the_last_block_is_told_as_full_as_it_is_and_evicted_under_its_own_name() {
    let engine = started(small(Era::Main)).await;
    say(&engine, 1000, 70).await;
    let told = poll(&engine).await;
    assert_eq!(kinds(&told), ["created", "stored"]);
    let blocks = told[1]["data"]["blocks"].as_array().unwrap();
    let (mut parent, mut lengths) = (0, Vec::new());
    for block in blocks {
        let tokens = tokens_of(block);
        parent = v1_block_key(&tokens, parent, None, None);
        assert_eq!(block["block_hash"], parent);
        lengths.push(tokens.len());
    }
    assert_eq!(lengths, [32, 32, 6]);
    assert_eq!(
        poll(&engine).await,
        Vec::<Value>::new(),
        "nobody gets them again"
    );

    say(&engine, 5000, 4 * 32).await;
    let told = poll(&engine).await;
    assert_eq!(kinds(&told), ["removed", "stored"]);
    assert_eq!(
        told[0]["data"]["block_hashes"],
        json!([blocks[2]["block_hash"]])
    );
    assert_eq!(ids(&told), [2, 3]);
}

#[tokio::test]
async fn the_oldest_events_are_dropped_and_only_their_numbers_tell() {
    let engine = started(events_of(Config::new(Era::Main), |events| {
        events.buffer = 2
    }))
    .await;
    for first in [1000, 2000, 3000, 4000] {
        say(&engine, first, 40).await;
    }
    let told = poll(&engine).await;
    assert_eq!(ids(&told).len(), 2);
    assert!(
        ids(&told)[0] > 0 && engine.discarded_events() > 0,
        "{told:?}"
    );
}

#[tokio::test]
async fn a_new_life_begins_at_0() {
    let engine = started(Config::new(Era::V12)).await;
    say(&engine, 1000, 40).await;
    assert_eq!(ids(&poll(&engine).await)[0], 0);
    engine.restart().await;
    let told = poll(&engine).await;
    assert_eq!((kinds(&told), ids(&told)), (vec!["created"], vec![0]));
}

#[tokio::test]
async fn every_window_is_told_of_everything() {
    let windows = |events: &mut EventsConfig| events.windows = vec![1024, 131_072];
    let engine = started(events_of(Config::new(Era::Main), windows)).await;
    say(&engine, 1000, 40).await;
    let told = poll(&engine).await;
    assert_eq!(kinds(&told), ["created", "created", "stored", "stored"]);
    let sizes: Vec<u64> = told
        .iter()
        .map(|event| event["window_size"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [1024, 131_072, 1024, 131_072]);
    assert_eq!(told[2]["data"], told[3]["data"]);
    assert_eq!(ids(&told), [0, 1, 2, 3]);
}

#[tokio::test]
async fn ranks_count_for_themselves_in_one_queue() {
    let engine = started(Config {
        attention_dp: Some(2),
        speed: Speed {
            step: 1e6,
            ..Speed::INSTANT
        },
        ..Config::new(Era::Main)
    })
    .await;
    let body =
        json!({"model": "tiny", "prompt": "busy", "max_tokens": 1000, "stream": true}).to_string();
    let busy = client::start(engine.address(), "POST", "/v1/completions", &[], body).await;
    wait::until("a rank to be busy", || async {
        engine.stats()[0].running == 1
    })
    .await;
    say(&engine, 1000, 40).await;
    let told = poll(&engine).await;
    let of = |rank: u64| {
        told.iter()
            .filter(move |event| event["attention_dp_rank"] == rank)
    };
    for rank in [0, 1] {
        let numbers: Vec<u64> = of(rank)
            .filter_map(|event| event["event_id"].as_u64())
            .collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    }
    assert!(
        of(1).any(|event| event["data"]["type"] == "stored"),
        "{told:?}"
    );
    busy.vanish();
}

#[tokio::test]
async fn a_block_goes_to_the_host_and_comes_back() {
    let engine = started(Config {
        host_blocks: 100,
        ..small(Era::Main)
    })
    .await;
    say(&engine, 1000, 64).await;
    say(&engine, 5000, 6 * 32).await;
    let told = poll(&engine).await;
    let moves = |told: &[Value], to: u64| {
        let moved = |event: &&Value| event["data"]["cache_level"]["new_value"] == to;
        told.iter().filter(moved).count()
    };
    assert_eq!((moves(&told, 1), moves(&told, 0)), (2, 0), "{told:?}");
    let before = engine.stats()[0].cache_hits;
    say(&engine, 1000, 65).await;
    assert_eq!(engine.stats()[0].cache_hits - before, 64);
    assert_eq!(moves(&poll(&engine).await, 0), 2);
}

#[tokio::test]
async fn nothing_is_waited_for_but_in_1_2() {
    for (era, waits) in [(Era::V12, true), (Era::Main, false)] {
        let engine = started(Config::new(era)).await;
        poll(&engine).await;
        let since = Instant::now();
        assert_eq!(poll(&engine).await.len(), 0);
        let patience = engine.config().patience.events;
        assert_eq!(patience > Duration::ZERO, waits);
        assert!(since.elapsed() >= patience);
        let late = tokio::spawn({
            let engine = engine.clone();
            async move { poll(&engine).await }
        });
        say(&engine, 1000, 40).await;
        let found = late.await.unwrap().len() + poll(&engine).await.len();
        assert_eq!(
            found, 1,
            "a poll that waits and the next one share what there is"
        );
    }
}

#[tokio::test]
async fn events_get_lost_in_every_way() {
    let engine = started(Config::new(Era::Main)).await;
    poll(&engine).await;
    engine.raise_event_fault(EventFault::Lose { events: 1 });
    say(&engine, 1000, 40).await;
    say(&engine, 2000, 40).await;
    assert_eq!(ids(&poll(&engine).await), [2], "with a gap");
    engine.raise_event_fault(EventFault::LoseSilently { events: 1 });
    say(&engine, 3000, 40).await;
    say(&engine, 4000, 40).await;
    assert_eq!(ids(&poll(&engine).await), [3], "without one");
    engine.raise_event_fault(EventFault::Nothings { polls: 1 });
    say(&engine, 5000, 40).await;
    assert_eq!(kinds(&poll(&engine).await), ["nothing", "stored"]);

    engine.raise_event_fault(EventFault::CutPolls { polls: 1 });
    say(&engine, 6000, 40).await;
    let cut = client::start(engine.address(), "POST", "/kv_cache_events", &[], "").await;
    assert!(cut.closed_silently().await);
    assert_eq!(poll(&engine).await.len(), 0, "they are gone all the same");
}

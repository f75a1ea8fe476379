//! The emulated vLLM over its own wire, without Baton: two engines hand over, die and come back as the real ones do.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::events::{ExtraKey, HashForm, block_hash};
use baton_integration::emulated::vllm::script::{Fault, Leg, Rule};
use baton_integration::emulated::vllm::{Config, EmulatedVllm, EngineId, EventsConfig, Http};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "The KV of a prompt is all that decode knows of it, byte for byte and block for block.";

async fn started(config: Config) -> EmulatedVllm {
    let engine = EmulatedVllm::new(config);
    engine.start().await;
    engine
}

async fn pair() -> (EmulatedVllm, EmulatedVllm) {
    let prefill = started(Config::new(Some("kv_producer"))).await;
    (prefill, started(Config::new(Some("kv_consumer"))).await)
}

async fn post(engine: &EmulatedVllm, body: &Value) -> Answer {
    post_to(engine.address(), &[], body).await
}

async fn post_to(address: SocketAddr, headers: &[(&str, &str)], body: &Value) -> Answer {
    client::call(
        address,
        "POST",
        "/v1/completions",
        headers,
        body.to_string(),
    )
    .await
}

fn completion(prompt: &str, limit: u32) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": limit})
}

async fn prefilled(engine: &EmulatedVllm, prompt: &str) -> Value {
    let mut body = completion(prompt, 1);
    body["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    post(engine, &body).await.served().json()["kv_transfer_params"].clone()
}

async fn decoded(engine: &EmulatedVllm, prompt: &str, params: &Value) -> Answer {
    let mut body = completion(prompt, 5);
    body["kv_transfer_params"] = params.clone();
    post(engine, &body).await
}

#[tokio::test]
async fn a_handoff_moves_the_kv_and_gives_it_back() {
    let (prefill, decode) = pair().await;
    for prompt in ["?", PROMPT, &PROMPT.repeat(5)] {
        let params = prefilled(&prefill, prompt).await;
        assert_eq!(prefill.holds(), 1);
        let answer = decoded(&decode, prompt, &params).await;
        assert_eq!(answer.served().generated(), model::text(prompt, 5));
        wait::until("the KV to be given back", || async { prefill.holds() == 0 }).await;
    }
    // Only what was not there yet.
    let tokens = 1 + PROMPT.len() + PROMPT.len() * 5 - PROMPT.len() / 32 * 32;
    assert_eq!(decode.transferred_tokens(), tokens as u64);
}

#[tokio::test]
async fn a_holder_that_comes_back_under_its_old_name_fails_every_transfer() {
    let (prefill, decode) = pair().await;
    let params = prefilled(&prefill, PROMPT).await;
    decoded(&decode, PROMPT, &params).await.served();
    prefill.restart(EngineId::Same).await;
    for attempt in 0..3 {
        let prompt = format!("{attempt} {PROMPT}");
        let params = prefilled(&prefill, &prompt).await;
        let answer = decoded(&decode, &prompt, &params).await;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.json()["error"]["message"], "Internal server error");
    }
    prefill.restart(EngineId::New).await;
    let prompt = format!("new {PROMPT}");
    let params = prefilled(&prefill, &prompt).await;
    let answer = decoded(&decode, &prompt, &params).await;
    assert_eq!(answer.served().generated(), model::text(&prompt, 5));
}

#[tokio::test]
async fn an_engine_that_dies_of_a_request_says_so_and_ends() {
    let (prefill, decode) = pair().await;
    let params = prefilled(&prefill, PROMPT).await;
    let answer = decoded(&decode, &PROMPT.repeat(3), &params).await;
    assert_eq!(answer.status, 500);
    let message = answer.json()["error"]["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("EngineCore encountered an issue")
    );
    wait::until("the process to end", || async { !decode.is_alive() }).await;
    assert_eq!(decode.died_of().len(), 1);
    assert!(prefill.is_alive());
}

#[tokio::test]
async fn an_engine_that_answers_nothing_can_still_be_healthy() {
    let engine = started(Config::new(None)).await;
    engine.freeze(true);
    let mut stuck = client::start(
        engine.address(),
        "POST",
        "/v1/completions",
        &[],
        completion(PROMPT, 2).to_string(),
    )
    .await;
    let health = || client::call(engine.address(), "GET", "/health", &[], "");
    assert_eq!(health().await.status, 200);
    assert_eq!(stuck.so_far(), "");
    engine.freeze(false);
    stuck.until("length").await;
    engine.http_mode(Http::SlowHealth(Duration::from_millis(300)));
    let asked = Instant::now();
    assert_eq!(health().await.status, 200);
    assert!(asked.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn every_fault_of_an_answer_is_what_it_is_called() {
    let engine = started(Config::new(None)).await;
    let body = completion(PROMPT, 5).to_string();
    let text = model::text(PROMPT, 5);
    let asked = |fault: Fault| {
        engine.script(Rule::on(Leg::Local).fault(fault));
        client::start(
            engine.address(),
            "POST",
            "/v1/completions",
            &[],
            body.clone(),
        )
    };
    assert_eq!(
        asked(Fault::Status(503, "{}".to_owned()))
            .await
            .finish()
            .await
            .status,
        503
    );
    let empty = asked(Fault::EmptyOk).await.finish().await;
    assert_eq!((empty.status, empty.text()), (200, ""));
    assert_eq!(
        asked(Fault::BodyOk("[]".to_owned()))
            .await
            .finish()
            .await
            .text(),
        "[]"
    );
    let truncated = asked(Fault::Truncated).await.finish_text().await;
    assert!(
        truncated.starts_with("HTTP/1.1 200") && !truncated.contains("usage"),
        "{truncated}"
    );
    assert!(
        asked(Fault::Garbage)
            .await
            .finish_text()
            .await
            .contains("no HTTP")
    );
    assert!(asked(Fault::Reset).await.closed_silently().await);
    let mut headless = asked(Fault::HangAfterHead).await;
    headless.until("\r\n\r\n").await;
    headless.vanish();
    let stopped = asked(Fault::Finish("stop")).await.finish().await;
    assert_eq!(stopped.json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped.generated(), text);
    assert!(engine.is_alive());
    asked(Fault::DieAfter).await.finish().await.served();
    wait::until("the process to end", || async { !engine.is_alive() }).await;
}

fn events() -> EventsConfig {
    EventsConfig {
        endpoint: "tcp://*:0".to_owned(),
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv".to_owned(),
        buffer_steps: 1000,
        hash_form: HashForm::Int,
    }
}

/// What a rank holds, by all the events that it can replay: hashes as the wire has them.
fn view(engine: &EmulatedVllm, rank: usize) -> HashSet<u64> {
    let source = engine.event_source(rank).unwrap()[rank.to_string()].clone();
    let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
    socket
        .set_rcvtimeo(i32::try_from(wait::PATIENCE.as_millis()).unwrap())
        .unwrap();
    socket.set_linger(0).unwrap();
    socket
        .connect(source["replay_endpoint"].as_str().unwrap())
        .unwrap();
    socket
        .send_multipart([&b""[..], &0_u64.to_be_bytes()], 0)
        .unwrap();
    let mut held = HashSet::new();
    loop {
        let frames = socket.recv_multipart(0).unwrap();
        let [_, _, sequence, payload] = &frames[..] else {
            panic!("{frames:?}")
        };
        if sequence == &[0xff; 8] {
            return held;
        }
        let batch: Value = rmp_serde::from_slice(payload).unwrap();
        assert_eq!(batch[2], rank);
        for event in batch[1].as_array().unwrap() {
            let hashes = event["block_hashes"].as_array().into_iter().flatten();
            let mut hashes = hashes.map(|hash| hash.as_u64().unwrap());
            match event["type"].as_str().unwrap() {
                "BlockStored" => held.extend(hashes),
                "BlockRemoved" => assert!(hashes.all(|hash| held.remove(&hash))),
                _ => held.clear(),
            }
        }
    }
}

/// Tokens at the beginning of a prompt that a view says are held.
fn predicted(held: &HashSet<u64>, prompt: &str, extra: &[ExtraKey]) -> u64 {
    let mut parent = None;
    let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let mut hit = 0;
    for block in tokens[..tokens.len() - 1].chunks_exact(32) {
        let extra: Vec<_> = extra
            .iter()
            .filter(|key| parent.is_none() || matches!(key, ExtraKey::Lora { .. }))
            .cloned()
            .collect();
        let hash = block_hash(parent.as_ref(), block, &extra);
        if !held.contains(&u64::from_be_bytes(*hash.last_chunk().unwrap())) {
            break;
        }
        hit += 32;
        parent = Some(hash);
    }
    hit
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_rank_predict_every_hit_in_it() {
    let engine = started(Config {
        ranks: 2,
        blocks: 14,
        events: Some(events()),
        loras: vec!["ada".to_owned()],
        prompt_tokens_details: true,
        ..Config::new(None)
    })
    .await;
    let mut hits = 0;
    for turn in 0_usize..60 {
        // Three conversations that grow, forget and evict each other, on two ranks, in three namespaces.
        let (conversation, rank) = (turn % 3, turn % 2);
        let prompt = format!("{conversation}: {}", PROMPT.repeat(1 + turn / 3 % 4));
        let mut body = completion(&prompt, 3);
        let mut extra = Vec::new();
        if conversation == 1 {
            body["cache_salt"] = "tenant-a".into();
            extra.push(ExtraKey::CacheSalt("tenant-a".to_owned()));
        } else if conversation == 2 {
            body["model"] = "ada".into();
            let (name, path) = ("ada".to_owned(), "ada".to_owned());
            extra.push(ExtraKey::Lora { name, path });
        }
        let expected = predicted(&view(&engine, rank), &prompt, &extra);
        let rank = rank.to_string();
        let answer = post_to(engine.address(), &[("x-data-parallel-rank", &rank)], &body).await;
        let details = answer.served().json()["usage"]["prompt_tokens_details"].clone();
        assert_eq!(details["cached_tokens"], expected, "turn {turn}");
        hits += usize::from(expected > 0);
    }
    assert!((10..55).contains(&hits), "{hits} of 60 requests hit");
    let outside = post_to(
        engine.address(),
        &[("x-data-parallel-rank", "2")],
        &completion("x", 1),
    )
    .await;
    assert_eq!(outside.status, 400);
}

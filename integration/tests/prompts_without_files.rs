//! Prompts that no files make tokens of: told by an engine, else placed by their text, else by their size. Emulated engines
//! without a tokenizer that a sidecar could find.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_integration::client;
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::{Config, EventsConfig, Http};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;
use serde_json::{Value, json};

/// An engine whose tokens only it knows: the built-in tokenizer has no files. It tells of its blocks and its hits.
fn engine() -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: String::new(),
            buffer_steps: 1000,
            hash_form: HashForm::Int,
        }),
        prompt_tokens_details: true,
        max_model_len: 65_536,
        blocks: 4096,
        ..Config::new(None)
    }
}

fn three() -> Setup {
    let names = ["a", "b", "c"].into_iter();
    names.fold(Setup::new(), |setup, name| setup.worker(name, engine()))
}

/// A text of so many words that no other one begins with.
fn words(seed: usize, words: usize) -> String {
    let word = |at: usize| format!("{seed}-{at}");
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

fn chat(messages: &[Value]) -> String {
    json!({"model": "tiny", "messages": messages, "max_tokens": 4}).to_string()
}

fn text(prompt: &str) -> String {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": 2}).to_string()
}

async fn plan(fleet: &Fleet, body: &str) -> Value {
    fleet.post("/v1/plan", body).await.served().json()
}

/// Sends a request and returns how it was planned.
async fn planned(fleet: &Fleet, path: &str, body: &str) -> String {
    let headers = [("content-type", "application/json"), ("baton-explain", "1")];
    let exchange = client::start(fleet.address(), "POST", path, &headers, body);
    let answer = exchange.await.finish().await;
    answer.served().header("baton-plan").unwrap().to_owned()
}

fn worker_of(plan: &str) -> &str {
    plan.split_whitespace().nth(1).unwrap()
}

async fn count(fleet: &Fleet, family: &str, label: (&str, &str)) -> i64 {
    fleet.router_page().await.sum(family, &[label])
}

async fn planned_by(fleet: &Fleet, by: &str) -> i64 {
    count(fleet, "baton_router_prompts_planned_total", ("by", by)).await
}

async fn asked(fleet: &Fleet, outcome: &str) -> i64 {
    count(
        fleet,
        "baton_router_tokens_asked_total",
        ("outcome", outcome),
    )
    .await
}

/// How often an engine was asked.
async fn questions(fleet: &Fleet) -> i64 {
    asked(fleet, "answered").await + asked(fleet, "late").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_tells_the_tokens_and_hits_are_predicted_to_the_token() {
    // Slow enough that asking stays worth it when that is learnt.
    let slow = Config {
        speed: Speed {
            prefill_token: 30e3,
            ..Speed::INSTANT
        },
        ..engine()
    };
    let setup = Setup::new().worker("a", slow.clone()).worker("b", slow);
    let fleet = setup.start().await;
    let body = text(&words(1, 1500));
    // However slow the machine: an answer that came too late is remembered.
    until("the tokens to be told", || async {
        plan(&fleet, &body).await["request"]["prompt_by"] == "engine"
    })
    .await;
    let questions_before = questions(&fleet).await;
    let told = plan(&fleet, &body).await;
    assert_eq!(told["request"]["prompt_tokens_known"], true);
    assert_eq!(told["request"]["prompt_by_because"], "no_tokenizer");
    let first = planned(&fleet, "/v1/completions", &body).await;
    assert!(first.contains(" prompt_by=engine "), "{first}");
    until("events to tell of it", || async {
        let cached = &plan(&fleet, &body).await["chosen"]["cached"]["worker"];
        cached["basis"] == "exact" && cached["tokens"].as_u64() > Some(0)
    })
    .await;
    let second = planned(&fleet, "/v1/completions", &body).await;
    assert_eq!(worker_of(&first), worker_of(&second));
    assert!(second.contains("basis=exact"), "{second}");
    let page = fleet.router_page().await;
    let compared = |name: &str| page.sum(&format!("baton_router_cached_tokens_{name}_total"), &[]);
    assert!(compared("compared_requests") >= 1);
    assert_eq!(compared("mispredicted_requests"), 0);
    assert!(compared("predicted") > 0);
    // Equal prompts are not asked again.
    assert_eq!(questions(&fleet).await, questions_before);
    assert!(asked(&fleet, "remembered").await >= 3);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_stays_where_its_text_was_computed() {
    let fleet = three().router(&["--tokenize-wait-ms", "0"]).start().await;
    let mut messages = vec![json!({"role": "system", "content": words(1, 200)})];
    let mut workers = Vec::new();
    for turn in 0..8 {
        messages.push(json!({"role": "user", "content": words(turn + 2, 60)}));
        let told = planned(&fleet, "/v1/chat/completions", &chat(&messages)).await;
        assert!(told.contains(" prompt_by=text "), "{told}");
        if turn > 0 {
            assert!(told.contains("basis=approximate"), "{told}");
        }
        workers.push(worker_of(&told).to_owned());
    }
    assert!(
        workers.iter().all(|worker| *worker == workers[0]),
        "{workers:?}"
    );
    let shown = plan(&fleet, &chat(&messages)).await;
    assert_eq!(shown["request"]["prompt_by"], "text");
    assert_eq!(shown["request"]["prompt_tokens_known"], false);
    let likely = shown["chosen"]["cached"]["worker"]["likely_tokens"]
        .as_u64()
        .unwrap();
    let estimated = shown["request"]["prompt_tokens_estimated"]
        .as_u64()
        .unwrap();
    assert!(
        likely > estimated / 2 && likely < estimated,
        "{likely} of {estimated}"
    );
    // Another tenant's words are none of this one's.
    let mut salted: Value = serde_json::from_str(&chat(&messages)).unwrap();
    salted["cache_salt"] = json!("another");
    let shown = plan(&fleet, &salted.to_string()).await;
    assert_eq!(shown["chosen"]["cached"]["worker"]["likely_tokens"], 0);
    for outcome in ["answered", "late", "remembered", "avoided"] {
        assert_eq!(asked(&fleet, outcome).await, 0);
    }
    assert!(planned_by(&fleet, "text").await >= 8);
    assert_eq!(fleet.view().await["prompts_planned"]["engine"], 0);
    // A guess is not compared with what engines report.
    let ready = client::call(fleet.address(), "GET", "/readyz", &[], "").await;
    assert_eq!(ready.json()["suspicions"], json!([]));
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_do_not_tell_tokens_are_left_alone_and_asked_again() {
    let fleet = three().start().await;
    for name in ["a", "b", "c"] {
        fleet.engine(name).http_mode(Http::MuteTokenizer);
    }
    let turns = AtomicUsize::new(1);
    until("every engine to be left alone", || async {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        // Nothing is computed: to an engine that has shown how fast it is no question would be worth its while.
        let told = plan(&fleet, &text(&words(turn, 4000))).await;
        assert_eq!(told["request"]["prompt_by"], "text", "{told}");
        let view = fleet.view().await;
        let records = view["tokens_asked"].as_array().unwrap();
        let avoided = records
            .iter()
            .filter(|record| record["avoided_for_seconds"].is_f64());
        avoided.count() == 3
    })
    .await;
    assert!(asked(&fleet, "late").await >= 1);
    let served = planned(&fleet, "/v1/completions", &text("a few words")).await;
    assert!(served.contains(" prompt_by=text "), "{served}");
    for name in ["a", "b", "c"] {
        fleet.engine(name).http_mode(Http::Normal);
    }
    let body = text(&words(0, 4000));
    until("tokens to be told again", || async {
        plan(&fleet, &body).await["request"]["prompt_by"] == "engine"
    })
    .await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_worth_it_or_cannot_be_asked_is_not() {
    let fleet = three().start().await;
    fleet.complete(text("a few words")).await.served();
    assert_eq!(planned_by(&fleet, "text").await, 1);
    let ids: Vec<u32> = (40..400).collect();
    let given = json!({"model": "tiny", "prompt": ids, "max_tokens": 2});
    fleet.complete(given.to_string()).await.served();
    assert_eq!(planned_by(&fleet, "given").await, 1);
    let batch =
        json!({"model": "tiny", "prompt": [words(1, 3000), words(2, 3000)], "max_tokens": 2});
    fleet.complete(batch.to_string()).await.served();
    assert_eq!(planned_by(&fleet, "size").await, 1);
    let huge = text(&"x".repeat(16 << 20));
    assert_eq!(
        fleet.complete(&huge).await.status,
        400,
        "the engine's own verdict"
    );
    let image = json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": [
        {"type": "text", "text": words(1, 2000)},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]});
    fleet.chat(image.to_string()).await;
    for outcome in ["answered", "late", "remembered"] {
        assert_eq!(asked(&fleet, outcome).await, 0, "{outcome}");
    }
    fleet.finish().await;
}

/// Where there is one worker for a prompt nothing is to be found out.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_others_is_not_asked() {
    let fleet = Setup::new().worker("a", engine()).start().await;
    fleet.complete(text(&words(1, 4000))).await.served();
    assert_eq!(planned_by(&fleet, "text").await, 1);
    fleet.finish().await;
}

/// A split request leaves its text on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn texts_are_remembered_of_prefill_and_decode() {
    let fleet = Setup::split()
        .router(&["--tokenize-wait-ms", "0"])
        .start()
        .await;
    let body = json!({"model": "tiny", "prompt": words(1, 150), "max_tokens": 4}).to_string();
    fleet.complete(&body).await.served();
    let cached = plan(&fleet, &body).await["chosen"]["cached"].clone();
    for side in ["prefill", "decode"] {
        assert_eq!(cached[side]["basis"], "approximate", "{cached}");
    }
    fleet.finish().await;
}

//! Tokens of texts and chats: known where the engine's files make the very same ones, and nowhere else. Emulated engines
//! with a real model's tokenizer.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::emulated::vllm::Config;
use baton_integration::emulated::vllm::EventsConfig;
use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/model");

/// An engine with the recorded model's tokenizer that tells of its blocks and of its hits.
fn engine() -> Config {
    Config {
        model: MODEL.to_owned(),
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: String::new(),
            buffer_steps: 1000,
            hash_form: HashForm::Int,
        }),
        prompt_tokens_details: true,
        max_model_len: 8192,
        ..Config::new(None)
    }
}

async fn tokenizer_is(fleet: &Fleet, mode: &str) -> Value {
    until("the tokenizer to be tried", || async {
        fleet.view().await["tokenizers"][0]["mode"] == mode
    })
    .await;
    fleet.view().await["tokenizers"][0].clone()
}

/// A text of so many words that no other one begins with.
fn text(seed: u32, words: u32) -> String {
    let words = (0..words).map(|at| format!("word{}", (at * 7 + seed * 131) % 997));
    words.collect::<Vec<_>>().join(" ")
}

async fn prompts(fleet: &Fleet, known: &str) -> i64 {
    let page = fleet.router_page().await;
    page.sum("baton_router_prompts_total", &[("known", known)])
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_of_texts_and_chats_are_predicted_to_the_token() {
    let fleet = Setup::new()
        .worker("a", engine())
        .worker("b", engine())
        .start()
        .await;
    let shown = tokenizer_is(&fleet, "exact").await;
    assert_eq!(shown["templates"].as_array().unwrap().len(), 1);
    let mut messages = vec![json!({"role": "system", "content": text(1, 40)})];
    for turn in 0..12 {
        messages.push(json!({"role": "user", "content": text(turn + 2, 10)}));
        let chat = json!({"model": "tiny", "messages": messages, "max_tokens": 8});
        let answer = fleet.chat(chat.to_string()).await;
        let answer = answer.served().json();
        let content = answer["choices"][0]["message"]["content"].clone();
        messages.push(json!({"role": "assistant", "content": content}));
        let prompt = text(turn % 4 + 50, 60);
        let text = json!({"model": "tiny", "prompt": prompt, "max_tokens": 2});
        fleet.complete(text.to_string()).await.served();
    }
    let plan = fleet.post("/v1/plan", json!({"messages": messages}).to_string());
    let plan = plan.await.json();
    assert_eq!(plan["request"]["prompt_tokens_known"], true);
    assert_eq!(prompts(&fleet, "tokenised").await, 25);
    let page = fleet.router_page().await;
    let sum = |name: &str| page.sum(&format!("baton_router_cached_tokens_{name}_total"), &[]);
    assert!(
        sum("compared_requests") >= 6,
        "{}",
        sum("compared_requests")
    );
    assert_eq!(sum("mispredicted_requests"), 0);
    assert!(sum("predicted") > 0);
    assert_eq!(
        page.sum(
            "baton_router_tokenizer_comparisons_total",
            &[("outcome", "different")]
        ),
        0
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_that_makes_other_tokens_is_not_used() {
    let other = Config {
        token_offset: 1,
        ..engine()
    };
    let fleet = Setup::new().worker("a", other).start().await;
    let shown = tokenizer_is(&fleet, "unfit").await;
    assert!(shown["why"].as_str().unwrap().contains("differ"), "{shown}");
    let text = json!({"model": "tiny", "prompt": "some text", "max_tokens": 2});
    fleet.complete(text.to_string()).await.served();
    assert_eq!(prompts(&fleet, "no_tokenizer").await, 1);
    assert_eq!(prompts(&fleet, "tokenised").await, 0);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_files_is_served_without_tokens() {
    let fleet = Setup::new().worker("a", Config::new(None)).start().await;
    let text = json!({"model": "tiny", "prompt": "some text", "max_tokens": 2});
    fleet.complete(text.to_string()).await.served();
    assert_eq!(fleet.view().await["tokenizers"], json!([]));
    assert_eq!(prompts(&fleet, "no_tokenizer").await, 1);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_tokenised_is_served_all_the_same() {
    let fleet = Setup::new().worker("a", engine()).start().await;
    tokenizer_is(&fleet, "exact").await;
    let huge = json!({"model": "tiny", "prompt": "x".repeat(6 << 20), "max_tokens": 2});
    let answer = fleet.complete(huge.to_string()).await;
    assert_eq!(answer.status, 400, "the engine's own verdict");
    assert_eq!(prompts(&fleet, "too_long").await, 1);
    let batch = json!({"model": "tiny", "prompt": ["one", "two"], "max_tokens": 2});
    fleet.complete(batch.to_string()).await.served();
    assert_eq!(prompts(&fleet, "tokenised").await, 1);
    let image = json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]});
    fleet.chat(image.to_string()).await;
    assert_eq!(prompts(&fleet, "multimodal").await, 1);
    let plan = fleet.post("/v1/plan", image.to_string()).await.json();
    assert_eq!(plan["request"]["local_because"], "it is not text alone");
    fleet.finish().await;
}

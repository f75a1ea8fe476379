//! The emulated TensorRT-LLM over its own wire, without Baton: two engines hand over, context first and generation first, and
//! what becomes of either when the other fails.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::trtllm::{Config, EmulatedTrtllm, Era};
use serde_json::{Value, json};

const PROMPT: &str =
    "The KV of a prompt is all that generation knows of it, byte for byte and block for block.";

/// An id that no engine gives by itself.
const ID: u64 = (1 << 40) + 7;

const ERAS: [Era; 2] = [Era::V12, Era::Main];

async fn started(config: Config) -> EmulatedTrtllm {
    let engine = EmulatedTrtllm::new(config);
    engine.start().await;
    engine
}

async fn pair(era: Era) -> (EmulatedTrtllm, EmulatedTrtllm) {
    (
        started(Config::new(era)).await,
        started(Config::new(era)).await,
    )
}

async fn post(engine: &EmulatedTrtllm, path: &str, body: &Value) -> Answer {
    client::call(engine.address(), "POST", path, &[], body.to_string()).await
}

async fn complete(engine: &EmulatedTrtllm, body: &Value) -> Answer {
    post(engine, "/v1/completions", body).await
}

async fn events(engine: &EmulatedTrtllm) -> Vec<Value> {
    let answer = client::call(engine.address(), "POST", "/kv_cache_events", &[], "").await;
    answer.served().json().as_array().unwrap().clone()
}

fn context(id: u64) -> Value {
    json!({
        "model": "tiny", "prompt": PROMPT, "max_tokens": 5, "stream": false, "stream_options": null,
        "disaggregated_params": {"request_type": "context_only", "disagg_request_id": id, "schedule_style": 0},
    })
}

/// What generation is asked after context has said this.
fn generation(context: &Value) -> Value {
    let mut params = context["choices"][0]["disaggregated_params"].clone();
    params["request_type"] = "generation_only".into();
    json!({
        "model": "tiny", "prompt": context["prompt_token_ids"], "max_tokens": 5,
        "disaggregated_params": params,
    })
}

#[tokio::test]
async fn context_first_says_what_one_engine_says() {
    for era in ERAS {
        let (prefill, decode) = pair(era).await;
        let said = complete(&prefill, &context(ID)).await.served().json();
        assert_eq!(said["choices"][0]["finish_reason"], "not_finished");
        assert_eq!(prefill.holds(), 1, "it is pinned until it is asked for");
        let whole = complete(&decode, &generation(&said)).await;
        assert_eq!(whole.served().generated(), model::text(PROMPT, 5));
        baton_integration::wait::until("the KV to be free", || async { prefill.holds() == 0 })
            .await;
        assert_eq!(decode.transferred_tokens(), PROMPT.len() as u64);
        let told = events(&prefill).await;
        assert_eq!(told[0]["data"]["type"], "created");
        assert_eq!(told[1]["data"]["type"], "stored", "{told:?}");
    }
}

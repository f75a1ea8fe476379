//! The emulated TensorRT-LLM over its own wire, without Baton: two engines hand over, context first and generation first, and
//! what becomes of either when the other fails.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::time::Duration;

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::trtllm::{
    Auth, Config, EmulatedTrtllm, Era, Patience, Transceiver,
};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "The KV of a prompt is all that generation knows of it, byte for byte and block for block.";

/// An id that no engine gives by itself.
const ID: u64 = (1 << 40) + 7;

const ERAS: [Era; 2] = [Era::V12, Era::Main];

const TRANSFER: &str = "Generation failed: Error in kv cache transfer for generation requests";

async fn started(config: Config) -> EmulatedTrtllm {
    let engine = EmulatedTrtllm::new(config);
    engine.start().await;
    engine
}

/// An engine that never gives a transfer up by itself in a test.
fn patient(era: Era) -> Config {
    Config {
        patience: Patience {
            transfer: None,
            ..Patience::real(era).scaled(0.02)
        },
        ..Config::new(era)
    }
}

/// An engine that gives up soon.
fn hasty(era: Era) -> Config {
    Config {
        patience: Patience {
            transfer: Some(Duration::from_millis(30)),
            ..Patience::real(era).scaled(0.02)
        },
        ..Config::new(era)
    }
}

async fn pair(era: Era) -> (EmulatedTrtllm, EmulatedTrtllm) {
    (started(patient(era)).await, started(patient(era)).await)
}

async fn post(engine: &EmulatedTrtllm, path: &str, body: &Value) -> Answer {
    client::call(engine.address(), "POST", path, &[], body.to_string()).await
}

async fn complete(engine: &EmulatedTrtllm, body: &Value) -> Answer {
    post(engine, "/v1/completions", body).await
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

/// Asks context, which then holds the KV; what generation is to be asked.
async fn pinned(prefill: &EmulatedTrtllm, id: u64) -> Value {
    let said = complete(prefill, &context(id)).await.served().json();
    assert_eq!(said["choices"][0]["finish_reason"], "not_finished");
    generation(&said)
}

fn message(answer: &Answer) -> String {
    let told = answer.json();
    assert_eq!(
        (answer.status, &told["type"]),
        (400, &"BadRequestError".into()),
        "{told}"
    );
    told["message"].as_str().unwrap().to_owned()
}

async fn is_free(engine: &EmulatedTrtllm) {
    wait::until("all KV to be free", || async { engine.holds() == 0 }).await;
}

#[tokio::test]
async fn context_first_says_what_one_engine_says() {
    for era in ERAS {
        let (prefill, decode) = pair(era).await;
        let asked = pinned(&prefill, ID).await;
        assert_eq!(prefill.holds(), 1, "it is pinned until it is asked for");
        let whole = complete(&decode, &asked).await;
        assert_eq!(whole.served().generated(), model::text(PROMPT, 5));
        is_free(&prefill).await;
        assert_eq!(decode.transferred_tokens(), PROMPT.len() as u64);
    }
}

#[tokio::test]
async fn chats_are_handed_over_as_well() {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    for (era, stream) in ERAS.into_iter().flat_map(|era| [(era, false), (era, true)]) {
        let (prefill, decode) = pair(era).await;
        let mut body = context(ID);
        body.as_object_mut().unwrap().remove("prompt");
        body["messages"] = messages.clone();
        let said = post(&prefill, "/v1/chat/completions", &body)
            .await
            .served()
            .json();
        let mut body = generation(&said);
        let ids = body.as_object_mut().unwrap().remove("prompt").unwrap();
        body["prompt_token_ids"] = ids;
        body["messages"] = messages.clone();
        body["stream"] = stream.into();
        let answer = post(&decode, "/v1/chat/completions", &body).await;
        assert_eq!(answer.served().generated(), model::chat_text(&messages, 5));
    }
}

#[tokio::test]
async fn what_is_pinned_is_nobody_elses_and_other_tokens_are_said_again() {
    let (prefill, decode) = pair(Era::Main).await;
    let mut asked = pinned(&prefill, ID).await;
    prefill.overwrite_free();
    let right = model::text(PROMPT, 5);
    let first = asked["disaggregated_params"]["first_gen_tokens"][0]
        .as_u64()
        .unwrap();
    asked["disaggregated_params"]["first_gen_tokens"] = json!([first + 1]);
    let other = complete(&decode, &asked).await.served().generated();
    assert_ne!(other, right);

    let asked = pinned(&prefill, ID + 1).await;
    assert_eq!(complete(&decode, &asked).await.served().generated(), right);
}

#[tokio::test]
async fn a_request_that_context_does_not_know_fails() {
    let (prefill, decode) = pair(Era::Main).await;
    let asked = pinned(&prefill, ID).await;
    let mut other = asked.clone();
    other["disaggregated_params"]["disagg_request_id"] = (ID + 1).into();
    assert_eq!(message(&complete(&decode, &other).await), TRANSFER);
    assert_eq!(prefill.holds(), 1);

    complete(&decode, &asked).await.served();
    is_free(&prefill).await;
    assert_eq!(
        message(&complete(&decode, &asked).await),
        TRANSFER,
        "it was fetched"
    );

    let asked = pinned(&prefill, ID + 2).await;
    prefill.kill().await;
    assert_eq!(
        message(&complete(&decode, &asked).await),
        TRANSFER,
        "nobody is there"
    );
    let mut unreadable = asked;
    unreadable["disaggregated_params"]["encoded_opaque_state"] = "AAAA".into();
    assert_eq!(message(&complete(&decode, &unreadable).await), TRANSFER);
}

#[tokio::test]
async fn a_timeout_frees_silently_and_none_never_does() {
    let prefill = started(hasty(Era::Main)).await;
    let decode = started(patient(Era::Main)).await;
    let asked = pinned(&prefill, ID).await;
    is_free(&prefill).await;
    assert_eq!(message(&complete(&decode, &asked).await), TRANSFER);

    let for_ever = started(patient(Era::V12)).await;
    let _ = pinned(&for_ever, ID).await;
    for again in 1..20 {
        let _ = pinned(&for_ever, ID + again).await;
    }
    assert_eq!(for_ever.holds(), 20);
}

#[tokio::test]
async fn a_second_request_of_one_id_is_pinned_beside_the_first() {
    let (prefill, decode) = pair(Era::V12).await;
    let (asked, _) = (pinned(&prefill, ID).await, pinned(&prefill, ID).await);
    assert_eq!(prefill.holds(), 2);
    complete(&decode, &asked).await.served();
    wait::until("one to be free", || async { prefill.holds() == 1 }).await;
}

#[tokio::test]
async fn a_context_that_stands_still_is_healthy_and_lets_generation_time_out() {
    let prefill = started(patient(Era::Main)).await;
    let decode = started(hasty(Era::Main)).await;
    let asked = pinned(&prefill, ID).await;
    prefill.freeze(true);
    let said = message(&complete(&decode, &asked).await);
    assert_eq!(said, format!("Generation failed: Request {ID} timed out"));
    let health = client::call(prefill.address(), "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    prefill.freeze(false);
    assert_eq!(prefill.holds(), 1, "what nobody fetched is there still");
    complete(&started(patient(Era::Main)).await, &asked)
        .await
        .served();
}

#[tokio::test]
async fn tokens_that_context_never_said_end_generation() {
    for said in [Value::Null, json!([])] {
        let (prefill, decode) = pair(Era::V12).await;
        let mut asked = pinned(&prefill, ID).await;
        asked["disaggregated_params"]["first_gen_tokens"] = said;
        let (answer, of) = tokio::join!(
            async {
                let body = asked.to_string();
                let call = client::start(decode.address(), "POST", "/v1/completions", &[], body);
                call.await.closed_silently().await
            },
            decode.died()
        );
        assert!(answer && of.contains("first_gen_tokens"), "{of}");
        wait::until("the process to be gone", || async { !decode.is_alive() }).await;
        decode.restart().await;
        assert_eq!(prefill.holds(), 1, "and context holds what nobody fetches");
    }
}

#[tokio::test]
async fn a_prompt_that_ends_with_its_first_token_is_not_held() {
    let prefill = started(patient(Era::Main)).await;
    let first = pinned(&prefill, ID).await["disaggregated_params"]["first_gen_tokens"][0].clone();
    let mut body = context(ID + 1);
    body["stop_token_ids"] = json!([first]);
    let said = complete(&prefill, &body).await.served().json();
    assert_eq!(said["choices"][0]["finish_reason"], "stop");
    assert_eq!(prefill.holds(), 1);
    let mut body = context(ID + 2);
    body["max_tokens"] = 1.into();
    let said = complete(&prefill, &body).await.served().json();
    assert_eq!(
        said["choices"][0]["finish_reason"], "length",
        "whoever asked for one token has it"
    );
    assert_eq!(prefill.holds(), 2);
}

async fn pythonic() -> (EmulatedTrtllm, EmulatedTrtllm) {
    let config = Config {
        transceiver: Some(Transceiver::Python),
        ..patient(Era::Main)
    };
    (started(config.clone()).await, started(config).await)
}

/// The two legs where generation is asked first.
async fn generation_first(prefill: &EmulatedTrtllm, id: u64) -> (Value, Value) {
    let info = client::call(prefill.address(), "GET", "/server_info", &[], "").await;
    let info = info.served().json()["disaggregated_params"].clone();
    let mut first = context(id);
    first["disaggregated_params"]["schedule_style"] = 1.into();
    let second = json!({
        "model": "tiny", "prompt": PROMPT, "max_tokens": 5,
        "disaggregated_params": {
            "request_type": "generation_only", "ctx_request_id": id, "disagg_request_id": id, "schedule_style": 1,
            "ctx_dp_rank": info["ctx_dp_rank"], "ctx_info_endpoint": info["ctx_info_endpoint"][0],
        },
    });
    (first, second)
}

#[tokio::test]
async fn generation_may_be_asked_first_and_context_waits_for_it() {
    let (prefill, decode) = pythonic().await;
    for (turn, context_comes_first) in [false, true].into_iter().enumerate() {
        let (context, generation) = generation_first(&prefill, ID + turn as u64).await;
        let (early, body) = if context_comes_first {
            (&prefill, &context)
        } else {
            (&decode, &generation)
        };
        let early = tokio::spawn({
            let (early, body) = (early.clone(), body.clone());
            async move { complete(&early, &body).await }
        });
        let waits = || async { prefill.working_on() + decode.working_on() == 1 };
        wait::until("the first leg to be there", waits).await;
        assert_eq!(prefill.stats()[0].waiting, 0, "it is not scheduled alone");
        let late = if context_comes_first {
            complete(&decode, &generation).await
        } else {
            complete(&prefill, &context).await
        };
        let early = early.await.unwrap();
        let whole = if context_comes_first { late } else { early };
        assert_eq!(whole.served().generated(), model::text(PROMPT, 5));
        is_free(&prefill).await;
    }
}

#[tokio::test]
async fn who_leaves_is_noticed_at_the_next_look() {
    let (prefill, _) = pythonic().await;
    let (context, _) = generation_first(&prefill, ID).await;
    let body = context.to_string();
    let leg = client::start(prefill.address(), "POST", "/v1/completions", &[], body).await;
    wait::until("the leg to be there", || async {
        prefill.working_on() == 1
    })
    .await;
    leg.vanish();
    wait::until("that to be noticed", || async { prefill.working_on() == 0 }).await;
    assert_eq!(prefill.holds(), 0);
}

#[tokio::test]
async fn bodies_are_forbidden_a_field_too_many() {
    let engine = started(patient(Era::V12)).await;
    let mut extra = context(ID);
    extra["disaggregated_params"]["foo"] = 1.into();
    let said = message(&complete(&engine, &extra).await);
    let forbidden = "[{'type': 'extra_forbidden', 'loc': ('body', 'disaggregated_params', 'foo'), 'msg': 'Extra inputs are \
                     not permitted', 'input': 1}]";
    assert_eq!(said, forbidden);
    let mut later = context(ID);
    later["disaggregated_params"]["ctx_usage"] = json!({});
    assert!(message(&complete(&engine, &later).await).contains("'ctx_usage'"));
    let mut none = context(ID);
    none["disaggregated_params"]
        .as_object_mut()
        .unwrap()
        .remove("request_type");
    assert!(message(&complete(&engine, &none).await).contains("'missing'"));
    let mut other = context(ID);
    other["disaggregated_params"]["request_type"] = "prefill".into();
    assert!(
        message(&complete(&engine, &other).await).starts_with("Unknown request type: prefill.")
    );
    let mut options = context(ID);
    options["stream_options"] = json!({"include_usage": true});
    assert!(message(&complete(&engine, &options).await).contains("only be defined when stream"));
    assert_eq!(engine.holds(), 0);
}

#[tokio::test]
async fn what_another_engine_is_said_to_hold_needs_the_key() {
    let prefill = started(patient(Era::Main)).await;
    let asked = pinned(&prefill, ID).await;
    for auth in [Auth::Key("secret".to_owned()), Auth::Required] {
        let decode = Config {
            auth,
            ..patient(Era::Main)
        };
        let decode = started(decode).await;
        let said = message(&complete(&decode, &asked).await);
        assert_eq!(
            said,
            "Invalid internal disaggregated request authentication"
        );
        let plain = json!({"model": "tiny", "prompt": "?", "max_tokens": 1});
        complete(&decode, &plain).await.served();
    }
    assert_eq!(prefill.holds(), 1);
}

#[tokio::test]
async fn bodies_may_be_messagepack_whatever_they_are_called() {
    let engine = started(patient(Era::Main)).await;
    let body = json!({"model": "tiny", "prompt": PROMPT, "max_tokens": 3});
    let packed = rmp_serde::to_vec(&body).unwrap();
    let headers = [
        ("content-type", "application/json"),
        ("x-trtllm-msgpack", "1"),
    ];
    let answer = client::call(
        engine.address(),
        "POST",
        "/v1/completions",
        &headers,
        packed,
    )
    .await;
    assert_eq!(answer.served().generated(), model::text(PROMPT, 3));
}

#[tokio::test]
async fn statistics_are_told_once() {
    let engine = started(Config {
        request_stats: Some(10),
        ..patient(Era::V12)
    })
    .await;
    complete(
        &engine,
        &json!({"model": "tiny", "prompt": PROMPT, "max_tokens": 3}),
    )
    .await
    .served();
    let get = async |path| {
        let told = client::call(engine.address(), "GET", path, &[], "").await;
        told.served().json().as_array().unwrap().clone()
    };
    let iterations = get("/metrics").await;
    assert_eq!(iterations.len(), 3, "one for each token");
    assert_eq!(iterations[0]["kvCacheStats"]["tokensPerBlock"], 32);
    assert_eq!(get("/metrics").await.len(), 0);
    assert_eq!(
        (
            get("/perf_metrics").await.len(),
            get("/perf_metrics").await.len()
        ),
        (1, 0)
    );
}

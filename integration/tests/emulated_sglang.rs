//! The emulated SGLang over its own wire, without Baton: two engines hand over in parallel, and every row of the table of what
//! becomes of a leg whose other leg fails.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::time::{Duration, Instant};

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::sglang::{Config, EmulatedSglang, Mode, Patience};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "The KV of a prompt is all that decode knows of it, byte for byte and page for page.";

async fn started(config: Config) -> EmulatedSglang {
    let engine = EmulatedSglang::new(config);
    engine.start().await;
    engine
}

/// An engine that gives up soon, but for what it is given time for.
fn hasty(mode: Mode) -> Config {
    Config {
        patience: Patience::REAL.scaled(0.001),
        ..Config::new(mode)
    }
}

/// An engine that never gives up by itself in a test.
fn patient(mode: Mode) -> Config {
    Config {
        patience: Patience {
            bootstrap: wait::PATIENCE,
            waiting: wait::PATIENCE,
            ..Patience::REAL.scaled(0.001)
        },
        ..Config::new(mode)
    }
}

async fn pair() -> (EmulatedSglang, EmulatedSglang) {
    let prefill = started(patient(Mode::Prefill)).await;
    (prefill, started(patient(Mode::Decode)).await)
}

async fn post(engine: &EmulatedSglang, path: &str, body: &Value) -> Answer {
    client::call(engine.address(), "POST", path, &[], body.to_string()).await
}

/// A request that both legs get, with another room every time.
fn legs(prefill: &EmulatedSglang, room: u64) -> Value {
    json!({
        "text": PROMPT, "sampling_params": {"max_new_tokens": 5, "temperature": 0},
        "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap().port(), "bootstrap_room": room,
    })
}

async fn both(
    prefill: &EmulatedSglang,
    decode: &EmulatedSglang,
    path: &str,
    body: &Value,
) -> (Answer, Answer) {
    tokio::join!(post(prefill, path, body), post(decode, path, body))
}

fn message(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{}", answer.text());
    answer.json()["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn both_legs_at_once_say_what_one_engine_says() {
    let (prefill, decode) = pair().await;
    for (room, prompt) in ["?", PROMPT, &PROMPT.repeat(5)].iter().enumerate() {
        let mut body = legs(&prefill, room as u64 + 1);
        body["text"] = (*prompt).into();
        let (first, whole) = both(&prefill, &decode, "/generate", &body).await;
        let (first, whole) = (first.served().json(), whole.served().json());
        assert_eq!(whole["text"], model::text(prompt, 5));
        assert_eq!(first["output_ids"][0], whole["output_ids"][0]);
        assert_eq!(first["output_ids"].as_array().unwrap().len(), 1);
        let finish = json!({"type": "length", "length": 0});
        assert_eq!(first["meta_info"]["finish_reason"], finish);
        assert_eq!(prefill.holds(), 0);
    }
    let tokens = 1 + PROMPT.len() * 6;
    assert_eq!(decode.transferred_tokens(), tokens as u64);
}

#[tokio::test]
async fn either_leg_may_come_first() {
    let (prefill, decode) = pair().await;
    for (room, (first, second)) in [(&prefill, &decode), (&decode, &prefill)]
        .into_iter()
        .enumerate()
    {
        let body = legs(&prefill, room as u64 + 1);
        let early = tokio::spawn({
            let (first, body) = (first.clone(), body.clone());
            async move { post(&first, "/generate", &body).await }
        });
        wait::until("the first leg to be there", || async {
            first.working_on() == 1
        })
        .await;
        post(second, "/generate", &body).await.served();
        early.await.unwrap().served();
    }
}

#[tokio::test]
async fn the_openai_routes_hand_over_as_well() {
    let (prefill, decode) = pair().await;
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let said = model::chat_text(&messages, 5);
    for (room, stream) in [false, true].into_iter().enumerate() {
        let mut body = legs(&prefill, room as u64 + 1);
        body["messages"] = messages.clone();
        body["max_tokens"] = 5.into();
        body["stream"] = stream.into();
        let (_, answer) = both(&prefill, &decode, "/v1/chat/completions", &body).await;
        assert_eq!(answer.served().generated(), said);
    }
}

#[tokio::test]
async fn a_leg_without_the_other_gives_up_at_its_own_time() {
    let prefill = started(hasty(Mode::Prefill)).await;
    let decode = started(hasty(Mode::Decode)).await;
    let body = legs(&prefill, 7);
    let alone = message(&post(&prefill, "/generate", &body).await, 500);
    assert!(alone.contains("in KVPoll.Bootstrapping"), "{alone}");
    let body = legs(&prefill, 8);
    let alone = message(&post(&decode, "/generate", &body).await, 500);
    assert!(alone.contains("in KVPoll.WaitingForInput"), "{alone}");
}

#[tokio::test]
async fn a_stream_that_fails_is_a_200_with_an_abort_inside() {
    let prefill = started(hasty(Mode::Prefill)).await;
    let decode = started(hasty(Mode::Decode)).await;
    let mut body = legs(&prefill, 7);
    body["stream"] = true.into();
    let answer = post(&decode, "/generate", &body).await;
    let events = answer.served().events();
    let [chunk, done] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(done, "[DONE]");
    let chunk: Value = serde_json::from_str(chunk).unwrap();
    let finish = &chunk["meta_info"]["finish_reason"];
    assert_eq!(
        (&finish["type"], &finish["status_code"]),
        (&"abort".into(), &500.into())
    );
}

#[tokio::test]
async fn a_disaggregated_engine_wants_a_room() {
    let (prefill, decode) = pair().await;
    let body = json!({"text": PROMPT});
    for engine in [&prefill, &decode] {
        let answer = post(engine, "/generate", &body).await;
        assert_eq!(answer.status, 400);
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains("without bootstrap room id"), "{message}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "stream": true});
    let answer = post(&decode, "/v1/chat/completions", &chat).await;
    let events = answer.served().events();
    let error: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(error["error"]["code"], 400);
    assert_eq!(events[1], "[DONE]");
}

#[tokio::test]
async fn an_abort_ends_every_request_whose_name_begins_so() {
    let (prefill, decode) = pair().await;
    let leg = |rid: &str, room| {
        let mut body = legs(&prefill, room);
        body["rid"] = rid.into();
        let decode = decode.clone();
        tokio::spawn(async move { post(&decode, "/generate", &body).await })
    };
    let (one, ten, two) = (leg("r1", 1), leg("r10", 2), leg("r2", 3));
    wait::until("all legs to be there", || async {
        decode.working_on() == 3
    })
    .await;
    post(&decode, "/abort_request", &json!({"rid": "r1"}))
        .await
        .served();
    for leg in [one, ten] {
        let said = message(&leg.await.unwrap(), 500);
        assert!(said.contains("Aborted by AbortReq."), "{said}");
    }
    assert_eq!(decode.working_on(), 1);
    let mut body = legs(&prefill, 3);
    body["rid"] = "r2".into();
    post(&prefill, "/generate", &body).await.served();
    two.await.unwrap().served();
}

#[tokio::test]
async fn a_lost_prefill_is_noticed_by_heartbeats() {
    let (prefill, decode) = pair().await;
    let body = legs(&prefill, 9);
    let waiting = tokio::spawn({
        let (decode, body) = (decode.clone(), body.clone());
        async move { post(&decode, "/generate", &body).await }
    });
    wait::until("decode's leg to be there", || async {
        decode.working_on() == 1
    })
    .await;
    prefill.kill().await;
    let said = message(&waiting.await.unwrap(), 500);
    // Whether it had found prefill's rank before that died is up to the machine.
    let known = [
        "Lost connection with prefill instance",
        "Decode handshake failed",
    ];
    assert!(known.iter().any(|known| said.contains(known)), "{said}");
    let said = message(&post(&decode, "/generate", &body).await, 500);
    assert!(said.starts_with("Decode handshake failed"), "{said}");
}

#[tokio::test]
async fn room_0_never_ends_on_decode() {
    let prefill = started(hasty(Mode::Prefill)).await;
    let decode = started(hasty(Mode::Decode)).await;
    let mut body = legs(&prefill, 0);
    body["rid"] = "zero".into();
    let leg = tokio::spawn({
        let (decode, body) = (decode.clone(), body.clone());
        async move { post(&decode, "/generate", &body).await }
    });
    post(&prefill, "/generate", &body).await.served();
    let bound = decode.config().patience.waiting * 2;
    let since = Instant::now();
    wait::until("the bound to be over", || async { since.elapsed() > bound }).await;
    assert!(!leg.is_finished());
    post(&decode, "/abort_request", &json!({"rid": "zero"}))
        .await
        .served();
    message(&leg.await.unwrap(), 500);
}

#[tokio::test]
async fn health_takes_its_time_and_needs_a_scheduler() {
    let config = Config {
        patience: Patience {
            health: Duration::from_millis(200),
            ..Patience::REAL.scaled(0.05)
        },
        ..Config::new(Mode::Decode)
    };
    let engine = started(config).await;
    let get = async |path| {
        client::call(engine.address(), "GET", path, &[], "")
            .await
            .status
    };
    let since = Instant::now();
    assert_eq!(get("/health").await, 200);
    assert!(since.elapsed() >= engine.config().patience.health_pause);
    engine.freeze(true);
    assert_eq!((get("/health").await, get("/ready").await), (503, 200));
    engine.freeze(false);
    assert_eq!(get("/health_generate").await, 200);
}

//! The emulated SGLang over its own wire, without Baton: two engines hand over in parallel, and every row of the table of what
//! becomes of a leg whose other leg fails.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::time::{Duration, Instant};

use baton_integration::client::{self, Answer};
use baton_integration::conformance::socket;
use baton_integration::emulated::model;
use baton_integration::emulated::sglang::events::{Form, Format};
use baton_integration::emulated::sglang::{Config, EmulatedSglang, EventsConfig, Mode, Patience};
use baton_integration::{ports, wait};
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
    let prefill = started(patient(Mode::Prefill)).await;
    let decode = Config {
        patience: Patience {
            waiting: Duration::from_secs(2),
            ..patient(Mode::Decode).patience
        },
        ..Config::new(Mode::Decode)
    };
    let decode = started(decode).await;
    let mut body = legs(&prefill, 0);
    body["rid"] = "zero".into();
    let leg = tokio::spawn({
        let (decode, body) = (decode.clone(), body.clone());
        async move { post(&decode, "/generate", &body).await }
    });
    post(&prefill, "/generate", &body).await.served();
    let bound = decode.config().patience.waiting * 3 / 2;
    let since = Instant::now();
    wait::until("the bound to be over", || async { since.elapsed() > bound }).await;
    assert!(!leg.is_finished());
    post(&decode, "/abort_request", &json!({"rid": "zero"}))
        .await
        .served();
    message(&leg.await.unwrap(), 500);
}

#[tokio::test]
async fn ranks_are_found_by_rooms() {
    let two = |mode| Config {
        dp_size: 2,
        ..patient(mode)
    };
    let prefill = started(two(Mode::Prefill)).await;
    let decode = started(two(Mode::Decode)).await;
    for room in [2, 3, 5] {
        let body = legs(&prefill, room);
        let (_, whole) = both(&prefill, &decode, "/generate", &body).await;
        assert_eq!(whole.served().json()["text"], model::text(PROMPT, 5));
    }
    let computed: Vec<u64> = prefill
        .stats()
        .iter()
        .map(|stats| stats.prompt_tokens)
        .collect();
    let prompt = PROMPT.len() as u64;
    assert_eq!(computed, [prompt, 2 * prompt]);
}

#[tokio::test]
async fn a_used_room_can_end_the_scheduler() {
    let config = Config {
        dies_of_used_rooms: true,
        ..patient(Mode::Prefill)
    };
    let prefill = started(config).await;
    let body = legs(&prefill, 4);
    let leg = || {
        let (prefill, body) = (prefill.clone(), body.clone());
        tokio::spawn(async move {
            let body = body.to_string();
            let leg = client::start(prefill.address(), "POST", "/generate", &[], body).await;
            leg.closed_silently().await
        })
    };
    let first = leg();
    wait::until("the first leg to be there", || async {
        prefill.working_on() == 1
    })
    .await;
    let second = leg();
    assert_eq!(prefill.died().await, "KeyError: 4");
    assert!(first.await.unwrap() && second.await.unwrap());
    wait::until("the process to be gone", || async { !prefill.is_alive() }).await;
    prefill.start().await;
    assert!(prefill.is_alive());
}

#[tokio::test]
async fn a_client_that_leaves_is_missed_at_the_next_look_only() {
    let (prefill, decode) = pair().await;
    let leg = |room| {
        let body = legs(&prefill, room).to_string();
        client::start(decode.address(), "POST", "/generate", &[], body)
    };
    let left = leg(1).await;
    wait::until("the leg to be there", || async { decode.working_on() == 1 }).await;
    left.vanish();
    wait::until("it to be missed", || async { decode.working_on() == 0 }).await;
    // Its room is given up on both sides.
    let said = message(&post(&prefill, "/generate", &legs(&prefill, 1)).await, 500);
    assert!(said.contains("Aborted by AbortReq."), "{said}");
}

#[tokio::test]
async fn an_aborted_decode_frees_its_prefill() {
    let (prefill, decode) = pair().await;
    decode.freeze(true);
    let mut body = legs(&prefill, 6);
    body["rid"] = "gone".into();
    let legs = tokio::spawn({
        let (prefill, decode, body) = (prefill.clone(), decode.clone(), body.clone());
        async move { both(&prefill, &decode, "/generate", &body).await }
    });
    wait::until("prefill to hold the KV", || async { prefill.holds() == 1 }).await;
    post(&decode, "/abort_request", &json!({"rid": "gone"}))
        .await
        .served();
    let (first, whole) = legs.await.unwrap();
    for leg in [first, whole] {
        let said = message(&leg, 500);
        assert!(said.contains("Aborted by AbortReq."), "{said}");
    }
    assert_eq!(prefill.holds(), 0);
    decode.freeze(false);
}

#[tokio::test]
async fn a_prefill_that_is_aborted_while_its_kv_moves_answers_200() {
    let (prefill, decode) = pair().await;
    decode.freeze(true);
    let mut body = legs(&prefill, 6);
    body["rid"] = "late".into();
    let legs = tokio::spawn({
        let (prefill, decode, body) = (prefill.clone(), decode.clone(), body.clone());
        async move { both(&prefill, &decode, "/generate", &body).await }
    });
    wait::until("prefill to hold the KV", || async { prefill.holds() == 1 }).await;
    post(&prefill, "/abort_request", &json!({"rid": "late"}))
        .await
        .served();
    decode.freeze(false);
    let (first, whole) = legs.await.unwrap();
    assert_eq!(
        first.served().json()["meta_info"]["finish_reason"]["type"],
        "length"
    );
    whole.served();
}

#[tokio::test]
async fn a_killed_prefill_comes_back_as_another() {
    let (prefill, decode) = pair().await;
    let info = async |engine: &EmulatedSglang| {
        let answer = client::call(engine.address(), "GET", "/server_info", &[], "").await;
        answer.served().json()
    };
    let before = info(&prefill).await;
    prefill.restart().await;
    let after = info(&prefill).await;
    assert_ne!(before["startup_time"], after["startup_time"]);
    let (_, whole) = both(&prefill, &decode, "/generate", &legs(&prefill, 1)).await;
    assert_eq!(whole.served().json()["text"], model::text(PROMPT, 5));
}

#[tokio::test]
async fn wrong_kv_is_said_as_it_is() {
    let (prefill, decode) = pair().await;
    decode.freeze(true);
    let body = legs(&prefill, 6);
    let legs = tokio::spawn({
        let (prefill, decode, body) = (prefill.clone(), decode.clone(), body.clone());
        async move { both(&prefill, &decode, "/generate", &body).await }
    });
    wait::until("prefill to hold the KV", || async { prefill.holds() == 1 }).await;
    // What is held is not free.
    prefill.overwrite_free();
    decode.freeze(false);
    let (_, whole) = legs.await.unwrap();
    assert_eq!(whole.served().json()["text"], model::text(PROMPT, 5));
}

fn telling(mode: Mode) -> Config {
    let port = || ports::free().port();
    Config {
        events: Some(EventsConfig {
            endpoint: format!("tcp://*:{}", port()),
            replay_endpoint: Some(format!("tcp://*:{}", port())),
            topic: String::new(),
            buffer_steps: 1000,
            format: Format::Default,
            form: Form::Maps,
        }),
        load_endpoint: Some(format!("tcp://*:{}", port())),
        ..patient(mode)
    }
}

/// All that an engine told so far.
async fn told(engine: &EmulatedSglang) -> Vec<Value> {
    let replay = engine
        .config()
        .events
        .clone()
        .unwrap()
        .replay_endpoint
        .unwrap();
    let replay = replay.replace('*', "127.0.0.1");
    let log = tokio::task::spawn_blocking(move || socket::replay(&replay, 0).unwrap());
    let log = log.await.unwrap();
    log.into_iter().flat_map(|batch| batch.events).collect()
}

#[tokio::test]
async fn decode_without_a_radix_cache_tells_nothing() {
    let prefill = started(telling(Mode::Prefill)).await;
    for radix in [false, true] {
        let config = Config {
            decode_radix_cache: radix,
            ..telling(Mode::Decode)
        };
        let decode = started(config).await;
        let body = legs(&prefill, 1 + u64::from(radix));
        both(&prefill, &decode, "/generate", &body).await.1.served();
        assert_eq!(told(&decode).await.is_empty(), !radix);
    }
}

#[tokio::test]
async fn a_page_that_leaves_the_pool_may_stay_in_the_hosts_memory() {
    let config = Config {
        pages: 32,
        host_pages: 64,
        ..telling(Mode::Null)
    };
    let engine = started(config).await;
    let ask = async |first: u32| {
        let ids: Vec<u32> = (first..first + 80).collect();
        let body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1}});
        let answer = post(&engine, "/generate", &body).await;
        answer.served().json()["meta_info"]["cached_tokens"].clone()
    };
    for first in [1000, 2000, 3000] {
        assert_eq!(ask(first).await, 0);
    }
    // Evicted long ago, and brought back: all but the last token's page.
    assert_eq!(ask(1000).await, 76);
    let events = told(&engine).await;
    let count = |kind: &str, medium: &str| {
        let such = |event: &&Value| event["type"] == kind && event["medium"] == medium;
        let pages = |event: &Value| event["block_hashes"].as_array().unwrap().len();
        events.iter().filter(such).map(pages).sum::<usize>()
    };
    assert_eq!(count("BlockStored", "CPU_PINNED"), 60);
    assert_eq!(count("BlockRemoved", "CPU_PINNED"), 0);
    let (stored, removed) = (count("BlockStored", "GPU"), count("BlockRemoved", "GPU"));
    assert_eq!(stored - removed, engine.cached(0).len());
    assert_eq!(engine.copied(0).len(), 60);
    assert!(stored >= 79, "{stored}");
}

#[tokio::test]
async fn the_load_is_told_at_least_every_second() {
    let engine = started(telling(Mode::Null)).await;
    let endpoint = engine.config().load_endpoint.clone().unwrap();
    let endpoint = endpoint.replace('*', "127.0.0.1");
    let heard = tokio::task::spawn_blocking(move || {
        let socket = zmq::Context::new().socket(zmq::SUB).unwrap();
        socket.set_subscribe(b"load").unwrap();
        socket
            .set_rcvtimeo(i32::try_from(wait::PATIENCE.as_millis()).unwrap())
            .unwrap();
        socket.connect(&endpoint).unwrap();
        [(); 2].map(|()| socket.recv_multipart(0).unwrap())
    });
    let heard = heard.await.unwrap();
    for message in &heard {
        assert_eq!((message[0].as_slice(), message[1].len()), (&b"load"[..], 8));
        let stat = rmpv::decode::read_value(&mut &message[2][..]).unwrap();
        let stat = stat.as_array().unwrap();
        assert_eq!((stat[0].as_str(), stat.len()), (Some("LoadStat"), 11));
    }
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

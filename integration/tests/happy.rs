//! What an ordinary client gets, and what the engines see of it.

use std::sync::{Arc, Mutex};

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Fault, Leg, Rule};
use baton_integration::emulated::vllm::{Config, Seen};
use baton_integration::fleet::{Fleet, Setup};
use serde_json::{Value, json};

const PROMPT: &str =
    "Where is the baton? It is longer than one block of KV, so that there are several.";

fn completion(more: &str) -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5{more}}}"#)
}

fn chat(more: &str) -> String {
    format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{PROMPT}"}}],"max_tokens":5{more}}}"#
    )
}

fn chat_text(count: usize) -> String {
    model::chat_text(&json!([{"role": "user", "content": PROMPT}]), count)
}

/// The client got the bytes that this engine sent.
#[track_caller]
fn untouched(answer: &Answer, seen: &Seen) {
    let sent = seen.answer();
    assert_eq!(answer.body, sent.body, "the body's bytes are the engine's");
    assert_eq!(answer.status, sent.status);
    assert_eq!(answer.header("content-type"), sent.header("content-type"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_prefilled_here_and_decoded_there() {
    let fleet = Setup::split().start().await;
    let answer = fleet.complete(completion("")).await;
    assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
    assert_eq!(answer.json()["usage"]["prompt_tokens"], PROMPT.len());
    fleet.engine("p0").only(Leg::Prefill);
    untouched(&answer, &fleet.engine("d0").only(Leg::Decode));
    assert_eq!(fleet.engine("d0").transferred_tokens(), PROMPT.len() as u64);
    assert_eq!(
        fleet.engine("p0").holds(),
        0,
        "decode's pull has given the KV back"
    );
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets_ended_total", &[("end", "settled")]),
        1
    );
    let page = fleet.router_page().await;
    assert_eq!(
        page.sum(
            "baton_router_requests_total",
            &[("plan", "split"), ("outcome", "ok")]
        ),
        1
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_answer_passes_untouched() {
    let fleet = Setup::split().start().await;
    let usage = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let kinds = [
        ("/v1/completions", completion(""), model::text(PROMPT, 5)),
        ("/v1/completions", completion(usage), model::text(PROMPT, 5)),
        ("/v1/chat/completions", chat(""), chat_text(5)),
        ("/v1/chat/completions", chat(usage), chat_text(5)),
    ];
    for (number, (path, body, text)) in kinds.into_iter().enumerate() {
        let answer = fleet.post(path, &body).await;
        assert_eq!(answer.served().generated(), text, "{body}");
        let decodes = fleet.engine("d0").seen_of(Leg::Decode);
        assert_eq!(decodes.len(), number + 1, "{body} was split");
        untouched(&answer, &decodes[number]);
        if body.contains("stream") {
            let events = answer.events();
            assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
            assert!(
                events[events.len() - 2].contains(r#""usage":{"#),
                "{events:?}"
            );
        }
    }
    fleet.finish().await;
}

/// Takes the one added member out of a body again: what it was, and what is left.
fn without(body: &str, key: &str) -> (String, String) {
    let start = body
        .find(&format!(",\"{key}\":"))
        .unwrap_or_else(|| panic!("{key} in {body}"));
    let value_at = start + key.len() + 4;
    let mut values = serde_json::Deserializer::from_str(&body[value_at..]).into_iter::<Value>();
    assert!(values.next().is_some_and(|value| value.is_ok()), "{body}");
    let end = value_at + values.byte_offset();
    (
        body[value_at..end].to_owned(),
        format!("{}{}", &body[..start], &body[end..]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn decode_sees_the_clients_bytes_and_the_handoff_as_prefill_gave_it() {
    let fleet = Setup::split().start().await;
    let given = Arc::new(Mutex::new(Value::Null));
    let giving = Arc::clone(&given);
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).fault(Fault::params(move |params| {
            // A key that Baton does not know must arrive as well.
            params["a_later_versions_key"] = json!({"deep": [1.5e300, "\u{e9}"]});
            *giving.lock().unwrap() = params.clone();
        })));
    let body = "{ \"model\" : \"tiny\",\n\t\"pro\\u006dpt\":\"\\u0061b\\ud83d\\ude00 c\" , \"max_tokens\":4 , \"temperature\": 0.70e0,\
                \"unknown\":[1, 2,{\"kv_transfer_params\":1.0}],\"min_tokens\":2, \"stream\":true,\"stream_options\":{\"include_usage\":true}\n }\n";
    fleet.complete(body).await.served();
    let (handoff, rest) = without(
        &fleet.engine("d0").only(Leg::Decode).body,
        "kv_transfer_params",
    );
    assert_eq!(rest, body, "nothing but the handoff was added");
    assert_eq!(
        handoff,
        given.lock().unwrap().to_string(),
        "the handoff's bytes are the prefill engine's"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefill_is_asked_for_one_token_and_nothing_that_contradicts() {
    let fleet = Setup::split().start().await;
    let contradictions = r#","stream":true,"stream_options":{"include_usage":true},"min_tokens":3,"max_completion_tokens":9,"request_id":"mine","temperature":0.5,"top_k":7"#;
    for (path, body) in [
        ("/v1/completions", completion(contradictions)),
        ("/v1/chat/completions", chat(contradictions)),
    ] {
        fleet.post(path, &body).await.served();
        let prefill = fleet.engine("p0").seen_of(Leg::Prefill).pop().unwrap();
        assert_eq!(prefill.path, path);
        let sent = prefill.json();
        assert_eq!(sent["stream"], json!(false));
        assert_eq!(
            (&sent["max_tokens"], &sent["max_completion_tokens"]),
            (&json!(1), &json!(1))
        );
        for absent in ["min_tokens", "stream_options", "request_id"] {
            assert!(sent.get(absent).is_none(), "{absent} in {sent}");
        }
        assert_eq!(
            (&sent["temperature"], &sent["top_k"]),
            (&json!(0.5), &json!(7))
        );
        let params = &sent["kv_transfer_params"];
        assert_eq!(
            (&params["do_remote_decode"], &params["do_remote_prefill"]),
            (&json!(true), &json!(false))
        );
        let decode = fleet
            .engine("d0")
            .seen_of(Leg::Decode)
            .pop()
            .unwrap()
            .json();
        assert_eq!(
            (&decode["min_tokens"], &decode["max_completion_tokens"]),
            (&json!(3), &json!(9))
        );
        assert!(
            decode.get("request_id").is_none(),
            "ids are Baton's: {decode}"
        );
    }
    fleet.finish().await;
}

async fn with_headers(fleet: &Fleet, headers: &[(&str, &str)]) -> Answer {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    client::call(
        fleet.address(),
        "POST",
        "/v1/completions",
        &all,
        completion(""),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_headers_end_at_the_router() {
    let fleet = Setup::split().start().await;
    with_headers(
        &fleet,
        &[
            ("x-request-id", "clients-own"),
            ("authorization", "Bearer sk-secret"),
            ("x-data-parallel-rank", "3"),
            ("cookie", "a=b"),
        ],
    )
    .await
    .served();
    let legs = [
        fleet.engine("p0").only(Leg::Prefill),
        fleet.engine("d0").only(Leg::Decode),
    ];
    for leg in &legs {
        let mut names: Vec<&str> = leg.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "content-length",
                "content-type",
                "host",
                "traceparent",
                "x-request-id"
            ]
        );
        assert!(!format!("{leg:?}").contains("clients-own"));
        assert_eq!(leg.header("x-request-id").map(str::len), Some(32));
    }
    assert_ne!(
        legs[0].header("x-request-id"),
        legs[1].header("x-request-id")
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_runs_through_both_legs_with_a_span_each() {
    let fleet = Setup::split().start().await;
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let parent = format!("00-{trace}-{span}-01");
    with_headers(
        &fleet,
        &[("traceparent", &parent), ("tracestate", "vendor=1")],
    )
    .await
    .served();
    let legs = [
        fleet.engine("p0").only(Leg::Prefill),
        fleet.engine("d0").only(Leg::Decode),
    ];
    let spans: Vec<String> = legs
        .iter()
        .map(|leg| {
            let parts: Vec<&str> = leg.header("traceparent").unwrap().split('-').collect();
            assert_eq!((parts[1], parts[3]), (trace, "01"));
            assert_eq!(leg.header("tracestate"), Some("vendor=1"));
            parts[2].to_owned()
        })
        .collect();
    assert_ne!(spans[0], spans[1]);
    assert!(
        !spans.contains(&span.to_owned()),
        "the client's span is the parent, not the leg"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_split_is_served_by_one_engine_even_when_forced() {
    let fleet = Setup::split().start().await;
    let bodies = [
        ("/v1/completions", completion(r#","n":2"#)),
        ("/v1/completions", completion(r#","best_of":3"#)),
        (
            "/v1/completions",
            completion("").replace(r#""max_tokens":5"#, r#""max_tokens":1"#),
        ),
        (
            "/v1/completions",
            completion("").replace(&format!("\"{PROMPT}\""), r#"["a b","c d"]"#),
        ),
        (
            "/v1/completions",
            completion(r#","echo":true,"logprobs":1"#),
        ),
        ("/v1/completions", completion(r#","prompt_logprobs":1"#)),
        ("/v1/completions", completion(r#","use_beam_search":true"#)),
        ("/v1/chat/completions", chat(r#","n":2"#)),
        (
            "/v1/chat/completions",
            chat(r#","max_completion_tokens":1"#),
        ),
        ("/v1/chat/completions", chat(r#","echo":true"#)),
    ];
    for (number, (path, body)) in bodies.iter().enumerate() {
        let answer = fleet.post(path, body).await;
        answer.served();
        let seen = fleet.engine("d0").seen();
        assert_eq!(
            seen.len(),
            number + 1,
            "{body}: one leg, at the decode worker"
        );
        let leg = seen.last().unwrap();
        assert_eq!(
            (leg.leg, &leg.body),
            (Leg::Local, body),
            "the client's bytes, untouched"
        );
        untouched(&answer, leg);
    }
    assert!(fleet.engine("p0").seen().is_empty(), "no prefill was spent");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_ends_by_itself_is_generated_where_its_cache_is_warm() {
    let fleet = Setup::split().start().await;
    for body in [completion(""), completion(r#","stream":true"#)] {
        let p0 = fleet.engine("p0");
        p0.script(Rule::on(Leg::Prefill).fault(Fault::Finish("stop")));
        let answer = fleet.complete(&body).await;
        assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
        untouched(&answer, p0.seen_of(Leg::Local).last().unwrap());
        assert!(
            fleet.engine("d0").seen().is_empty(),
            "decode never heard of it"
        );
        fleet.gave_back("p0").await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_own_judgement_reaches_the_client_as_it_is() {
    let fleet = Setup::split().start().await;
    let long = completion("").replace(PROMPT, &"x".repeat(1100));
    for (body, status) in [
        (long.as_str(), 400),
        (r#"{"model":"tiny","prompt":"","max_tokens":4}"#, 400),
        (r#"{"model":"tiny","prompt":{"a":1},"max_tokens":4}"#, 400),
        (r#"{"model":"tiny","prompt":"x","max_tokens":0}"#, 400),
    ] {
        let answer = fleet.complete(body).await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(
            answer.header("baton-error"),
            None,
            "the engine made it: {answer:?}"
        );
        let seen = [fleet.engine("p0").seen(), fleet.engine("d0").seen()].concat();
        assert!(
            seen.iter().any(|leg| leg.answer().body == answer.body),
            "its bytes are an engine's: {}",
            answer.text()
        );
    }
    assert_eq!(fleet.engine("p0").holds(), 0);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_only_decode_refuses_gives_its_kv_up() {
    let fleet = Setup::split().start().await;
    let refusal = r#"{"error":{"message":"min_tokens is too large","type":"BadRequestError","param":null,"code":400}}"#;
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).fault(Fault::Status(400, refusal.to_owned())));
    let answer = fleet.complete(completion("")).await;
    assert_eq!((answer.status, answer.text()), (400, refusal));
    fleet.quiet().await;
    fleet.gave_back("p0").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_routes_pass_to_one_engine_untouched() {
    let fleet = Setup::split().start().await;
    let body = r#"{ "model":"tiny", "input":"x" }"#;
    let answer = fleet.post("/v1/embeddings", body).await;
    assert_eq!(answer.served().json()["object"], "list");
    assert_eq!(fleet.engine("d0").only(Leg::Local).body, body);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_shows_its_models_its_plan_and_how_a_request_was_served() {
    let fleet = Setup::split().start().await;
    let models = client::call(fleet.address(), "GET", "/v1/models", &[], "").await;
    assert_eq!(models.served().json()["data"][0]["id"], "tiny");
    let model = client::call(fleet.address(), "GET", "/v1/models/tiny", &[], "").await;
    assert_eq!(model.served().json()["max_model_len"], 1024);
    let plan = fleet.post("/v1/plan", completion("")).await.served().json();
    assert_eq!(plan["chosen"]["plan"], "split", "{plan}");
    assert_eq!(
        (&plan["chosen"]["prefill"], &plan["chosen"]["decode"]),
        (&json!("p0"), &json!("d0"))
    );
    assert!(plan["chosen"]["seconds"]["total"].as_f64().unwrap() > 0.0);
    assert!(
        [fleet.engine("p0"), fleet.engine("d0")]
            .iter()
            .all(|engine| engine.seen().is_empty()),
        "a dry run"
    );
    let explained = with_headers(&fleet, &[("baton-explain", "1")]).await;
    let how = explained.served().header("baton-plan").unwrap();
    assert!(
        how.starts_with("split prefill=p0 decode=d0 kv_bytes="),
        "{how}"
    );
    assert_eq!(
        with_headers(&fleet, &[]).await.header("baton-plan"),
        None,
        "only who asks is told"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_with_an_api_key_is_given_it_and_no_other() {
    let keyed = |role| Config {
        api_key: Some("engines-own-key".to_owned()),
        ..Config::new(Some(role))
    };
    let fleet = Setup::new()
        .worker("p0", keyed("kv_producer"))
        .worker("d0", keyed("kv_consumer"))
        .router(&["--force", "split", "--api-key", "clients-key"])
        .start()
        .await;
    with_headers(&fleet, &[("authorization", "Bearer clients-key")])
        .await
        .served();
    for seen in [
        fleet.engine("p0").only(Leg::Prefill),
        fleet.engine("d0").only(Leg::Decode),
    ] {
        assert_eq!(seen.header("authorization"), Some("Bearer engines-own-key"));
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_a_time_each_get_their_own_answer() {
    let fleet = Arc::new(Setup::split().prefill("p1").decode("d1").start().await);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..60usize {
        let fleet = Arc::clone(&fleet);
        clients.spawn(async move {
            let prompt = format!(
                "{number} runners pass the baton {}",
                "on ".repeat(number % 40)
            );
            let stream = number % 2 == 0;
            let body =
                json!({"model": "tiny", "prompt": prompt, "max_tokens": 6, "stream": stream});
            let answer = fleet.complete(body.to_string()).await;
            assert_eq!(answer.served().generated(), model::text(&prompt, 6));
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let fleet = Arc::into_inner(fleet).unwrap();
    let page = fleet.router_page().await;
    assert_eq!(
        page.sum(
            "baton_router_requests_total",
            &[("plan", "split"), ("outcome", "ok")]
        ),
        60
    );
    assert_eq!(page.sum("baton_router_failures_total", &[]), 0);
    assert_eq!(fleet.engine("p0").holds() + fleet.engine("p1").holds(), 0);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_can_do_either_leg_never_hand_over_to_themselves() {
    let fleet = Setup::new()
        .worker("a", Config::new(Some("kv_both")))
        .router(&["--force", "split"])
        .start()
        .await;
    let refused = fleet.complete(completion("")).await.refused(503);
    assert!(
        refused.contains("no two of them can hand over"),
        "{refused}"
    );
    fleet.finish().await;

    let fleet = Setup::new()
        .worker("a", Config::new(Some("kv_both")))
        .worker("b", Config::new(Some("kv_both")))
        .router(&["--force", "split"])
        .start()
        .await;
    for _ in 0..6 {
        assert_eq!(
            fleet.complete(completion("")).await.served().generated(),
            model::text(PROMPT, 5)
        );
    }
    for name in ["a", "b"] {
        let engine = fleet.engine(name);
        let other = fleet.engine(if name == "a" { "b" } else { "a" });
        assert_eq!(
            engine.seen_of(Leg::Prefill).len(),
            other.seen_of(Leg::Decode).len()
        );
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_a_connector_serves_whole_requests() {
    let fleet = Setup::new().plain("a").start().await;
    assert_eq!(
        fleet.complete(completion("")).await.served().generated(),
        model::text(PROMPT, 5)
    );
    let answer = fleet.chat(chat(r#","stream":true"#)).await;
    assert_eq!(answer.served().generated(), chat_text(5));
    fleet.finish().await;
}

//! What clients and strangers may not ask for: each is refused clearly, in OpenAI's shape, before an engine sees it. What is
//! wrong with a request as such is generated: see `hostile_requests`.

use baton_integration::client::{self, Exchange, request};
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Leg, Rule};
use baton_integration::fleet::{Fleet, Setup, TOKEN};
use baton_integration::wait;
use baton_proto::call::path;
use serde_json::Value;

#[track_caller]
fn no_engine_saw_anything(fleet: &Fleet) {
    for name in ["p0", "d0"] {
        let seen = fleet.engine(name).seen();
        assert!(seen.is_empty(), "{name} saw {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recorded_body_that_hurt_a_real_engine_is_refused() {
    let fleet = Setup::split().start().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/refused");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let recorded: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let body = recorded["body"].to_string();
        let answer = fleet.post(recorded["path"].as_str().unwrap(), body).await;
        let message = answer.refused(400);
        assert!(
            message.contains("kv_transfer_params"),
            "{file:?}: {message}"
        );
        count += 1;
    }
    assert!(count >= 20, "{count} recordings");
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_is_not_found() {
    let fleet = Setup::split().start().await;
    for route in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"] {
        let message = fleet
            .post(
                route,
                r#"{"model":"nope","prompt":"x","messages":[],"input":"x"}"#,
            )
            .await
            .refused(404);
        assert!(message.contains("nope"), "{message}");
    }
    let message = client::call(fleet.address(), "GET", "/v1/models/nope", &[], "")
        .await
        .refused(404);
    assert!(message.contains("nope"), "{message}");
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_says_which_one_is_right() {
    let fleet = Setup::split().start().await;
    for (address, method, path, allowed) in [
        (fleet.address(), "GET", "/v1/completions", "POST"),
        (fleet.address(), "PUT", "/v1/chat/completions", "POST"),
        (fleet.address(), "DELETE", "/v1/embeddings", "POST"),
        (fleet.address(), "POST", "/v1/models", "GET"),
        (fleet.address(), "POST", "/v1/models/tiny", "GET"),
        (fleet.address(), "POST", "/metrics", "GET"),
        (fleet.address(), "DELETE", "/fleet", "GET"),
        (fleet.address(), "GET", "/v1/plan", "POST"),
        (fleet.address(), "GET", path::REGISTER, "POST"),
        (fleet.sidecar_address("p0"), "POST", "/livez", "GET"),
        (fleet.sidecar_address("p0"), "POST", "/metrics", "GET"),
    ] {
        let answer = client::call(address, method, path, &[], "").await;
        answer.refused(405);
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_own_routes_are_not_reachable() {
    let fleet = Setup::split().start().await;
    for path in [
        "/",
        "/v1",
        "/v1/nope",
        "/v1/completions/",
        "//v1/completions",
        "/v1/./completions",
        "/v1/%63ompletions",
        "/tokenize",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/inference/v1/generate",
        "/sleep",
        "/collective_rpc",
        "/baton/v1/prefill",
    ] {
        fleet
            .post(path, r#"{"model":"tiny","prompt":"x"}"#)
            .await
            .refused(404);
        client::call(fleet.address(), "GET", path, &[], "")
            .await
            .refused(404);
    }
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_between_routers_and_sidecars_needs_the_fleets_token() {
    let fleet = Setup::split().start().await;
    let (router, sidecar) = (fleet.address(), fleet.sidecar_address("d0"));
    let settle = format!("{}t/settle", path::TICKETS);
    let behind_the_token = [
        (sidecar, "GET", path::WATCH),
        (sidecar, "POST", path::PREFILL),
        (sidecar, "POST", path::DECODE),
        (sidecar, "POST", path::GENERATE),
        (sidecar, "POST", settle.as_str()),
        (sidecar, "POST", path::QUARANTINE),
        (sidecar, "POST", path::DRAIN),
        (sidecar, "POST", "/baton/v1/unknown"),
        (router, "POST", path::REGISTER),
        (router, "GET", "/fleet"),
    ];
    let longer = format!("Bearer {TOKEN}x");
    let lower = format!("bearer {TOKEN}");
    for (address, method, path) in behind_the_token {
        for wrong in [
            None,
            Some(TOKEN),
            Some("Bearer "),
            Some("Bearer wrong-wrong-wrong"),
            Some(&longer),
            Some(&lower),
        ] {
            let headers: Vec<(&str, &str)> = wrong
                .map(|value| ("authorization", value))
                .into_iter()
                .collect();
            client::call(address, method, path, &headers, "")
                .await
                .refused(401);
        }
    }
    for (address, path) in [
        (router, "/livez"),
        (router, "/readyz"),
        (router, "/metrics"),
        (sidecar, "/livez"),
        (sidecar, "/readyz"),
        (sidecar, "/metrics"),
    ] {
        assert_eq!(
            client::call(address, "GET", path, &[], "").await.status,
            200,
            "{path} is open"
        );
    }
    assert_eq!(
        fleet
            .sidecar_page("d0")
            .await
            .sum("baton_sidecar_quarantines_total", &[]),
        0
    );
    fleet.worker_is("d0", "ready").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_key_where_keys_are_set() {
    let fleet = Setup::split()
        .router(&["--api-key", "key-one,key-two"])
        .start()
        .await;
    let body = r#"{"model":"tiny","prompt":"x","max_tokens":4}"#;
    let fleets_own = format!("Bearer {TOKEN}");
    for (method, path) in [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/plan"),
        ("GET", "/v1/models"),
        ("POST", "/v1/nope"),
    ] {
        for wrong in [
            None,
            Some("key-one"),
            Some("Bearer key-on"),
            Some("Bearer key-onee"),
            Some("Bearer key-one,key-two"),
            Some("Bearer "),
            Some(&fleets_own),
        ] {
            let headers: Vec<(&str, &str)> = wrong
                .map(|value| ("authorization", value))
                .into_iter()
                .collect();
            client::call(fleet.address(), method, path, &headers, body)
                .await
                .refused(401);
        }
    }
    no_engine_saw_anything(&fleet);
    for key in ["Bearer key-one", "Bearer key-two"] {
        client::call(
            fleet.address(),
            "POST",
            "/v1/completions",
            &[("authorization", key)],
            body,
        )
        .await
        .served();
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_routers_limit_are_told_to_come_back() {
    let fleet = Setup::split()
        .router(&["--max-requests", "1"])
        .start()
        .await;
    let gate = baton_integration::emulated::vllm::script::Gate::new();
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    let body = r#"{"model":"tiny","prompt":"x","max_tokens":4}"#;
    let first = fleet.begin("/v1/completions", body).await;
    gate.reached(1).await;
    let answer = fleet.complete(body).await;
    answer.refused(503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    gate.open();
    assert_eq!(
        first.finish().await.served().generated(),
        model::text("x", 4)
    );
    fleet.complete(body).await.served();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stalls_in_its_body_holds_nobody_up_and_leaves_nothing() {
    let fleet = Setup::split().start().await;
    let body = r#"{"model":"tiny","prompt":"x","max_tokens":4}"#;
    let whole = request(
        "POST",
        "/v1/completions",
        &[("content-type", "application/json")],
        body.as_bytes(),
    );
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut exchange = Exchange::open(fleet.address()).await;
        exchange.send(&whole[..whole.len() - 5]).await;
        stalled.push(exchange);
    }
    wait::until("20 requests to be open", || async {
        fleet.router_page().await.sum("baton_router_in_flight", &[]) == 20
    })
    .await;
    fleet.complete(body).await.served();
    // One comes to its senses, the others vanish, some with a reset.
    let mut late = stalled.pop().unwrap();
    late.send(&whole[whole.len() - 5..]).await;
    late.finish().await.served();
    let (reset, closed) = stalled.split_at(10);
    assert_eq!((reset.len(), closed.len()), (10, 9));
    for (number, exchange) in stalled.into_iter().enumerate() {
        if number < 10 {
            exchange.vanish();
        }
    }
    fleet.finish().await;
}

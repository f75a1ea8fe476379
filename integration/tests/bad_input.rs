//! What clients and strangers may send: each is refused clearly, in OpenAI's shape, before an engine sees it.

use std::io::{Read, Write};
use std::time::Duration;

use baton_daemon::http::{Body, Handler, Limits, empty, serve};
use baton_integration::client::{self, Exchange, request};
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Leg, Rule};
use baton_integration::fleet::{self, Fleet, Setup, TOKEN};
use baton_integration::{ports, wait};
use baton_proto::call::path;
use baton_router::args::RouterArgs;
use clap::Parser;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const ROUTES: [&str; 5] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
];

#[track_caller]
fn no_engine_saw_anything(fleet: &Fleet) {
    for name in ["p0", "d0"] {
        let seen = fleet.engine(name).seen();
        assert!(seen.is_empty(), "{name} saw {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_object_is_refused() {
    let fleet = Setup::split().start().await;
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 13] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\"text\"",
        b"7",
        b"{\"model\":\"tiny\",\"prompt\":\"x\"} trailing",
        b"{\"model\":\"tiny\",\"prompt\":\"x\",}",
        b"{'model':'tiny'}",
        b"{\"model\":\"tiny\",\"prompt\":\"\xff\xfe\"}",
        b"\xef\xbb\xbf{\"model\":\"tiny\",\"prompt\":\"x\"}",
        b"{\"model\":\"tiny\",\"prompt\":\"a\nb\"}",
        deep.as_bytes(),
    ];
    for route in ROUTES {
        for body in bodies {
            let message = fleet.post(route, body).await.refused(400);
            assert!(
                message.contains("JSON") || message.contains("object"),
                "{message}"
            );
        }
    }
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_given_twice_is_refused_in_every_spelling() {
    let fleet = Setup::split().start().await;
    for body in [
        r#"{"model":"tiny","prompt":"a","prompt":"b"}"#,
        r#"{"model":"tiny","prompt":"a","\u0070rompt":"b"}"#,
        r#"{"model":"tiny","prompt":"a","max_tokens":5,"max\u005ftokens":1}"#,
        r#"{"\u006d\u006f\u0064\u0065\u006c":"tiny","model":"tiny","prompt":"a"}"#,
        r#"{"model":"tiny","prompt":"a","x":1,"x":1}"#,
    ] {
        let message = fleet.complete(body).await.refused(400);
        assert!(message.contains("twice"), "{message}");
    }
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfer_keys_are_refused_on_every_route_in_every_spelling() {
    let fleet = Setup::split().start().await;
    let keys = [
        r#""kv_transfer_params":{"do_remote_prefill":true}"#,
        r#""kv_transfer_params":null"#,
        r#""kv_transfer_params" : 1"#,
        r#""kv\u005ftransfer_params":{}"#,
        r#""\u006bv_transfer_param\u0073":{}"#,
        r#""ec_transfer_params":{}"#,
        r#""disaggregated_params":{"request_type":"generation_only"}"#,
        r#""bootstrap_room":1"#,
        r#""bootstrap_host":"h""#,
        r#""bootstrap_port":1"#,
        r#""bootstrap\u005froom":1"#,
        r#""vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true}}"#,
        r#""vllm_xargs":{"kv\u005ftransfer_params":"x"}"#,
        r#""vllm\u005fxargs":{"kv_transfer_params":"x"}"#,
        r#""vllm_xargs":{"ec_transfer_params":1}"#,
        r#""vllm_xargs":{"a":1,"a":2}"#,
    ];
    for route in ROUTES {
        for key in keys {
            for body in [
                format!(r#"{{"model":"tiny","prompt":"x","messages":[],"input":"x",{key}}}"#),
                format!(r#"{{{key},"model":"tiny","prompt":"x","messages":[],"input":"x"}}"#),
            ] {
                let message = fleet.post(route, &body).await.refused(400);
                assert!(
                    message.contains("Baton") || message.contains("twice"),
                    "{body}: {message}"
                );
            }
        }
    }
    no_engine_saw_anything(&fleet);
    fleet.finish().await;
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
async fn a_body_over_the_limit_is_refused_without_reading_it() {
    let fleet = Setup::split()
        .router(&["--max-body-mib", "1"])
        .start()
        .await;
    let json = ("content-type", "application/json");
    // Only its length is sent.
    let stated = client::start(
        fleet.address(),
        "POST",
        "/v1/completions",
        &[json, ("content-length", "2000000")],
        "",
    )
    .await;
    stated.finish().await.refused(413);
    // It does not say its length.
    let chunked = [json, ("transfer-encoding", "chunked")];
    let mut exchange =
        client::start(fleet.address(), "POST", "/v1/completions", &chunked, "").await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..17 {
        exchange.send(&chunk).await;
    }
    exchange.finish().await.refused(413);
    // One that just fits is read and judged by what it is.
    let fits = format!(
        r#"{{"model":"tiny","prompt":"x","max_tokens":4,"user":"{}"}}"#,
        "u".repeat((1 << 20) - 80)
    );
    assert!(fits.len() <= 1 << 20);
    fleet.complete(fits).await.served();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_content_type_is_refused() {
    let fleet = Setup::split().start().await;
    let body = r#"{"model":"tiny","prompt":"x","max_tokens":4}"#;
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ] {
        let answer = client::call(
            fleet.address(),
            "POST",
            "/v1/completions",
            &[("content-type", kind)],
            body,
        )
        .await;
        answer.refused(415);
    }
    no_engine_saw_anything(&fleet);
    for kind in ["application/json; charset=utf-8", "Application/JSON"] {
        let answer = client::call(
            fleet.address(),
            "POST",
            "/v1/completions",
            &[("content-type", kind)],
            body,
        )
        .await;
        assert_eq!(answer.served().generated(), model::text("x", 4));
    }
    // curl without -H sends none that is JSON, but many clients send none at all.
    client::call(fleet.address(), "POST", "/v1/completions", &[], body)
        .await
        .served();
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

/// A router alone, on a clock that runs as soon as nothing else does: its minute is over at once.
#[test]
fn a_body_that_never_comes_is_given_up() {
    let address = ports::free();
    let args = RouterArgs::try_parse_from([
        "baton-router",
        "--listen",
        &address.to_string(),
        "--token",
        TOKEN,
    ])
    .unwrap();
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let router = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(baton_router::run::run(args, stopping))
    });
    let mut stream = (0..500)
        .find_map(|_| {
            let connected = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1));
            connected.inspect_err(|_| std::thread::yield_now()).ok()
        })
        .expect("the router listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"model\":",
        )
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    client::Answer::parse(&answer).refused(408);
    stop.cancel();
    router.join().unwrap().unwrap();
}

struct Endless;

impl Handler for Endless {
    async fn handle(
        self: std::sync::Arc<Self>,
        request: hyper::Request<hyper::body::Incoming>,
    ) -> hyper::Response<Body> {
        if request.uri().path() == "/endless" {
            let mut response = hyper::Response::new(baton_daemon::http::full(vec![b'x'; 64 << 20]));
            *response.status_mut() = hyper::StatusCode::OK;
            response
        } else {
            hyper::Response::new(empty())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_send_no_head_or_stop_reading_are_given_up() {
    let address = ports::free();
    let listener = baton_daemon::http::bind(address).await.unwrap();
    let limits = Limits {
        head: Duration::from_millis(200),
        stall: Duration::from_millis(200),
        drain: Duration::from_secs(1),
        ..Limits::default()
    };
    let stop = CancellationToken::new();
    let server = tokio::spawn(serve(
        listener,
        limits,
        std::sync::Arc::new(Endless),
        stop.clone(),
    ));
    // Never a byte, half a head, and one byte at a time.
    let silent = Exchange::open(address).await;
    assert!(silent.closed_silently().await);
    let mut half = Exchange::open(address).await;
    half.send("GET / HTTP/1.1\r\nhost: t\r\nx-").await;
    half.closed_silently().await;
    // It asks for much and reads none of it: the server closes, though all of it was never taken.
    let mut deaf = Exchange::open(address).await;
    deaf.send(request("GET", "/endless", &[], b"")).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let answer = deaf.finish().await;
    assert!(!answer.complete, "it was given up while it did not read");
    stop.cancel();
    wait::bounded("the server to end", server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_ends_one_connection_and_nothing_else() {
    let fleet = Setup::split().start().await;
    for address in [fleet.address(), fleet.sidecar_address("p0")] {
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
            b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            let mut exchange = Exchange::open(address).await;
            exchange.send(bytes).await;
            let text = exchange.finish_text().await;
            assert!(
                text.is_empty() || text.starts_with("HTTP/1.1 4"),
                "{bytes:?}: {text}"
            );
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
        let mut exchange = Exchange::open(address).await;
        exchange.send(long).await;
        let text = exchange.finish_text().await;
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    let live = client::call(fleet.address(), "GET", "/livez", &[], "").await;
    assert_eq!(live.status, 200);
    let page = fleet::page(fleet.sidecar_address("p0")).await;
    assert_eq!(page.sum("baton_sidecar_engine_up", &[]), 1);
    fleet.finish().await;
}

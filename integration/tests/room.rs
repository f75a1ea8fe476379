//! Requests for which nobody has room wait in the router, in order, and are given to whoever has some first.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::time::Duration;

use baton_integration::client::Exchange;
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::vllm::Config;
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;
use serde_json::json;

/// Every engine runs one sequence at a time.
fn narrow(setup: Setup) -> Setup {
    setup.sidecars(&["--max-num-seqs", "1"])
}

fn body(name: &str, model: &str) -> String {
    format!(
        r#"{{"model":"{model}","prompt":"{name} wants an answer","max_tokens":2,"stream":true}}"#
    )
}

async fn begin(fleet: &Fleet, name: &str) -> Exchange {
    fleet.begin("/v1/completions", body(name, "tiny")).await
}

/// A request that the engine keeps until the gate opens.
async fn occupy(fleet: &Fleet, workers: &[&str], name: &str) -> (Gate, Exchange) {
    let gate = Gate::new();
    for worker in workers {
        let rule = Rule::on(Leg::Local).about(name).gate(&gate);
        fleet.engine(worker).script(rule);
    }
    let exchange = begin(fleet, name).await;
    gate.reached(1).await;
    (gate, exchange)
}

async fn queued(fleet: &Fleet, count: i64) {
    until(
        &format!("{count} requests to wait in the router"),
        || async { fleet.router_page().await.sum("baton_router_queued", &[]) == count },
    )
    .await;
}

async fn refused(fleet: &Fleet, reason: &str) -> i64 {
    let page = fleet.router_page().await;
    page.sum("baton_router_queue_refusals_total", &[("reason", reason)])
}

/// Which of these an engine has seen, in their order.
fn seen(fleet: &Fleet, worker: &str, names: &[&str]) -> Vec<String> {
    let seen = fleet.engine(worker).seen().into_iter();
    let of_these = seen.filter_map(|seen| names.iter().find(|name| seen.body.contains(**name)));
    of_these.map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_to_whoever_has_room_first() {
    let fleet = narrow(Setup::new().plain("a").plain("b")).start().await;
    let both = ["a", "b"];
    let (gate_one, one) = occupy(&fleet, &both, "One").await;
    let (gate_two, two) = occupy(&fleet, &both, "Two").await;
    let at_a = seen(&fleet, "a", &["One", "Two"]);
    let at_b = seen(&fleet, "b", &["One", "Two"]);
    assert_eq!(
        (at_a.len(), at_b.len()),
        (1, 1),
        "one each: {at_a:?} {at_b:?}"
    );
    let third = begin(&fleet, "Three").await;
    queued(&fleet, 1).await;
    let dry = fleet.post("/v1/plan", body("Four", "tiny")).await.json();
    assert_eq!(
        dry["waits_for_room_in"].as_array().unwrap().len(),
        1,
        "{dry}"
    );
    for worker in both {
        assert!(seen(&fleet, worker, &["Three"]).is_empty());
    }
    // Whoever has "Two" is free first.
    let (first, other) = if at_a == ["Two"] {
        ("a", "b")
    } else {
        ("b", "a")
    };
    gate_two.open();
    two.finish().await.served();
    third.finish().await.served();
    assert_eq!(seen(&fleet, first, &["Three"]), ["Three"]);
    assert!(seen(&fleet, other, &["Three"]).is_empty());
    queued(&fleet, 0).await;
    gate_one.open();
    one.finish().await.served();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_come_in_order_and_who_leaves_is_not_waited_for() {
    let fleet = narrow(Setup::new().plain("a")).start().await;
    let (gate, first) = occupy(&fleet, &["a"], "First").await;
    let mut waiting = Vec::new();
    let names = ["Ada", "Bob", "Cleo", "Dora"];
    for (at, name) in (1..).zip(names) {
        waiting.push(begin(&fleet, name).await);
        queued(&fleet, at).await;
    }
    // One closes its connection, in order and without.
    waiting.remove(1).vanish();
    queued(&fleet, 3).await;
    drop(waiting.remove(1));
    queued(&fleet, 2).await;
    gate.open();
    first.finish().await.served();
    for exchange in waiting {
        exchange.finish().await.served();
    }
    assert_eq!(seen(&fleet, "a", &names), ["Ada", "Dora"]);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once_and_a_flood_does_not_fill_it_for_others() {
    let other = Config {
        served_model_name: "other".to_owned(),
        ..Config::new(None)
    };
    let setup = Setup::new().plain("a").worker("b", other);
    let fleet = narrow(setup).router(&["--max-queued", "2"]).start().await;
    let (gate, first) = occupy(&fleet, &["a"], "First").await;
    let ada = begin(&fleet, "Ada").await;
    queued(&fleet, 1).await;
    let bob = begin(&fleet, "Bob").await;
    queued(&fleet, 2).await;
    let cleo = begin(&fleet, "Cleo").await.finish().await;
    let message = cleo.refused(503);
    assert!(message.contains("wait for room"), "{message}");
    let seconds: u32 = cleo.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(refused(&fleet, "full").await, 1);
    // Another model's worker takes what it can, and then its requests wait, too.
    let closed = Gate::new();
    let rule = Rule::on(Leg::Local).about("Occupant").gate(&closed);
    fleet.engine("b").script(rule);
    let occupant = fleet
        .begin("/v1/completions", body("Occupant", "other"))
        .await;
    closed.reached(1).await;
    let dora = fleet.begin("/v1/completions", body("Dora", "other")).await;
    let message = bob.finish().await.refused(503);
    assert!(message.contains("this model"), "{message}");
    assert_eq!(refused(&fleet, "gave_way").await, 1);
    queued(&fleet, 2).await;
    gate.open();
    closed.open();
    for exchange in [first, ada, occupant, dora] {
        exchange.finish().await.served();
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_longer_than_he_may() {
    let setup = narrow(Setup::new().plain("a"));
    let fleet = setup.router(&["--max-wait-s", "1"]).start().await;
    let (gate, first) = occupy(&fleet, &["a"], "First").await;
    let ada = begin(&fleet, "Ada").await.finish().await;
    let message = ada.refused(503);
    assert!(message.contains("has waited for"), "{message}");
    assert_eq!(refused(&fleet, "waited").await, 1);
    assert!(seen(&fleet, "a", &["Ada"]).is_empty(), "no engine saw it");
    gate.open();
    first.finish().await.served();
    fleet.finish().await;
}

/// An engine that has shown how long its sequences take.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_predicted_to_be_too_long_is_refused_at_once() {
    let slow = Config {
        speed: Speed {
            step: 20e6,
            ..Speed::INSTANT
        },
        ..Config::new(None)
    };
    let setup = narrow(Setup::new().worker("a", slow));
    let fleet = setup.router(&["--max-wait-s", "2"]).start().await;
    for number in 0..9 {
        let body = body(&format!("Number {number}"), "tiny")
            .replace("\"max_tokens\":2", "\"max_tokens\":9,\"ignore_eos\":true");
        fleet.complete(body).await.served();
    }
    let (gate, first) = occupy(&fleet, &["a"], "First").await;
    let ada = begin(&fleet, "Ada").await.finish().await;
    let message = ada.refused(503);
    assert!(
        message.contains("would have to wait for about"),
        "{message}"
    );
    let seconds: u32 = ada.header("retry-after").unwrap().parse().unwrap();
    assert!(seconds >= 1);
    assert_eq!(refused(&fleet, "too_long").await, 1);
    gate.open();
    first.finish().await.served();
    fleet.finish().await;
}

/// KV that is prefilled for a decode worker without room would only be held, and its lease could end.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_prefilled_for_who_cannot_decode_it() {
    let fleet = narrow(Setup::split()).start().await;
    let gate = Gate::new();
    let rule = Rule::on(Leg::Decode).about("First").gate(&gate);
    fleet.engine("d0").script(rule);
    let first = begin(&fleet, "First").await;
    gate.reached(1).await;
    let ada = begin(&fleet, "Ada").await;
    queued(&fleet, 1).await;
    assert_eq!(fleet.engine("p0").seen_of(Leg::Prefill).len(), 1);
    gate.open();
    first.finish().await.served();
    ada.finish().await.served();
    assert_eq!(fleet.engine("p0").seen_of(Leg::Prefill).len(), 2);
    fleet.gave_back("p0").await;
    fleet.finish().await;
}

/// A place on the decode side is taken from the moment of the plan, not only when the KV is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_place_is_kept_while_the_prompt_is_computed() {
    let fleet = narrow(Setup::split()).start().await;
    let gate = Gate::new();
    let rule = Rule::on(Leg::Prefill).about("First").gate(&gate);
    fleet.engine("p0").script(rule);
    let first = begin(&fleet, "First").await;
    gate.reached(1).await;
    let ada = begin(&fleet, "Ada").await;
    queued(&fleet, 1).await;
    gate.open();
    first.finish().await.served();
    ada.finish().await.served();
    let order = ["First", "Ada"];
    assert_eq!(seen(&fleet, "d0", &order), order);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn room_for_kv_is_what_the_engine_reports() {
    let small = Config {
        blocks: 33,
        speed: Speed {
            step: 5e6,
            ..Speed::INSTANT
        },
        ..Config::new(None)
    };
    let fleet = Setup::new().worker("a", small).start().await;
    let long = async |name: &str, first: u32| {
        let prompt: Vec<u32> = (first..first + 700).collect();
        let body = json!({
            "model": "tiny", "prompt": prompt, "user": name,
            "max_tokens": 100, "ignore_eos": true, "stream": true,
        });
        fleet.begin("/v1/completions", body.to_string()).await
    };
    let mut first = long("First", 40).await;
    first.until("data: ").await;
    fleet.engine("a").freeze(true);
    until("the engine to report its blocks", || async {
        let load = fleet.worker_view("a").await["load"].clone();
        load["free"]["value"][0]["blocks"].as_u64() < Some(20)
    })
    .await;
    let ada = long("Ada", 50).await;
    queued(&fleet, 1).await;
    assert!(seen(&fleet, "a", &["Ada"]).is_empty());
    fleet.engine("a").freeze(false);
    first.finish().await.served();
    ada.finish().await.served();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_queue_engines_have_all_requests_at_once() {
    let setup = narrow(Setup::new().plain("a"));
    let fleet = setup.router(&["--max-queued", "0"]).start().await;
    let (gate, first) = occupy(&fleet, &["a"], "First").await;
    let ada = begin(&fleet, "Ada").await.finish();
    let ada = tokio::time::timeout(Duration::from_secs(20), ada)
        .await
        .unwrap();
    ada.served();
    gate.open();
    first.finish().await.served();
    fleet.finish().await;
}

//! Handoffs between emulated SGLang engines, through the whole fleet: what the engines alone make of each failure (their own
//! table is in `emulated_sglang.rs`), and what Baton makes of it instead.
//!
//! The engines here notice a closed connection, a lost peer and a wait that is too long only after a test would have given up:
//! whatever ends in time was ended by Baton.

use std::collections::HashSet;

use baton_integration::client::{Answer, Exchange};
use baton_integration::emulated::model;
use baton_integration::emulated::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::sglang::{Config, Mode, Patience};
use baton_integration::emulated::vllm::Fate;
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "Two engines meet in a room that nobody has used before and nobody will use again.";

/// An engine that notices nothing by itself.
fn engine(mode: Mode) -> Config {
    let never = 10 * wait::PATIENCE;
    Config {
        patience: Patience {
            bootstrap: never,
            waiting: never,
            heartbeat: never,
            disconnect_poll: never,
            ..Patience::REAL.scaled(0.001)
        },
        dies_of_used_rooms: true,
        ..Config::new(mode)
    }
}

fn fleet_of<'a>(workers: impl IntoIterator<Item = (&'a str, Config)>) -> Setup {
    let setup = Setup::new();
    workers
        .into_iter()
        .fold(setup, |setup, (name, config)| setup.worker(name, config))
}

/// One prefill and one decode worker.
async fn pair() -> Fleet {
    let workers = [("p0", engine(Mode::Prefill)), ("d0", engine(Mode::Decode))];
    fleet_of(workers).start().await
}

/// Waits until nobody wants anything any more, and no ticket is left of which KV could be held.
async fn rests(fleet: &Fleet, names: &[&str]) {
    fleet.quiet().await;
    for name in names {
        fleet.gave_back(name).await;
    }
}

/// The rooms that a worker's engine was given.
fn rooms(fleet: &Fleet, name: &str) -> Vec<u64> {
    let seen = fleet.emulated(name).seen();
    let rooms = seen
        .iter()
        .map(|seen| seen.json()["bootstrap_room"].as_u64());
    rooms.map(Option::unwrap).collect()
}

fn no_room_came_twice(fleet: &Fleet, prefill: &[&str]) {
    let rooms: Vec<u64> = prefill.iter().flat_map(|name| rooms(fleet, name)).collect();
    let different: HashSet<&u64> = rooms.iter().collect();
    assert_eq!(different.len(), rooms.len(), "{rooms:?}");
}

async fn begin(fleet: &Fleet, body: &Value) -> Exchange {
    fleet.begin("/v1/completions", body.to_string()).await
}

async fn complete(fleet: &Fleet, body: &Value) -> Answer {
    fleet.complete(body.to_string()).await
}

fn asks(prompt: &str, tokens: usize, stream: bool) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

fn right(answer: &Answer, prompt: &str, tokens: usize) {
    assert_eq!(answer.served().generated(), model::text(prompt, tokens));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_say_what_one_says() {
    let fleet = pair().await;
    for (number, (stream, tokens)) in [(false, 6), (true, 6), (false, 1), (true, 1)]
        .into_iter()
        .enumerate()
    {
        let prompt = format!("{PROMPT} {number}");
        let answer = complete(&fleet, &asks(&prompt, tokens, stream)).await;
        right(&answer, &prompt, tokens);
    }
    let [prefill, decode] = [("p0", Leg::Prefill), ("d0", Leg::Decode)]
        .map(|(name, leg)| fleet.emulated(name).seen_of(leg));
    assert_eq!((prefill.len(), decode.len()), (4, 4));
    assert_eq!(rooms(&fleet, "p0"), rooms(&fleet, "d0"));
    for (prefill, decode) in prefill.iter().zip(&decode) {
        assert_ne!(prefill.json()["rid"], decode.json()["rid"]);
        assert_eq!(prefill.json()["stream"], false);
    }
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets_ended_total", &[("end", "settled")]),
        4
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_serve_alone_and_cannot_be_split_is_refused_with_the_reason() {
    let fleet = pair().await;
    let mut body = asks(PROMPT, 4, false);
    body["n"] = json!(2);
    let message = complete(&fleet, &body).await.refused(503);
    assert!(message.contains("several choices are wanted"), "{message}");
    assert!(rooms(&fleet, "p0").is_empty());
    fleet.finish().await;
}

/// The engines alone: decode is not told and waits for 300 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_prefill_refuses_is_the_clients_to_hear_of_at_once() {
    let short = Config {
        context_length: 40,
        ..engine(Mode::Prefill)
    };
    let fleet = fleet_of([("p0", short), ("d0", engine(Mode::Decode))])
        .start()
        .await;
    for stream in [false, true] {
        let answer = complete(&fleet, &asks(PROMPT, 6, stream)).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(
            answer
                .text()
                .contains("longer than the model's context length"),
            "{}",
            answer.text()
        );
    }
    rests(&fleet, &["p0", "d0"]).await;
    let decoded = fleet.emulated("d0").seen_of(Leg::Decode);
    assert!(decoded.iter().all(|seen| seen.fate() != Fate::Running));
    fleet.finish().await;
}

/// The engines alone: decode notices after two heartbeats, and says 500.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_dies_before_the_first_token_costs_no_answer() {
    for stream in [false, true] {
        let workers = [
            ("p0", engine(Mode::Prefill)),
            ("p1", engine(Mode::Prefill)),
            ("d0", engine(Mode::Decode)),
        ];
        let fleet = fleet_of(workers).start().await;
        let (gates, names) = ([Gate::new(), Gate::new()], ["p0", "p1"]);
        for (name, gate) in names.iter().zip(&gates) {
            fleet
                .emulated(name)
                .script(Rule::on(Leg::Prefill).gate(gate));
        }
        let exchange = begin(&fleet, &asks(PROMPT, 6, stream)).await;
        fleet.emulated("d0").saw(Leg::Decode, Fate::Running).await;
        let dies = tokio::select! {
            () = gates[0].reached(1) => 0,
            () = gates[1].reached(1) => 1,
        };
        gates[1 - dies].open();
        fleet.emulated(names[dies]).kill().await;
        right(&exchange.finish().await, PROMPT, 6);
        assert_eq!(fleet.emulated("d0").seen_of(Leg::Decode).len(), 2);
        rests(&fleet, &[names[1 - dies], "d0"]).await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_prefill_engine_that_dies_is_an_honest_error_soon() {
    let fleet = pair().await;
    fleet
        .emulated("p0")
        .script(Rule::on(Leg::Prefill).fault(Fault::Die));
    let answer = complete(&fleet, &asks(PROMPT, 6, true)).await;
    assert!(answer.status >= 500, "{}", answer.text());
    rests(&fleet, &["d0"]).await;
    fleet.finish().await;
}

/// A prefill that fails once is computed anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_is_repaired_without_a_trace() {
    let fleet = pair().await;
    let words = json!({"object": "error", "message": "out of luck", "type": "500", "param": null, "code": 500});
    let abort = Fault::answer(|answer| answer["choices"][0]["finish_reason"] = json!("abort"));
    let faults = [
        Fault::Status(500, words.to_string()),
        Fault::Reset,
        Fault::EmptyOk,
        Fault::Truncated,
        abort,
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        fleet
            .emulated("p0")
            .script(Rule::on(Leg::Prefill).fault(fault));
        let prompt = format!("{PROMPT} {number}");
        right(
            &complete(&fleet, &asks(&prompt, 6, number % 2 == 0)).await,
            &prompt,
            6,
        );
    }
    fleet.finish().await;
}

/// The engines alone: a stream is a 200 with an abort inside.
#[tokio::test(flavor = "multi_thread")]
async fn a_200_with_an_abort_inside_is_no_answer() {
    let fleet = pair().await;
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).fault(Fault::Finish("abort")).times(2));
    for stream in [false, true] {
        let prompt = format!("{PROMPT} {stream}");
        right(
            &complete(&fleet, &asks(&prompt, 6, stream)).await,
            &prompt,
            6,
        );
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_token_a_prefill_engine_that_dies_hurts_no_stream() {
    let fleet = pair().await;
    let gate = Gate::new();
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let exchange = begin(&fleet, &asks(PROMPT, 6, true)).await;
    gate.reached(1).await;
    fleet.emulated("p0").kill().await;
    gate.open();
    right(&exchange.finish().await, PROMPT, 6);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_that_dies_before_its_first_token_costs_no_answer() {
    let workers = [
        ("p0", engine(Mode::Prefill)),
        ("d0", engine(Mode::Decode)),
        ("d1", engine(Mode::Decode)),
    ];
    let fleet = fleet_of(workers).start().await;
    let gate = Gate::new();
    fleet
        .emulated("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    for name in ["d0", "d1"] {
        fleet
            .emulated(name)
            .script(Rule::on(Leg::Decode).about("doomed").fault(Fault::Die));
    }
    let first = begin(&fleet, &asks("doomed", 6, false)).await;
    let dead = || {
        ["d0", "d1"]
            .iter()
            .filter(|name| !fleet.emulated(name).is_alive())
            .count()
    };
    wait::until("a decode engine to die", || async { dead() > 0 }).await;
    fleet.emulated("d0").behave();
    fleet.emulated("d1").behave();
    gate.open();
    right(&first.finish().await, "doomed", 6);
    assert_eq!(dead(), 1);
    fleet.finish().await;
}

/// The engines alone: each leg is noticed to be unwanted at the next look, four seconds apart, or never.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_both_legs_by_name() {
    let fleet = pair().await;
    for (number, reset) in [false, true].into_iter().enumerate() {
        // Prefill has its room, and decode does not come.
        let gate = Gate::new();
        fleet
            .emulated("d0")
            .script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = begin(&fleet, &asks(&format!("{PROMPT} {number}"), 6, reset)).await;
        gate.reached(1).await;
        fleet.emulated("p0").saw(Leg::Prefill, Fate::Running).await;
        if reset {
            exchange.vanish();
        } else {
            drop(exchange);
        }
        rests(&fleet, &["p0", "d0"]).await;
        gate.open();
        // Decode has its room, and prefill does not come.
        let gate = Gate::new();
        fleet
            .emulated("p0")
            .script(Rule::on(Leg::Prefill).gate(&gate));
        let exchange = begin(&fleet, &asks(&format!("{PROMPT} {number}"), 6, reset)).await;
        gate.reached(1).await;
        fleet.emulated("d0").saw(Leg::Decode, Fate::Running).await;
        drop(exchange);
        rests(&fleet, &["p0", "d0"]).await;
        gate.open();
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_its_stream_ends_it_in_the_engine_by_name() {
    let fleet = pair().await;
    let gate = Gate::new();
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let exchange = begin(&fleet, &asks(PROMPT, 400, true)).await;
    gate.reached(1).await;
    drop(exchange);
    gate.open();
    rests(&fleet, &["p0", "d0"]).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_leaves_nothing_in_either_engine() {
    let mut fleet = pair().await;
    let gate = Gate::new();
    fleet
        .emulated("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    let exchange = begin(&fleet, &asks(PROMPT, 6, false)).await;
    gate.reached(1).await;
    fleet.emulated("d0").saw(Leg::Decode, Fate::Running).await;
    fleet.take_router(0).kill();
    rests(&fleet, &["p0", "d0"]).await;
    gate.open();
    assert!(exchange.closed_silently().await);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_comes_back_uses_no_room_of_its_last_life() {
    let mut fleet = pair().await;
    for life in 0..3 {
        let prompt = format!("{PROMPT} {life}");
        right(
            &complete(&fleet, &asks(&prompt, 3, false)).await,
            &prompt,
            3,
        );
        fleet.take_sidecar("p0").kill();
        fleet.start_sidecar("p0").await;
        fleet.all_ready().await;
    }
    assert_eq!(rooms(&fleet, "p0").len(), 3);
    no_room_came_twice(&fleet, &["p0"]);
    fleet.finish().await;
}

/// The engines alone: both wait for 300 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_stands_still_is_left() {
    let workers = [
        ("p0", engine(Mode::Prefill)),
        ("p1", engine(Mode::Prefill)),
        ("d0", engine(Mode::Decode)),
    ];
    let fleet = fleet_of(workers).start().await;
    let gates = [Gate::new(), Gate::new()];
    for (name, gate) in ["p0", "p1"].iter().zip(&gates) {
        fleet
            .emulated(name)
            .script(Rule::on(Leg::Prefill).gate(gate));
    }
    let exchange = begin(&fleet, &asks(PROMPT, 6, true)).await;
    let stands = tokio::select! {
        () = gates[0].reached(1) => 0,
        () = gates[1].reached(1) => 1,
    };
    gates[1 - stands].open();
    // Its sidecar falls silent with it.
    let name = ["p0", "p1"][stands];
    let pause = fleet.sidecar_process(name).pause().await;
    right(&exchange.finish().await, PROMPT, 6);
    drop(pause);
    gates[stands].open();
    rests(&fleet, &["p0", "p1", "d0"]).await;
    no_room_came_twice(&fleet, &["p0", "p1"]);
    fleet.finish().await;
}

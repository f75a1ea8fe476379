//! Handoffs between emulated TensorRT-LLM engines, through the whole fleet. The engines are emulated from paper: what is shown is
//! that the sidecar copes with what was read in their sources.

use std::collections::HashSet;
use std::time::Duration;

use baton_integration::client::{self, Answer, Exchange};
use baton_integration::emulated::model;
use baton_integration::emulated::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::trtllm::{Auth, Config, Era, Patience, ServerRole, Transceiver};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "Whoever computes this prompt answers before anybody has fetched a byte of it.";

/// An engine that holds KV for longer than any test takes, and notices soon that a client has left.
fn engine(era: Era, role: ServerRole) -> Config {
    Config {
        role,
        patience: Patience {
            transfer: Some(10 * wait::PATIENCE),
            ..Patience::real(era).scaled(0.05)
        },
        ..Config::new(era)
    }
}

fn fleet_of<'a>(workers: impl IntoIterator<Item = (&'a str, Config)>) -> Setup {
    let setup = Setup::new().router(&["--force", "split"]);
    workers
        .into_iter()
        .fold(setup, |setup, (name, config)| setup.worker(name, config))
}

fn pair_of(era: Era) -> [(&'static str, Config); 2] {
    [
        ("p0", engine(era, ServerRole::Context)),
        ("d0", engine(era, ServerRole::Generation)),
    ]
}

async fn pair(era: Era) -> Fleet {
    fleet_of(pair_of(era)).start().await
}

async fn complete(fleet: &Fleet, body: &Value) -> Answer {
    fleet.complete(body.to_string()).await
}

async fn begin(fleet: &Fleet, body: &Value) -> Exchange {
    fleet.begin("/v1/completions", body.to_string()).await
}

fn asks(prompt: &str, tokens: usize, stream: bool) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

fn right(answer: &Answer, prompt: &str, tokens: usize) {
    assert_eq!(answer.served().generated(), model::text(prompt, tokens));
}

/// What an engine was told of each handoff.
fn params(fleet: &Fleet, name: &str, leg: Leg) -> Vec<Value> {
    let seen = fleet.emulated(name).seen_of(leg);
    let params = seen
        .iter()
        .map(|seen| seen.json()["disaggregated_params"].clone());
    params.collect()
}

/// Tickets that ended so.
async fn ended(fleet: &Fleet, end: &str) -> i64 {
    let page = fleet.sidecar_page("p0").await;
    page.sum("baton_sidecar_tickets_ended_total", &[("end", end)])
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_say_what_one_says() {
    for era in [Era::V12, Era::Main] {
        let fleet = pair(era).await;
        for (number, stream) in [false, true, false].into_iter().enumerate() {
            let prompt = format!("{PROMPT} {number}");
            let answer = complete(&fleet, &asks(&prompt, 6, stream)).await;
            right(&answer, &prompt, 6);
        }
        let context = params(&fleet, "p0", Leg::Prefill);
        let generation = params(&fleet, "d0", Leg::Decode);
        assert_eq!((context.len(), generation.len()), (3, 3));
        let ids = context
            .iter()
            .map(|params| params["disagg_request_id"].as_u64().unwrap());
        let ids: HashSet<u64> = ids.collect();
        assert!(
            ids.len() == 3 && ids.iter().all(|id| *id >= 1 << 40),
            "{ids:?}"
        );
        for (context, generation) in context.iter().zip(&generation) {
            assert_eq!(
                context["disagg_request_id"],
                generation["disagg_request_id"]
            );
            assert_eq!(generation["request_type"], "generation_only");
            assert!(generation["encoded_opaque_state"].is_string());
        }
        // Tokens are made once.
        let decoded = fleet.emulated("d0").seen_of(Leg::Decode);
        assert!(decoded.iter().all(|seen| seen.json()["prompt"].is_array()));
        assert_eq!(ended(&fleet, "settled").await, 3);
        assert_eq!(fleet.emulated("p0").holds(), 0, "decode has fetched it all");
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_handed_over_with_its_tokens() {
    let fleet = pair(Era::Main).await;
    let body = json!({"model": "tiny", "max_tokens": 5, "temperature": 0, "stream": true,
        "messages": [{"role": "user", "content": PROMPT}]});
    let body = body.to_string();
    let split = fleet.chat(&body).await;
    let decoded = fleet.emulated("d0").only(Leg::Decode).json();
    assert!(decoded["prompt_token_ids"].is_array() && decoded["messages"].is_array());
    let alone = client::call(
        fleet.emulated("p0").address(),
        "POST",
        "/v1/chat/completions",
        &[("content-type", "application/json")],
        body.as_bytes(),
    );
    assert_eq!(split.served().generated(), alone.await.served().generated());
    fleet.finish().await;
}

/// Null or empty first tokens end a generation engine.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_a_generation_engine_is_never_sent_to_one() {
    let fleet = pair(Era::Main).await;
    for (number, first) in [json!(null), json!([])].into_iter().enumerate() {
        let fault = Fault::params(move |params| params["first_gen_tokens"] = first.clone());
        fleet
            .emulated("p0")
            .script(Rule::on(Leg::Prefill).fault(fault));
        let prompt = format!("{PROMPT} {number}");
        right(
            &complete(&fleet, &asks(&prompt, 6, false)).await,
            &prompt,
            6,
        );
    }
    assert!(fleet.emulated("d0").is_alive());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_another_prefill_is_none() {
    let fleet = pair(Era::Main).await;
    let fault = Fault::params(|params| params["disagg_request_id"] = json!(1_u64 << 41));
    fleet
        .emulated("p0")
        .script(Rule::on(Leg::Prefill).fault(fault));
    right(&complete(&fleet, &asks(PROMPT, 6, false)).await, PROMPT, 6);
    let handed = params(&fleet, "d0", Leg::Decode);
    assert!(
        handed
            .iter()
            .all(|params| params["disagg_request_id"] != 1_u64 << 41)
    );
    fleet.finish().await;
}

/// The engines say 400 to a lost transfer.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_fails_is_not_the_clients_fault() {
    let fleet = pair(Era::Main).await;
    for (number, message) in [
        "Generation failed: Error in kv cache transfer for generation requests",
        "Generation failed: Request 42 timed out",
    ]
    .into_iter()
    .enumerate()
    {
        let body = json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400});
        let fault = Fault::Status(400, body.to_string());
        fleet
            .emulated("d0")
            .script(Rule::on(Leg::Decode).fault(fault));
        let prompt = format!("{PROMPT} {number}");
        right(&complete(&fleet, &asks(&prompt, 6, true)).await, &prompt, 6);
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_did_wrong_it_is_told() {
    let fleet = pair(Era::Main).await;
    let answer = complete(&fleet, &asks(PROMPT, 100_000, false)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("max_seq_len"), "{}", answer.text());
    let mut body = asks(PROMPT, 4, false);
    body["disaggregated_params"] = json!({"request_type": "context_only"});
    let message = complete(&fleet, &body).await.refused(400);
    assert!(message.contains("disaggregated_params"), "{message}");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_is_repaired_without_a_trace() {
    let fleet = pair(Era::Main).await;
    let words = json!({"object": "error", "message": "executor is gone", "type": "BadRequestError", "param": null, "code": 400});
    let faults = [
        Fault::Status(400, words.to_string()),
        Fault::Reset,
        Fault::EmptyOk,
        Fault::Truncated,
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

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_is_started_anew_between_the_legs_costs_no_answer() {
    let fleet = pair(Era::Main).await;
    let gate = Gate::new();
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = begin(&fleet, &asks(PROMPT, 6, true)).await;
    gate.reached(1).await;
    let before = fleet.worker_view("p0").await["incarnation"].clone();
    fleet.trtllm("p0").restart().await;
    let after = || async {
        let now = fleet.worker_view("p0").await["incarnation"].clone();
        now.is_string() && now != before
    };
    wait::until("the new life to be noticed", after).await;
    gate.open();
    right(&exchange.finish().await, PROMPT, 6);
    assert_eq!(ended(&fleet, "voided").await, 1);
    fleet.finish().await;
}

/// Nothing gives KV back to these engines: it is held until their timeout, and counted.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_leaves_behind_is_held_for_as_long_as_the_engine_holds_it_and_counted() {
    let mut workers = pair_of(Era::Main);
    for (_, config) in &mut workers {
        config.patience.transfer = Some(Duration::from_secs(4));
    }
    let fleet = fleet_of(workers).start().await;
    let gate = Gate::new();
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = begin(&fleet, &asks(PROMPT, 6, true)).await;
    gate.reached(1).await;
    exchange.vanish();
    let held = || async { fleet.worker_view("p0").await["load"]["handoffs_held"]["value"] == 1 };
    wait::until("it to be counted as held", held).await;
    assert_eq!(fleet.stranded("p0").await, 0);
    let stranded = || async { fleet.stranded("p0").await == 1 };
    wait::until("the lease to end", stranded).await;
    gate.open();
    fleet.quiet().await;
    let freed = || async { fleet.emulated("p0").holds() == 0 };
    wait::until("the engine to let go", freed).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_vouch_for_each_other_are_vouched_for() {
    let mut workers = pair_of(Era::Main);
    for (_, config) in &mut workers {
        config.auth = Auth::Key("a key of the fleet".to_owned());
    }
    let fleet = fleet_of(workers).start().await;
    right(&complete(&fleet, &asks(PROMPT, 6, false)).await, PROMPT, 6);
    let seen = fleet.emulated("d0").only(Leg::Decode);
    assert!(
        seen.headers
            .iter()
            .any(|(name, _)| name == "x-trtllm-disagg-auth")
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_missing_is_not_the_clients_fault() {
    let mut workers = pair_of(Era::Main);
    workers[1].1.auth = Auth::Required;
    let fleet = fleet_of(workers).start().await;
    let answer = complete(&fleet, &asks(PROMPT, 6, false)).await;
    assert_ne!(answer.status, 400, "{}", answer.text());
    fleet.finish().await;
}

/// A chat's stream that fails ends without a word; a completion's goes on to `[DONE]`, twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_too_early_is_an_honest_error() {
    let fleet = pair(Era::Main).await;
    fleet
        .emulated("d0")
        .script(Rule::on(Leg::Decode).fault(Fault::EndEarly(2)));
    let answer = complete(&fleet, &asks(PROMPT, 6, true)).await;
    let text = answer.text();
    assert!(
        text.contains("\"error\"") && !text.contains("[DONE]"),
        "{text}"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decode_can_be_asked_first_where_the_engine_says_where_it_is() {
    let mut workers = pair_of(Era::Main);
    for (_, config) in &mut workers {
        config.transceiver = Some(Transceiver::Python);
    }
    let setup = fleet_of(workers).sidecars(&["--generation-first"]);
    let fleet = setup.start().await;
    for (number, stream) in [false, true].into_iter().enumerate() {
        let prompt = format!("{PROMPT} {number}");
        right(
            &complete(&fleet, &asks(&prompt, 6, stream)).await,
            &prompt,
            6,
        );
    }
    for leg in [
        params(&fleet, "p0", Leg::Prefill),
        params(&fleet, "d0", Leg::Decode),
    ] {
        assert!(
            leg.iter().all(|params| params["schedule_style"] == 1),
            "{leg:?}"
        );
    }
    fleet.finish().await;
}

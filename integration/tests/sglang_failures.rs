//! What goes wrong around emulated SGLang engines beside the handoff itself: lives at an old address, clients that leave a prompt
//! that is being computed, requests that cannot be split, and prompts that the engine makes in its own way.

use std::collections::HashSet;
use std::time::Duration;

use baton_integration::client::{Answer, Exchange};
use baton_integration::emulated::model;
use baton_integration::emulated::script::{Gate, Leg, Rule};
use baton_integration::emulated::sglang::{Config, Mode, Patience};
use baton_integration::emulated::vllm::{EngineId, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;
use serde_json::{Value, json};

const PROMPT: &str = "An engine is back where another one was, and some do not know it yet.";

/// The recorded model, whose files are there.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/sglang/model");

/// Between two heartbeats of an engine that looks often.
const HEARTBEAT: Duration = Duration::from_millis(20);

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(1 << 20);

/// An engine that notices by heartbeats alone that a prefill engine is gone.
fn engine(mode: Mode, heartbeat: Duration) -> Config {
    Config {
        patience: Patience {
            bootstrap: NEVER,
            waiting: NEVER,
            heartbeat,
            disconnect_poll: NEVER,
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

fn pair(heartbeat: Duration) -> Setup {
    fleet_of([
        ("p0", engine(Mode::Prefill, heartbeat)),
        ("d0", engine(Mode::Decode, heartbeat)),
    ])
}

fn asks(prompt: &str, tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0})
}

async fn complete(fleet: &Fleet, body: &Value) -> Answer {
    fleet.complete(body.to_string()).await
}

fn right(answer: &Answer, prompt: &str, tokens: usize) {
    assert_eq!(answer.served().generated(), model::text(prompt, tokens));
}

/// Waits until nobody wants anything any more, and nothing is held.
async fn rests(fleet: &Fleet, names: &[&str]) {
    fleet.quiet().await;
    for name in names {
        fleet.gave_back(name).await;
    }
}

/// Ends the engine of `p0` and starts it again where it was, once decode has missed it or at once; returns when the new life is
/// known.
async fn comes_back(fleet: &Fleet, is_missed: bool) {
    let before = fleet.worker_view("p0").await["incarnation"].clone();
    let prefill = fleet.sglang("p0");
    prefill.kill().await;
    if is_missed {
        let decode = fleet.sglang("d0");
        until("decode to miss its prefill", || async {
            decode.knows_of(prefill.bootstrap()).is_none()
        })
        .await;
    }
    fleet.emulated("p0").restart(EngineId::Same).await;
    until("the new life to be known", || async {
        let worker = fleet.worker_view("p0").await;
        worker["state"] == "ready" && worker["incarnation"] != before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_comes_back_at_its_address_is_met_anew() {
    let fleet = pair(HEARTBEAT).start().await;
    right(&complete(&fleet, &asks(PROMPT, 4)).await, PROMPT, 4);
    comes_back(&fleet, true).await;
    right(&complete(&fleet, &asks(PROMPT, 6)).await, PROMPT, 6);
    rests(&fleet, &["p0", "d0"]).await;
    fleet.finish().await;
}

/// Decode waits for KV of a life that is over, while the next one is there already.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_is_restarted_between_the_legs_costs_no_answer() {
    let workers = ["p0", "p1"].map(|name| (name, engine(Mode::Prefill, HEARTBEAT)));
    let decode = [("d0", engine(Mode::Decode, HEARTBEAT))];
    let fleet = fleet_of(workers.into_iter().chain(decode)).start().await;
    let (gates, names) = ([Gate::new(), Gate::new()], ["p0", "p1"]);
    for (name, gate) in names.iter().zip(&gates) {
        let rule = Rule::on(Leg::Prefill).gate(gate);
        fleet.emulated(name).script(rule);
    }
    let body = asks(PROMPT, 6).to_string();
    let exchange = fleet.begin("/v1/completions", body).await;
    fleet.emulated("d0").saw(Leg::Decode, Fate::Running).await;
    let chosen = tokio::select! {
        () = gates[0].reached(1) => 0,
        () = gates[1].reached(1) => 1,
    };
    fleet.emulated(names[chosen]).restart(EngineId::Same).await;
    gates.iter().for_each(Gate::open);
    right(&exchange.finish().await, PROMPT, 6);
    rests(&fleet, &["p0", "p1", "d0"]).await;
    fleet.finish().await;
}

/// The engines alone: whoever is back before decode has missed it is taken for who it was, and decode waits for 300 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_nobody_has_missed_is_met_anew_under_another_spelling() {
    let fleet = pair(NEVER).start().await;
    right(&complete(&fleet, &asks(PROMPT, 4)).await, PROMPT, 4);
    let mut hosts = HashSet::new();
    for life in 0..3 {
        comes_back(&fleet, false).await;
        let prompt = format!("{PROMPT} {life}");
        right(&complete(&fleet, &asks(&prompt, 6)).await, &prompt, 6);
        let decoded = fleet.emulated("d0").seen_of(Leg::Decode);
        let host = decoded.last().unwrap().json()["bootstrap_host"].to_string();
        assert!(hosts.insert(host), "{hosts:?}");
    }
    rests(&fleet, &["p0", "d0"]).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_prompt_is_computed_ends_the_computing() {
    let small_steps = Config {
        chunked_prefill_size: 16,
        ..engine(Mode::Prefill, NEVER)
    };
    let workers = [("p0", small_steps), ("d0", engine(Mode::Decode, NEVER))];
    let fleet = fleet_of(workers).start().await;
    let (prefill, decode) = (fleet.sglang("p0"), fleet.sglang("d0"));
    // Its scheduler takes the prompt in, and no step.
    prefill.freeze(true);
    let prompt = PROMPT.repeat(8);
    let body = asks(&prompt, 6).to_string();
    let exchange = fleet.begin("/v1/completions", body).await;
    until("the prompt to be computed", || async {
        let stats = &prefill.stats()[0];
        stats.waiting + stats.running > 0
    })
    .await;
    drop(exchange);
    prefill.saw(Leg::Prefill, Fate::Answered).await;
    decode.saw(Leg::Decode, Fate::Answered).await;
    prefill.freeze(false);
    rests(&fleet, &["p0", "d0"]).await;
    assert!(
        prefill.stats()[0].computed_tokens < prompt.len() as u64,
        "{:?}",
        prefill.stats()
    );
    assert_eq!(decode.transferred_tokens(), 0);
    fleet.finish().await;
}

/// Prefill has its room, and decode does not come.
async fn waits_for_decode(fleet: &Fleet) -> (Exchange, Gate) {
    let gate = Gate::new();
    let rule = Rule::on(Leg::Decode).gate(&gate);
    fleet.emulated("d0").script(rule);
    let body = asks(PROMPT, 6).to_string();
    let exchange = fleet.begin("/v1/completions", body).await;
    gate.reached(1).await;
    fleet.emulated("p0").saw(Leg::Prefill, Fate::Running).await;
    (exchange, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_that_comes_before_its_request_is_said_again() {
    let fleet = pair(NEVER).start().await;
    let (exchange, gate) = waits_for_decode(&fleet).await;
    for name in ["p0", "d0"] {
        fleet.sglang(name).hear_too_early(1);
    }
    drop(exchange);
    rests(&fleet, &["p0", "d0"]).await;
    gate.open();
    fleet.finish().await;
}

/// It drains for as long as it may, and then its engine is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_ends_leaves_no_leg_in_its_engine() {
    let mut fleet = pair(NEVER).start().await;
    let (exchange, gate) = waits_for_decode(&fleet).await;
    fleet.take_sidecar("p0").stop().await.unwrap();
    until("the engine to be idle", || async {
        fleet.emulated("p0").working_on() == 0
    })
    .await;
    drop(exchange);
    gate.open();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_choices_and_several_prompts_are_one_request_of_one_engine() {
    let whole = [("s", Config::new(Mode::Null))];
    let legs = [
        ("p0", engine(Mode::Prefill, NEVER)),
        ("d0", engine(Mode::Decode, NEVER)),
    ];
    let fleet = fleet_of(legs.into_iter().chain(whole)).start().await;
    let mut several = asks(PROMPT, 4);
    several["n"] = json!(3);
    let mut batch = asks(PROMPT, 4);
    batch["prompt"] = json!([PROMPT, "another one", "a third"]);
    for body in [several, batch] {
        let answer = complete(&fleet, &body).await.served().json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 3, "{answer}");
        assert_eq!(choices[0]["text"], model::text(PROMPT, 4));
        let seen = fleet.emulated("s").take_seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(seen[0].json()["prompt"], body["prompt"]);
    }
    for name in ["p0", "d0"] {
        assert!(fleet.emulated(name).seen().is_empty());
    }
    fleet.finish().await;
}

/// Its way with tools is its own: what its files say of a chat with tools is not what it computes.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_writes_tools_in_its_own_way_is_found_out() {
    for own_way in [false, true] {
        let config = Config {
            model: MODEL.to_owned(),
            context_length: 8192,
            own_way_with_tools: own_way,
            ..Config::new(Mode::Null)
        };
        let fleet = fleet_of([("s", config)]).start().await;
        let expected = if own_way { "unfit" } else { "exact" };
        let mode = || async { fleet.view().await["tokenizers"][0]["mode"].clone() };
        until("the tokenizer to be tried", || async {
            let mode = mode().await;
            mode == "exact" || mode == "unfit"
        })
        .await;
        assert_eq!(
            mode().await,
            expected,
            "{}",
            fleet.view().await["tokenizers"]
        );
        let shown = fleet.view().await["tokenizers"][0].clone();
        let why = shown["why"].as_str().unwrap_or_default();
        assert_eq!(why.contains("differ"), own_way, "{shown}");
        let tool = json!({"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}});
        let chat = json!({"model": "tiny", "max_tokens": 4, "tools": [tool],
            "messages": [{"role": "user", "content": "What time is it?"}]});
        fleet.chat(chat.to_string()).await.served();
        let page = fleet.router_page().await;
        let planned = |known| page.sum("baton_router_prompts_total", &[("known", known)]);
        let expected = if own_way { (0, 1) } else { (1, 0) };
        assert_eq!((planned("tokenised"), planned("no_tokenizer")), expected);
        fleet.finish().await;
    }
}

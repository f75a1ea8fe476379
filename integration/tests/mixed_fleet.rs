//! vLLM, SGLang and TensorRT-LLM engines of one model behind one router: whole requests anywhere, handoffs among engines of a
//! kind.

use baton_integration::client::{self, Answer};
use baton_integration::emulated::model;
use baton_integration::emulated::script::Leg;
use baton_integration::emulated::sglang::events::{Form, Format};
use baton_integration::emulated::trtllm::{self, Era, Patience, ServerRole};
use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::{sglang, vllm};
use baton_integration::fleet::{EngineConfig, Fleet, Kind, Setup, TOKEN};
use baton_integration::ports;
use baton_integration::wait::{PATIENCE, until};
use serde_json::{Value, json};

/// Tokens of a block of the vLLM engines, of a page of SGLang's, and of a block of TensorRT-LLM's.
const BLOCKS: (u32, u32, u32) = (16, 8, 10);

fn vllm(role: Option<&str>) -> vllm::Config {
    vllm::Config {
        block_size: BLOCKS.0,
        events: Some(vllm::EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://{}", ports::free())),
            topic: String::new(),
            buffer_steps: 100,
            hash_form: HashForm::Int,
        }),
        ..vllm::Config::new(role)
    }
}

fn sglang(mode: sglang::Mode) -> sglang::Config {
    sglang::Config {
        page_size: BLOCKS.1,
        events: Some(sglang::EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://*:{}", ports::free().port())),
            topic: String::new(),
            buffer_steps: 100,
            format: Format::Dynamo,
            form: Form::Maps,
        }),
        ..sglang::Config::new(mode)
    }
}

fn trtllm(role: ServerRole) -> trtllm::Config {
    trtllm::Config {
        role,
        tokens_per_block: BLOCKS.2,
        patience: Patience {
            transfer: Some(10 * PATIENCE),
            ..Patience::real(Era::Main).scaled(0.05)
        },
        ..trtllm::Config::new(Era::Main)
    }
}

/// Their names.
const KINDS: [&str; 3] = ["v", "s", "t"];

/// A worker of each kind that serves whole requests.
fn whole() -> [(&'static str, EngineConfig); 3] {
    [
        ("v", vllm(None).into()),
        ("s", sglang(sglang::Mode::Null).into()),
        ("t", trtllm(ServerRole::Alone).into()),
    ]
}

/// A pair of each kind.
fn pairs() -> [(&'static str, EngineConfig); 6] {
    [
        ("vp", vllm(Some("kv_producer")).into()),
        ("vd", vllm(Some("kv_consumer")).into()),
        ("sp", sglang(sglang::Mode::Prefill).into()),
        ("sd", sglang(sglang::Mode::Decode).into()),
        ("tp", trtllm(ServerRole::Context).into()),
        ("td", trtllm(ServerRole::Generation).into()),
    ]
}

fn fleet_of(workers: impl IntoIterator<Item = (&'static str, EngineConfig)>) -> Setup {
    let workers = workers.into_iter();
    workers.fold(Setup::new(), |setup, (name, config)| {
        setup.worker(name, config)
    })
}

fn prompt(number: u32) -> Vec<u32> {
    (0..120).map(|at| 40 + (at * (number + 3)) % 80).collect()
}

fn body(prompt: &[u32]) -> String {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": 5, "temperature": 0}).to_string()
}

async fn ask(fleet: &Fleet, prompt: &[u32]) -> Answer {
    fleet.complete(body(prompt)).await
}

fn right(answer: &Answer, prompt: &[u32]) {
    assert_eq!(answer.served().generated(), model::tokens_text(prompt, 5));
}

/// How many whole requests each kind was given.
fn served(fleet: &Fleet) -> [usize; 3] {
    KINDS.map(|name| legs(fleet, name, Leg::Local))
}

/// How many requests of this leg reached an engine.
fn legs(fleet: &Fleet, name: &str, leg: Leg) -> usize {
    fleet.emulated(name).seen_of(leg).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_requests_go_to_whichever_kind_holds_the_prompt() {
    let fleet = fleet_of(whole()).start().await;
    for number in 0..6 {
        let prompt = prompt(number);
        let before = served(&fleet);
        right(&ask(&fleet, &prompt).await, &prompt);
        let after = served(&fleet);
        let holder = (0..3).find(|kind| after[*kind] > before[*kind]);
        let holder = holder.expect("somebody served it");
        knows_of(&fleet, KINDS[holder], &prompt).await;
        for _ in 0..3 {
            right(&ask(&fleet, &prompt).await, &prompt);
        }
        let mut expected = before;
        expected[holder] += 4;
        let holder = KINDS[holder];
        assert_eq!(
            served(&fleet),
            expected,
            "prompt {number} is held by {holder}"
        );
    }
    fleet.finish().await;
}

/// Waits until the router is certain that a worker holds most of a prompt.
async fn knows_of(fleet: &Fleet, name: &str, prompt: &[u32]) {
    let body = body(prompt);
    until("the router to know who holds the prompt", || async {
        let plan = fleet.post("/v1/plan", &body).await.json();
        let candidates = plan["candidates"].as_array().cloned().unwrap_or_default();
        let cached = |candidate: &Value| {
            let cached = &candidate["cached"]["worker"];
            candidate["worker"] == name
                && cached["basis"] == "exact"
                && cached["tokens"].as_u64() >= Some(100)
        };
        candidates.iter().any(cached)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kv_is_handed_over_among_engines_of_a_kind_only() {
    let fleet = fleet_of(pairs())
        .router(&["--force", "split"])
        .start()
        .await;
    let view = fleet.view().await;
    for pair in view["pairs"].as_array().unwrap() {
        let [prefill, decode] = ["prefill", "decode"].map(|role| pair[role].as_str().unwrap());
        let why = pair["obstacle"].as_str();
        if prefill[..1] == decode[..1] {
            assert_eq!(why, None, "{pair}");
        } else {
            assert!(
                why.is_some_and(|why| why.contains("handoff differs")),
                "{pair}"
            );
        }
    }
    assert_eq!(view["pairs"].as_array().unwrap().len(), 9);
    for (number, pair) in ["vp,vd", "sp,sd", "tp,td"].into_iter().enumerate() {
        let prompt = prompt(number.try_into().unwrap());
        right(&ask_by(&fleet, &prompt, pair).await, &prompt);
    }
    for (name, leg) in [
        ("vp", Leg::Prefill),
        ("sp", Leg::Prefill),
        ("tp", Leg::Prefill),
        ("vd", Leg::Decode),
        ("sd", Leg::Decode),
        ("td", Leg::Decode),
    ] {
        assert_eq!(legs(&fleet, name, leg), 1, "{name}");
    }
    for impossible in ["vp,sd", "sp,vd", "tp,vd", "sp,td"] {
        let answer = ask_by(&fleet, &prompt(9), impossible).await;
        let message = answer.refused(503);
        assert!(message.contains("cannot be taken"), "{message}");
    }
    fleet.finish().await;
}

/// A gateway of the fleet asks for this pair.
async fn ask_by(fleet: &Fleet, prompt: &[u32], pair: &str) -> Answer {
    let (bearer, route) = (format!("Bearer {TOKEN}"), format!("split={pair}"));
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("baton-route", route.as_str()),
    ];
    let address = fleet.address();
    let asked = client::start(address, "POST", "/v1/completions", &headers, body(prompt));
    asked.await.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_engines_of_a_kind_are_dead_the_others_serve() {
    for dead in [Kind::Vllm, Kind::Sglang, Kind::Trtllm] {
        let fleet = fleet_of(whole().into_iter().chain(pairs())).start().await;
        let names = ["v", "vp", "vd", "s", "sp", "sd", "t", "tp", "td"];
        for number in 0..4 {
            let prompt = prompt(number);
            right(&ask(&fleet, &prompt).await, &prompt);
        }
        let all = names.into_iter().map(|name| fleet.emulated(name));
        for engine in all.filter(|engine| engine.kind() == dead) {
            engine.kill().await;
        }
        // At once, while nobody has noticed yet.
        for number in 0..12 {
            let prompt = prompt(number);
            right(&ask(&fleet, &prompt).await, &prompt);
        }
        fleet.finish().await;
    }
}

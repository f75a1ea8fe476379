//! Handoffs between emulated SGLang engines, through the whole fleet: what the engines alone make of each failure (their own
//! table is in `emulated_sglang.rs`), and what Baton makes of it instead.
//!
//! The engines here notice a closed connection, a lost peer and a wait that is too long only after a test would have given up:
//! whatever ends in time was ended by Baton.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use baton_integration::client::{self, Answer, Exchange};
use baton_integration::emulated::model;
use baton_integration::emulated::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::sglang::{Config, EmulatedSglang, Mode, Patience};
use baton_integration::emulated::vllm::Fate;
use baton_integration::fleet::{self, Daemon, TOKEN};
use baton_integration::page::Page;
use baton_integration::{panics, ports, wait};
use baton_sidecar_sglang::args::SglangArgs;
use baton_sidecar_sglang::engine::SglangEngine;
use clap::Parser;
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

struct Worker {
    name: String,
    engine: EmulatedSglang,
    address: SocketAddr,
    sidecar: Option<Daemon>,
}

struct Fleet {
    address: SocketAddr,
    router: Option<Daemon>,
    workers: Vec<Worker>,
}

impl Fleet {
    async fn of(workers: impl IntoIterator<Item = (&str, Config)>, flags: &[&str]) -> Self {
        panics::watch();
        let address = ports::free();
        let own = [
            "baton-router",
            "--listen",
            &address.to_string(),
            "--token",
            TOKEN,
            "--linger-s",
            "0",
        ];
        let own = own.iter().chain(flags).map(|flag| (*flag).to_owned());
        let mut fleet = Self {
            address,
            router: Some(Daemon::router("router", own.collect::<Vec<_>>())),
            workers: Vec::new(),
        };
        fleet::listens(address).await;
        for (name, config) in workers {
            let engine = EmulatedSglang::new(config);
            engine.start().await;
            fleet.workers.push(Worker {
                name: name.to_owned(),
                engine,
                address: ports::free(),
                sidecar: None,
            });
            fleet.start_sidecar(name).await;
        }
        let wanted = fleet.workers.len();
        wait::until("all workers to be ready", || async {
            let answer = client::call(address, "GET", "/readyz", &[], "").await;
            answer.json()["workers_ready"] == wanted
        })
        .await;
        fleet
    }

    /// One prefill and one decode worker.
    async fn pair() -> Self {
        Self::of(
            [("p0", engine(Mode::Prefill)), ("d0", engine(Mode::Decode))],
            &[],
        )
        .await
    }

    async fn start_sidecar(&mut self, name: &str) {
        let router = format!("http://{}", self.address);
        let worker = self.worker_mut(name);
        fleet::is_free(worker.address).await;
        let listen = worker.address.to_string();
        let own = [
            "baton-sidecar-sglang",
            "--worker-id",
            name,
            "--listen",
            &listen,
            "--router",
            &router,
            "--token",
            TOKEN,
        ];
        let own = own.iter().map(|flag| (*flag).to_owned());
        let args = SglangArgs::try_parse_from(own.chain(worker.engine.sidecar_flags())).unwrap();
        worker.sidecar = Some(Daemon::start(name, |stop| async move {
            let (config, launch) = baton_sidecar_sglang::attach::plan(&args)?;
            let engine = SglangEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        }));
        fleet::listens(worker.address).await;
    }

    fn worker(&self, name: &str) -> &Worker {
        self.workers
            .iter()
            .find(|worker| worker.name == name)
            .unwrap()
    }

    fn worker_mut(&mut self, name: &str) -> &mut Worker {
        self.workers
            .iter_mut()
            .find(|worker| worker.name == name)
            .unwrap()
    }

    fn engine(&self, name: &str) -> &EmulatedSglang {
        &self.worker(name).engine
    }

    async fn begin(&self, body: &Value) -> Exchange {
        let json = [("content-type", "application/json")];
        client::start(
            self.address,
            "POST",
            "/v1/completions",
            &json,
            body.to_string(),
        )
        .await
    }

    async fn complete(&self, body: &Value) -> Answer {
        self.begin(body).await.finish().await
    }

    async fn page(&self, name: &str) -> Page {
        fleet::page(self.worker(name).address).await
    }

    /// Waits until nobody wants anything any more, and no ticket is left.
    async fn quiet(&self) {
        if self.router.is_some() {
            wait::until("the router's gauges to return to 0", || async {
                fleet::page(self.address)
                    .await
                    .sum("baton_router_in_flight", &[])
                    == 0
            })
            .await;
        }
        for worker in self
            .workers
            .iter()
            .filter(|worker| worker.sidecar.is_some())
        {
            let name = &worker.name;
            wait::until(&format!("{name} to come to rest"), || async {
                let page = self.page(name).await;
                let open = page.sum("baton_sidecar_tickets", &[])
                    + page.sum("baton_sidecar_in_flight", &[]);
                open == 0 && worker.engine.working_on() == 0 && worker.engine.holds() == 0
            })
            .await;
            let page = self.page(name).await;
            assert_eq!(
                page.sum("baton_sidecar_tickets_stranded_total", &[]),
                0,
                "{name}"
            );
        }
    }

    /// Judges the fleet: all is at rest, no room was used twice, and no engine was given what ends it.
    async fn finish(self) {
        self.quiet().await;
        let rooms = self.rooms(Leg::Prefill);
        assert_eq!(
            rooms.iter().collect::<HashSet<_>>().len(),
            rooms.len(),
            "a room came twice"
        );
        for worker in &self.workers {
            let died_of = worker.engine.died_of();
            let killed = died_of.iter().any(|of| of != "its script");
            assert!(!killed, "{} died of {died_of:?}", worker.name);
        }
        for worker in self.workers {
            if let Some(sidecar) = worker.sidecar {
                let ended = sidecar.stop().await;
                assert!(ended.is_ok(), "{} ended with {ended:?}", worker.name);
            }
            worker.engine.kill().await;
        }
        if let Some(router) = self.router {
            assert!(router.stop().await.is_ok());
        }
        assert!(panics::seen().is_empty(), "{:?}", panics::seen());
    }

    fn rooms(&self, leg: Leg) -> Vec<u64> {
        let seen = self
            .workers
            .iter()
            .flat_map(|worker| worker.engine.seen_of(leg));
        seen.map(|seen| seen.json()["bootstrap_room"].as_u64().unwrap())
            .collect()
    }
}

fn asks(prompt: &str, tokens: usize, stream: bool) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

fn right(answer: &Answer, prompt: &str, tokens: usize) {
    assert_eq!(answer.served().generated(), model::text(prompt, tokens));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_say_what_one_says() {
    let fleet = Fleet::pair().await;
    for (number, (stream, tokens)) in [(false, 6), (true, 6), (false, 1), (true, 1)]
        .into_iter()
        .enumerate()
    {
        let prompt = format!("{PROMPT} {number}");
        let answer = fleet.complete(&asks(&prompt, tokens, stream)).await;
        right(&answer, &prompt, tokens);
    }
    let [prefill, decode] = [("p0", Leg::Prefill), ("d0", Leg::Decode)]
        .map(|(name, leg)| fleet.engine(name).seen_of(leg));
    assert_eq!((prefill.len(), decode.len()), (4, 4));
    assert_eq!(fleet.rooms(Leg::Prefill), fleet.rooms(Leg::Decode));
    for (prefill, decode) in prefill.iter().zip(&decode) {
        assert_ne!(prefill.json()["rid"], decode.json()["rid"]);
        assert_eq!(prefill.json()["stream"], false);
    }
    let page = fleet.page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets_ended_total", &[("end", "settled")]),
        4
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_serve_alone_and_cannot_be_split_is_refused_with_the_reason() {
    let fleet = Fleet::pair().await;
    let mut body = asks(PROMPT, 4, false);
    body["n"] = json!(2);
    let message = fleet.complete(&body).await.refused(503);
    assert!(message.contains("several choices are wanted"), "{message}");
    assert!(fleet.rooms(Leg::Prefill).is_empty());
    fleet.finish().await;
}

/// The engines alone: decode is not told and waits for 300 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_prefill_refuses_is_the_clients_to_hear_of_at_once() {
    let short = Config {
        context_length: 40,
        ..engine(Mode::Prefill)
    };
    let fleet = Fleet::of([("p0", short), ("d0", engine(Mode::Decode))], &[]).await;
    for stream in [false, true] {
        let answer = fleet.complete(&asks(PROMPT, 6, stream)).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(
            answer
                .text()
                .contains("longer than the model's context length"),
            "{}",
            answer.text()
        );
    }
    fleet.quiet().await;
    let decoded = fleet.engine("d0").seen_of(Leg::Decode);
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
        let fleet = Fleet::of(workers, &[]).await;
        let (gates, names) = ([Gate::new(), Gate::new()], ["p0", "p1"]);
        for (name, gate) in names.iter().zip(&gates) {
            fleet.engine(name).script(Rule::on(Leg::Prefill).gate(gate));
        }
        let exchange = fleet.begin(&asks(PROMPT, 6, stream)).await;
        fleet.engine("d0").saw(Leg::Decode, Fate::Running).await;
        let dies = tokio::select! {
            () = gates[0].reached(1) => 0,
            () = gates[1].reached(1) => 1,
        };
        gates[1 - dies].open();
        fleet.engine(names[dies]).kill().await;
        right(&exchange.finish().await, PROMPT, 6);
        assert_eq!(fleet.engine("d0").seen_of(Leg::Decode).len(), 2);
        fleet.quiet().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_prefill_engine_that_dies_is_an_honest_error_soon() {
    let fleet = Fleet::pair().await;
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).fault(Fault::Die));
    let answer = fleet.complete(&asks(PROMPT, 6, true)).await;
    assert!(answer.status >= 500, "{}", answer.text());
    fleet.engine("d0").saw(Leg::Decode, Fate::Answered).await;
    fleet.finish().await;
}

/// A prefill that fails once is computed anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_is_repaired_without_a_trace() {
    let fleet = Fleet::pair().await;
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
            .engine("p0")
            .script(Rule::on(Leg::Prefill).fault(fault));
        let prompt = format!("{PROMPT} {number}");
        right(
            &fleet.complete(&asks(&prompt, 6, number % 2 == 0)).await,
            &prompt,
            6,
        );
    }
    fleet.finish().await;
}

/// The engines alone: a stream is a 200 with an abort inside.
#[tokio::test(flavor = "multi_thread")]
async fn a_200_with_an_abort_inside_is_no_answer() {
    let fleet = Fleet::pair().await;
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).fault(Fault::Finish("abort")).times(2));
    for stream in [false, true] {
        let prompt = format!("{PROMPT} {stream}");
        right(&fleet.complete(&asks(&prompt, 6, stream)).await, &prompt, 6);
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_token_a_prefill_engine_that_dies_hurts_no_stream() {
    let fleet = Fleet::pair().await;
    let gate = Gate::new();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let exchange = fleet.begin(&asks(PROMPT, 6, true)).await;
    gate.reached(1).await;
    fleet.engine("p0").kill().await;
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
    let fleet = Fleet::of(workers, &[]).await;
    let gate = Gate::new();
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    for name in ["d0", "d1"] {
        fleet
            .engine(name)
            .script(Rule::on(Leg::Decode).about("doomed").fault(Fault::Die));
    }
    let first = fleet.begin(&asks("doomed", 6, false)).await;
    let dead = || {
        ["d0", "d1"]
            .iter()
            .filter(|name| !fleet.engine(name).is_alive())
            .count()
    };
    wait::until("a decode engine to die", || async { dead() > 0 }).await;
    fleet.engine("d0").behave();
    fleet.engine("d1").behave();
    gate.open();
    right(&first.finish().await, "doomed", 6);
    assert_eq!(dead(), 1);
    fleet.finish().await;
}

/// The engines alone: each leg is noticed to be unwanted at the next look, four seconds apart, or never.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_both_legs_by_name() {
    let fleet = Fleet::pair().await;
    for (number, reset) in [false, true].into_iter().enumerate() {
        // Prefill has its room, and decode does not come.
        let gate = Gate::new();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet
            .begin(&asks(&format!("{PROMPT} {number}"), 6, reset))
            .await;
        gate.reached(1).await;
        fleet.engine("p0").saw(Leg::Prefill, Fate::Running).await;
        if reset {
            exchange.vanish();
        } else {
            drop(exchange);
        }
        fleet.quiet().await;
        gate.open();
        // Decode has its room, and prefill does not come.
        let gate = Gate::new();
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).gate(&gate));
        let exchange = fleet
            .begin(&asks(&format!("{PROMPT} {number}"), 6, reset))
            .await;
        gate.reached(1).await;
        fleet.engine("d0").saw(Leg::Decode, Fate::Running).await;
        drop(exchange);
        fleet.quiet().await;
        gate.open();
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_its_stream_ends_it_in_the_engine_by_name() {
    let fleet = Fleet::pair().await;
    let gate = Gate::new();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let exchange = fleet.begin(&asks(PROMPT, 400, true)).await;
    gate.reached(1).await;
    drop(exchange);
    gate.open();
    fleet.quiet().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_leaves_nothing_in_either_engine() {
    let mut fleet = Fleet::pair().await;
    let gate = Gate::new();
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    let exchange = fleet.begin(&asks(PROMPT, 6, false)).await;
    gate.reached(1).await;
    fleet.engine("d0").saw(Leg::Decode, Fate::Running).await;
    fleet.router.take().unwrap().kill();
    fleet.quiet().await;
    gate.open();
    assert!(exchange.closed_silently().await);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_comes_back_uses_no_room_of_its_last_life() {
    let mut fleet = Fleet::pair().await;
    for life in 0..3 {
        let prompt = format!("{PROMPT} {life}");
        right(&fleet.complete(&asks(&prompt, 3, false)).await, &prompt, 3);
        fleet.worker_mut("p0").sidecar.take().unwrap().kill();
        fleet.start_sidecar("p0").await;
        let ready = || async {
            let view = fleet::view(fleet.address).await;
            let workers = view["workers"].as_array().cloned().unwrap_or_default();
            workers.iter().all(|worker| worker["state"] == "ready") && workers.len() == 2
        };
        wait::until("the sidecar to be back", ready).await;
    }
    assert_eq!(fleet.rooms(Leg::Prefill).len(), 3);
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
    let fleet = Fleet::of(workers, &[]).await;
    let gates = [Gate::new(), Gate::new()];
    for (name, gate) in ["p0", "p1"].iter().zip(&gates) {
        fleet.engine(name).script(Rule::on(Leg::Prefill).gate(gate));
    }
    let exchange = fleet.begin(&asks(PROMPT, 6, true)).await;
    let stands = tokio::select! {
        () = gates[0].reached(1) => 0,
        () = gates[1].reached(1) => 1,
    };
    gates[1 - stands].open();
    // Its sidecar falls silent with it.
    let name = ["p0", "p1"][stands];
    let pause = fleet.worker(name).sidecar.as_ref().unwrap().pause().await;
    right(&exchange.finish().await, PROMPT, 6);
    drop(pause);
    gates[stands].open();
    tokio::time::timeout(Duration::from_secs(60), fleet.finish())
        .await
        .unwrap();
}

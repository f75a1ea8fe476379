//! A decode worker that refuses, or is not there, passes its unused ticket on: the prompt is not computed twice.

use baton_integration::client::{Answer, Exchange};
use baton_integration::direct;
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::Config;
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use baton_proto::call::path;

const PROMPT: &str =
    "A ticket that one worker cannot use is good for the next one, as long as nobody used it.";

fn body() -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5}}"#)
}

/// A request that waits at the prefill engine, planned for `d0` alone; then `d1` joins.
async fn planned_for_d0(fleet: &mut Fleet, gate: &Gate) -> Exchange {
    fleet.engine("p0").script(Rule::on(Leg::Prefill).gate(gate));
    let exchange = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    fleet
        .add_worker("d1", Config::new(Some("kv_consumer")), true)
        .await;
    fleet.worker_is("d1", "ready").await;
    exchange
}

async fn d1_decoded_what_was_prefilled_once(fleet: &Fleet, answer: &Answer) {
    assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
    fleet.engine("p0").only(Leg::Prefill);
    fleet.engine("d1").only(Leg::Decode);
    assert_eq!(fleet.engine("d1").transferred_tokens(), PROMPT.len() as u64);
    assert_eq!(fleet.stranded("p0").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_drains_passes_its_ticket_on() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    let exchange = planned_for_d0(&mut fleet, &gate).await;
    assert_eq!(
        direct::post(fleet.sidecar_address("d0"), path::DRAIN, "")
            .await
            .status,
        202
    );
    gate.open();
    let answer = exchange.finish().await;
    d1_decoded_what_was_prefilled_once(&fleet, &answer).await;
    assert!(fleet.engine("d0").seen().is_empty());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_whose_sidecar_is_gone_passes_its_ticket_on() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    let exchange = planned_for_d0(&mut fleet, &gate).await;
    fleet.take_sidecar("d0").kill();
    wait::until("nobody to listen", || async {
        tokio::net::TcpStream::connect(fleet.sidecar_address("d0"))
            .await
            .is_err()
    })
    .await;
    gate.open();
    let answer = exchange.finish().await;
    d1_decoded_what_was_prefilled_once(&fleet, &answer).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_whose_engine_is_gone_costs_no_answer() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    let exchange = planned_for_d0(&mut fleet, &gate).await;
    fleet.engine("d0").kill().await;
    gate.open();
    let answer = exchange.finish().await;
    assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
    fleet.engine("d0").start().await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_is_full_passes_its_ticket_on() {
    let mut fleet = Setup::split()
        .sidecars(&["--max-concurrency", "1", "--max-queue", "0"])
        .start()
        .await;
    let gate = Gate::new();
    let exchange = planned_for_d0(&mut fleet, &gate).await;
    let busy = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Local).gate(&busy));
    let d0 = fleet.sidecar_address("d0");
    let other = tokio::spawn(async move { direct::generate(d0, &body()).await });
    busy.reached(1).await;
    gate.open();
    let answer = exchange.finish().await;
    d1_decoded_what_was_prefilled_once(&fleet, &answer).await;
    busy.open();
    other.await.unwrap().served();
    fleet.finish().await;
}

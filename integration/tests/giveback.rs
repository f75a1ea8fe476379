//! KV that nobody fetches goes back to its engine, whoever died with it; what somebody waits for is kept.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::time::Duration;

use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::vllm::{Config, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;
use serde_json::Value;

const PROMPT: &str = "A prompt whose KV somebody holds for somebody who may not come, over more than one block of it.";

fn body() -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5}}"#)
}

/// A lease that ends within a test.
const SHORT: Duration = Duration::from_secs(6);

fn short(setup: Setup) -> Setup {
    let with = |role| Config {
        lease: SHORT,
        ..Config::new(Some(role))
    };
    setup
        .worker("p0", with("kv_producer"))
        .worker("d0", with("kv_consumer"))
        .router(&["--force", "split"])
}

/// Decode has been asked, and its engine was not given the ticket's KV yet.
fn at_decode(fleet: &Fleet) -> Gate {
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    gate
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_router_left_is_given_back() {
    let mut fleet = Setup::split().start().await;
    let gate = at_decode(&fleet);
    let _request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    assert_eq!(fleet.engine("p0").holds(), 1);
    fleet.take_router(0).kill();
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    fleet.gave_back("p0").await;
    fleet.start_router(0).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_there_loses_nothing_to_another_ones_death() {
    let mut fleet = Setup::split().routers(2).start().await;
    let gate = at_decode(&fleet);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    fleet.take_router(1).kill();
    until("the other router to be missed", || async {
        fleet
            .sidecar_page("p0")
            .await
            .sum("baton_sidecar_routers", &[])
            == 1
    })
    .await;
    gate.open();
    assert_eq!(
        request.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    assert_eq!(fleet.engine("p0").seen_of(Leg::Prefill).len(), 1);
    fleet.start_router(1).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_sidecar_that_died_holds_nothing_back() {
    let mut fleet = Setup::split().start().await;
    let gate = at_decode(&fleet);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    fleet.take_sidecar("d0").kill();
    drop(request);
    fleet.gave_back("p0").await;
    fleet.start_sidecar("d0").await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_sidecar_that_does_not_answer_leaves_kv_to_its_lease() {
    let fleet = short(Setup::new()).start().await;
    let gate = at_decode(&fleet);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    let pause = fleet.sidecar_process("d0").pause().await;
    drop(request);
    until("the ticket to be given up", || async {
        let page = fleet.sidecar_page("p0").await;
        page.sum("baton_sidecar_tickets", &[("state", "leaving")]) == 1
    })
    .await;
    assert_eq!(fleet.engine("p0").holds(), 1, "it may be fetched");
    until("the lease to end", || async {
        fleet.engine("p0").holds() == 0 && fleet.stranded("p0").await == 1
    })
    .await;
    drop(pause);
    gate.open();
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kv_is_kept_for_as_long_as_its_request_waits() {
    let fleet = short(Setup::new()).start().await;
    let gate = at_decode(&fleet);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    // Each takes a second or more, and the first comes after half of the lease.
    until("the lease to be over but for its extensions", || async {
        let page = fleet.sidecar_page("p0").await;
        page.sum("baton_sidecar_leases_extended_total", &[]) >= 5
    })
    .await;
    assert_eq!(fleet.engine("p0").holds(), 1);
    gate.open();
    assert_eq!(
        request.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    assert_eq!(fleet.engine("p0").seen_of(Leg::Prefill).len(), 1, "once");
    fleet.gave_back("p0").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_prefill_sidecar_held_is_given_back_by_its_successor() {
    let mut fleet = Setup::split().start().await;
    let gate = at_decode(&fleet);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    fleet.take_sidecar("p0").kill();
    drop(request);
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    assert_eq!(
        fleet.engine("p0").holds(),
        1,
        "nobody is there to give it back"
    );
    fleet.start_sidecar("p0").await;
    fleet.gave_back("p0").await;
    fleet.all_ready().await;
    fleet.finish().await;
}

/// Engines that name what they hold after the ids that they are given, as those that a sidecar launches do.
fn plainly_named() -> Setup {
    let with = |role| Config {
        plain_ids: true,
        ..Config::new(Some(role))
    };
    Setup::new()
        .worker("p0", with("kv_producer"))
        .worker("d0", with("kv_consumer"))
        .router(&["--force", "split"])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_that_broke_off_was_to_name_is_given_back() {
    let nameless = |answer: &mut Value| answer["kv_transfer_params"] = Value::Null;
    for broken in [Fault::Truncated, Fault::answer(nameless)] {
        let fleet = plainly_named().start().await;
        // Of which the sidecar learns how the engine names things.
        fleet.post("/v1/completions", body()).await.served();
        let rule = Rule::on(Leg::Prefill).fault(broken);
        fleet.engine("p0").script(rule);
        let answer = fleet.post("/v1/completions", body()).await;
        assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
        let prefills = fleet.engine("p0").seen_of(Leg::Prefill).len();
        assert_eq!(prefills, 3, "nothing could be read of the second");
        fleet.gave_back("p0").await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_outlived_its_sidecar_is_given_back_by_the_successor() {
    let mut fleet = plainly_named().start().await;
    let gate = Gate::new();
    let half_an_answer = Rule::on(Leg::Prefill).gate_after(0, &gate);
    fleet.engine("p0").script(half_an_answer);
    let request = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    assert_eq!(
        fleet.engine("p0").holds(),
        1,
        "and its sidecar does not know it"
    );
    fleet.take_sidecar("p0").kill();
    fleet.start_sidecar("p0").await;
    fleet.gave_back("p0").await;
    gate.open();
    drop(request);
    fleet.all_ready().await;
    fleet.finish().await;
}

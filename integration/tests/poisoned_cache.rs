//! Between a transfer of foreign KV and the quarantine that follows from it, others must not find that KV.

use baton_integration::ask::PROMPT;
use baton_integration::client::Exchange;
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::EngineId;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;

fn body(prompt: &str) -> String {
    format!(r#"{{"model":"tiny","prompt":"{prompt}","max_tokens":5}}"#)
}

/// A request whose decode engine has fetched from a prefill engine that had restarted under its old id, and whose answer
/// waits at this gate: nobody has asked yet whether what came was right.
async fn unsettled(fleet: &Fleet, answer: &Gate) -> Exchange {
    let fetch = Gate::new();
    let decode = Rule::on(Leg::Decode).about("First.");
    fleet
        .engine("d0")
        .script(decode.gate(&fetch).gate_after(1, answer));
    let first = format!("{PROMPT} First.");
    let exchange = fleet.begin("/v1/completions", body(&first)).await;
    fetch.reached(1).await;
    let holder = if fleet.engine("p0").holds() == 1 {
        "p0"
    } else {
        "p1"
    };
    fleet.engine(holder).restart(EngineId::Same).await;
    // What comes next is prefilled by the other one.
    let busy = Fault::Status(503, "{}".to_owned());
    fleet
        .engine(holder)
        .script(Rule::on(Leg::Prefill).always().fault(busy));
    fetch.open();
    answer.reached(1).await;
    exchange
}

/// Waits until the decode sidecar has given the first request up.
async fn nobody_waits(fleet: &Fleet) {
    until("the decode leg to be given up", || async {
        let page = fleet.sidecar_page("d0").await;
        page.sum("baton_sidecar_in_flight", &[]) == 0
    })
    .await;
}

/// Another request, whose own handoff is right, has the same beginning.
async fn another(fleet: &Fleet) -> (String, String) {
    let second = format!("{PROMPT} Second.");
    let answer = fleet.complete(body(&second)).await;
    (answer.served().generated(), model::text(&second, 5))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the second answer is wrong: its own handoff is settled, but its beginning is found where the first one's foreign KV is"]
async fn a_request_that_meets_unsettled_kv_is_not_answered_from_it() {
    let fleet = Setup::split().prefill("p1").start().await;
    let gate = Gate::new();
    let first = unsettled(&fleet, &gate).await;
    let (said, right) = another(&fleet).await;
    gate.open();
    first.finish().await;
    assert_eq!(said, right);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a client that leaves before its answer is settled leaves foreign KV behind, and nobody quarantines it"]
async fn a_client_that_leaves_before_the_settling_leaves_no_foreign_kv_behind() {
    let fleet = Setup::split().prefill("p1").start().await;
    let gate = Gate::new();
    unsettled(&fleet, &gate).await.vanish();
    nobody_waits(&fleet).await;
    let (said, right) = another(&fleet).await;
    gate.open();
    assert_eq!(said, right);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a router that dies before it settles leaves foreign KV behind, and nobody quarantines it"]
async fn a_router_that_dies_before_the_settling_leaves_no_foreign_kv_behind() {
    let mut fleet = Setup::split().prefill("p1").start().await;
    let gate = Gate::new();
    let first = unsettled(&fleet, &gate).await;
    fleet.take_router(0).kill();
    drop(first);
    nobody_waits(&fleet).await;
    fleet.start_router(0).await;
    fleet.all_ready().await;
    let (said, right) = another(&fleet).await;
    gate.open();
    assert_eq!(said, right);
    fleet.finish().await;
}

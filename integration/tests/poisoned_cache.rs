//! Between a transfer of foreign KV and the quarantine that follows from it, others must not find that KV.

use baton_integration::ask::PROMPT;
use baton_integration::client::Exchange;
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Fault, Gate, Http, Leg, Rule};
use baton_integration::emulated::vllm::{EngineId, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait::until;

fn body(prompt: &str) -> String {
    format!(r#"{{"model":"tiny","prompt":"{prompt}","max_tokens":5}}"#)
}

/// A request that waits at `fetch` before its decode engine fetches; who holds its KV.
async fn before_its_fetch(fleet: &Fleet, fetch: &Gate, answer: &Gate) -> (Exchange, &'static str) {
    let decode = Rule::on(Leg::Decode).about("First.");
    fleet
        .engine("d0")
        .script(decode.gate(fetch).gate_after(1, answer));
    let first = format!("{PROMPT} First.");
    let exchange = fleet.begin("/v1/completions", body(&first)).await;
    fetch.reached(1).await;
    let holds = |name: &&str| fleet.engine(name).holds() == 1;
    let holder = ["p0", "p1"].into_iter().find(holds);
    (exchange, holder.expect("one of them holds it"))
}

/// A request whose decode engine has fetched from a prefill engine that had restarted under its old id, in no time: what no
/// real engine can. Either its answer waits at a gate and nobody has asked yet whether what came was right, or its
/// decode side has noticed already.
async fn unsettled(fleet: &Fleet, answer: &Gate) -> Exchange {
    let fetch = Gate::new();
    let (exchange, holder) = before_its_fetch(fleet, &fetch, answer).await;
    fleet.engine(holder).restart(EngineId::Same).await;
    let busy = Fault::Status(503, String::new());
    fleet
        .engine(holder)
        .script(Rule::on(Leg::Prefill).always().fault(busy));
    fetch.open();
    tokio::select! {
        () = answer.reached(1) => {}
        () = quarantined(fleet) => {}
    }
    exchange
}

async fn quarantines(fleet: &Fleet) -> i64 {
    let page = fleet.sidecar_page("d0").await;
    page.sum("baton_sidecar_quarantines_total", &[])
}

async fn quarantined(fleet: &Fleet) {
    until("the decode engine's cache to be quarantined", || async {
        quarantines(fleet).await > 0
    })
    .await;
}

/// Another request, whose own handoff is right, has the same beginning.
async fn another_is_right(fleet: &Fleet) {
    let second = format!("{PROMPT} Second.");
    let answer = fleet.complete(body(&second)).await;
    assert_eq!(answer.served().generated(), model::text(&second, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leg_whose_holder_has_died_is_cut_off_before_another_life_could_answer() {
    let fleet = Setup::split().prefill("p1").start().await;
    let (fetch, answer) = (Gate::new(), Gate::new());
    let (first, holder) = before_its_fetch(&fleet, &fetch, &answer).await;
    fleet.engine(holder).kill().await;
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    answer.open();
    fleet.engine(holder).restart(EngineId::Same).await;
    fetch.open();
    let right = model::text(&format!("{PROMPT} First."), 5);
    assert_eq!(first.finish().await.served().generated(), right);
    another_is_right(&fleet).await;
    assert_eq!(
        quarantines(&fleet).await,
        0,
        "nothing foreign can have come"
    );
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_settling_leaves_no_foreign_kv_behind() {
    let fleet = Setup::split().prefill("p1").start().await;
    let gate = Gate::new();
    unsettled(&fleet, &gate).await.vanish();
    quarantined(&fleet).await;
    another_is_right(&fleet).await;
    gate.open();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stood_still_when_its_leg_was_cut_off_may_go_on_with_it() {
    for holder_dies in [false, true] {
        let fleet = Setup::split().prefill("p1").start().await;
        let (fetch, answer) = (Gate::new(), Gate::new());
        let (first, holder) = before_its_fetch(&fleet, &fetch, &answer).await;
        fleet.engine("d0").http_mode(Http::Mute);
        let mut first = Some(first);
        if holder_dies {
            fleet.engine(holder).kill().await;
        } else {
            first.take().expect("it waits").vanish();
        }
        quarantined(&fleet).await;
        fleet.engine("d0").http_mode(Http::Normal);
        fetch.open();
        answer.open();
        // Whatever was asked of it in the meantime is never answered.
        drop(first);
        another_is_right(&fleet).await;
        fleet.engine(holder).restart(EngineId::Same).await;
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_before_the_settling_leaves_no_foreign_kv_behind() {
    let mut fleet = Setup::split().prefill("p1").start().await;
    let gate = Gate::new();
    let first = unsettled(&fleet, &gate).await;
    fleet.take_router(0).kill();
    drop(first);
    quarantined(&fleet).await;
    fleet.start_router(0).await;
    fleet.all_ready().await;
    another_is_right(&fleet).await;
    gate.open();
    fleet.finish().await;
}

//! Processes that stand still with their sockets open, as one that was stopped by a signal: nobody waits for them for ever.

use baton_integration::ask::{Ask, completion};
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::fleet::{Fleet, Pause, Setup};
use baton_integration::wait;

/// Requests until one was given to the sidecar that stands still: each is answered, right.
async fn all_are_served(fleet: &Fleet, ask: &Ask) {
    let mut asked = Vec::new();
    for _ in 0..8 {
        asked.push(fleet.begin(ask.path, &ask.body).await);
    }
    for exchange in asked {
        assert_eq!(exchange.finish().await.served().generated(), ask.text);
    }
}

async fn goes_on(fleet: &Fleet, pause: Pause) {
    drop(pause);
    fleet.all_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leg_at_a_silent_sidecar_moves_to_another_worker() {
    for name in ["p0", "d0"] {
        let fleet = Setup::split().prefill("p1").decode("d1").start().await;
        let pause = fleet.sidecar_process(name).pause().await;
        all_are_served(&fleet, &completion(true)).await;
        assert!(fleet.engine(name).seen().is_empty());
        goes_on(&fleet, pause).await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_sidecar_that_falls_silent_before_settle_lets_no_answer_out() {
    let fleet = Setup::split().start().await;
    let (gate, ask) = (Gate::new(), completion(false));
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    let pause = fleet.sidecar_process("p0").pause().await;
    gate.open();
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    let page = fleet.router_page().await;
    assert_eq!(page.sum("baton_router_unsettled_total", &[]), 1);
    assert_eq!(fleet.engine("d0").seen_of(Leg::Local).len(), 1);
    goes_on(&fleet, pause).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_sidecar_falls_silent_ends_with_an_honest_event() {
    let fleet = Setup::split().router(&["--stall-s", "1"]).start().await;
    let (gate, ask) = (Gate::new(), completion(true));
    let in_stream = Rule::on(Leg::Decode).gate_after(2, &gate);
    fleet.engine("d0").script(in_stream);
    let mut exchange = fleet.begin(ask.path, &ask.body).await;
    exchange.until(&ask.text[5..10]).await;
    let pause = fleet.sidecar_process("d0").pause().await;
    let answer = exchange.finish().await;
    assert!(answer.complete, "{answer:?}");
    let last = answer.events().pop().unwrap_or_default();
    assert!(last.contains(r#""error""#), "{last}");
    gate.open();
    goes_on(&fleet, pause).await;
    fleet.finish().await;
}

/// Whoever holds KV for nobody may not be reachable. Its release is left to itself, and the request goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_at_a_silent_sidecar_holds_no_request_up() {
    let fleet = Setup::split().start().await;
    let (gate, ask) = (Gate::new(), completion(false));
    let failing = baton_integration::emulated::vllm::script::Fault::Reset;
    let fails = Rule::on(Leg::Decode).gate(&gate).fault(failing);
    fleet.engine("d0").script(fails);
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    let pause = fleet.sidecar_process("p0").pause().await;
    gate.open();
    // The next attempt is planned while p0 still seems ready; once it does not, one engine serves.
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    goes_on(&fleet, pause).await;
    wait::until("the late release to be heard", || async {
        let page = fleet.sidecar_page("p0").await;
        page.sum("baton_sidecar_tickets", &[("state", "claimed")]) == 0
    })
    .await;
    fleet.finish().await;
}

/// A router that stands still keeps nothing from others, and goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stands_still_for_a_while_serves_what_it_had() {
    let fleet = Setup::split().routers(2).start().await;
    let (gate, ask) = (Gate::new(), completion(true));
    let in_stream = Rule::on(Leg::Decode).gate_after(2, &gate);
    fleet.engine("d0").script(in_stream);
    let mut exchange = fleet.begin(ask.path, &ask.body).await;
    exchange.until(&ask.text[5..10]).await;
    let pause = fleet.router_process(0).pause().await;
    gate.open();
    let headers = [("content-type", "application/json")];
    let other = fleet.router_address(1);
    let answer =
        baton_integration::client::call(other, "POST", ask.path, &headers, &ask.body).await;
    assert_eq!(answer.served().generated(), ask.text);
    drop(pause);
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    fleet.all_ready().await;
    fleet.finish().await;
}

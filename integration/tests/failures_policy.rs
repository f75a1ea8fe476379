//! What a fleet does about failures that go on: it retries a bounded share, and it trusts nothing that it cannot prove.

use std::time::Duration;

use baton_integration::ask::completion;
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::vllm::side_channel::SideChannel;
use baton_integration::emulated::vllm::{Config, EngineId, Fate};
use baton_integration::fleet::Setup;
use baton_integration::{client, wait};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_fails_is_given_a_bounded_share_of_retries() {
    const REQUESTS: usize = 400;
    let setup = Setup::new().plain("a").plain("b");
    let fleet = setup.router(&["--retry-percent", "0"]).start().await;
    for name in ["a", "b"] {
        let fails = Fault::Status(500, "{}".to_owned());
        fleet.engine(name).script(Rule::any().always().fault(fails));
    }
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (address, ask) = (fleet.address(), completion(false));
        clients.spawn(async move {
            for _ in 0..REQUESTS / 8 {
                let headers = [("content-type", "application/json")];
                let answer = client::call(address, "POST", ask.path, &headers, &ask.body).await;
                answer.refused(502);
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let asked = fleet.engine("a").seen().len() + fleet.engine("b").seen().len();
    assert_eq!(asked, REQUESTS + 256, "one attempt each, and the reserve");
    let page = fleet.router_page().await;
    let retries = |granted| page.sum("baton_router_retries_total", &[("granted", granted)]);
    assert_eq!(retries("yes"), 256);
    assert!(retries("no") > 0);
    fleet.finish().await;
}

/// A prompt of this many tokens that no other one begins like.
fn prompt(number: usize, tokens: usize) -> String {
    format!("{number:08} {}", "x".repeat(tokens - 9))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_would_certainly_wait_too_long_is_told_so_at_once() {
    let slow = Config {
        speed: Speed {
            prefill_token: 1e6,
            ..Speed::INSTANT
        },
        ..Config::new(None)
    };
    let setup = Setup::new().worker("a", slow);
    let fleet = setup.router(&["--max-wait-s", "0"]).start().await;
    let body = |number, tokens| {
        let prompt = prompt(number, tokens);
        format!(r#"{{"model":"tiny","prompt":"{prompt}","max_tokens":2,"stream":true}}"#)
    };
    for number in 0..6 {
        fleet.complete(body(number, 300)).await.served();
    }
    let a = fleet.engine("a");
    a.freeze(true);
    let first = fleet.begin("/v1/completions", body(7, 1000)).await;
    wait::until("the first to be there", || async { a.seen().len() == 7 }).await;
    let answer = fleet.complete(body(8, 300)).await;
    let message = answer.refused(503);
    assert!(message.contains("have to wait"), "{message}");
    let seconds = answer.header("retry-after").and_then(|s| s.parse().ok());
    assert!(
        seconds.is_some_and(|seconds: u32| seconds >= 1),
        "{answer:?}"
    );
    assert_eq!(a.seen().len(), 7, "no engine saw it");
    a.freeze(false);
    first.finish().await.served();
    fleet.complete(body(9, 300)).await.served();
    fleet.finish().await;
}

/// With `kv_load_failure_policy: recompute` decode answers right although it never got the KV. That is not told by its
/// answer, so it is believed only if the prefill engine says that it held the KV all the time.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_decode_computed_after_a_failed_load_is_settled_as_any_other() {
    let recomputing = Config {
        recompute_failed_loads: true,
        ..Config::new(Some("kv_consumer"))
    };
    let setup = Setup::new().prefill("p0").worker("d0", recomputing);
    let fleet = setup.router(&["--force", "split"]).start().await;
    for stream in [false, true] {
        let (ask, gate) = (completion(stream), Gate::new());
        let withheld = async || {
            let page = fleet.router_page().await;
            page.sum("baton_router_unsettled_total", &[])
        };
        let before = withheld().await;
        let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin(ask.path, &ask.body).await;
        gate.reached(1).await;
        // The KV is gone, and so is the name under which decode would ask for it.
        fleet.engine("p0").restart(EngineId::New).await;
        gate.open();
        assert_eq!(exchange.finish().await.served().generated(), ask.text);
        let first = fleet.engine("d0").seen_of(Leg::Decode)[decodes].answer();
        assert_eq!(first.generated(), ask.text, "decode computed it itself");
        assert_eq!(withheld().await, before + 1, "of another life: not settled");
        fleet.all_ready().await;
        wait::until("the new life to be known", || async {
            fleet.worker_view("p0").await["incarnation"] == fleet.engine("p0").agent()
        })
        .await;
    }
    fleet.finish().await;
}

/// A router's legs that wait to be admitted go with it, and its tickets end long before their lease does.
#[tokio::test(flavor = "multi_thread")]
async fn legs_of_a_router_that_dies_never_reach_an_engine() {
    for (name, leg) in [("p0", Leg::Prefill), ("d0", Leg::Decode)] {
        let mut fleet = Setup::split()
            .sidecars(&["--max-concurrency", "1"])
            .start()
            .await;
        let gate = Gate::new();
        let occupied = Rule::on(Leg::Local).about("occupied").gate(&gate);
        fleet.engine(name).script(occupied);
        let sidecar = fleet.sidecar_address(name);
        let other = tokio::spawn(async move {
            let body = r#"{"model":"tiny","prompt":"occupied","max_tokens":2}"#;
            baton_integration::direct::generate(sidecar, body).await
        });
        gate.reached(1).await;
        let queued = async |fleet: &baton_integration::fleet::Fleet, legs| {
            wait::until("a leg to wait, or not", || async {
                let page = fleet.sidecar_page(name).await;
                page.sum("baton_sidecar_queued", &[]) == legs
            })
            .await;
        };
        let ask = completion(true);
        let _exchange = fleet.begin(ask.path, &ask.body).await;
        queued(&fleet, 1).await;
        fleet.take_router(0).kill();
        queued(&fleet, 0).await;
        gate.open();
        other.await.unwrap().served();
        wait::until("its ticket to end", || async {
            let page = fleet.sidecar_page("p0").await;
            page.sum("baton_sidecar_tickets", &[]) == 0 && fleet.engine("p0").holds() == 0
        })
        .await;
        assert!(fleet.engine(name).seen_of(leg).is_empty());
        fleet.start_router(0).await;
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_while_it_settles_leaves_nothing() {
    for stream in [false, true] {
        let mut fleet = Setup::split().start().await;
        let ask = completion(stream);
        // Engines that have met need no side channel any more; settle does.
        fleet.post(ask.path, &ask.body).await.served();
        let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
        fleet.engine("p0").side_channel_mode(SideChannel::Mute);
        let exchange = fleet.begin(ask.path, &ask.body).await;
        wait::until("decode to have answered", || async {
            let seen = fleet.engine("d0").seen_of(Leg::Decode);
            seen.len() > decodes
                && seen
                    .last()
                    .is_some_and(|seen| seen.fate() == Fate::Answered)
        })
        .await;
        fleet.take_router(0).kill();
        let said = exchange.finish_text().await;
        assert!(!said.contains("choices"), "nobody gets the answer: {said}");
        fleet.engine("p0").behave();
        wait::until("its ticket to end", || async {
            let page = fleet.sidecar_page("p0").await;
            page.sum("baton_sidecar_tickets", &[]) == 0 && fleet.engine("p0").holds() == 0
        })
        .await;
        fleet.start_router(0).await;
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

/// What a sidecar that died held for nobody ends with the engine's lease; its successor serves on.
#[tokio::test(flavor = "multi_thread")]
async fn kv_of_a_sidecar_that_died_ends_with_the_lease() {
    let short = |role| Config {
        lease: Duration::from_secs(2),
        ..Config::new(Some(role))
    };
    let setup = Setup::new()
        .worker("p0", short("kv_producer"))
        .worker("d0", short("kv_consumer"));
    let mut fleet = setup.router(&["--force", "split"]).start().await;
    let (ask, gate) = (completion(true), Gate::new());
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    fleet.take_sidecar("p0").kill();
    exchange.vanish();
    fleet.start_sidecar("p0").await;
    wait::until("the lease to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    fleet.all_ready().await;
    let answer = fleet.post(ask.path, &ask.body).await;
    assert_eq!(answer.served().generated(), ask.text);
    fleet.finish().await;
}

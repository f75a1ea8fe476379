//! Who is in the fleet: routers and sidecars come, go, crash, drain and come back, and clients notice nothing that they
//! need not notice.

use std::time::Duration;

use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::emulated::vllm::{Config, EmulatedVllm, Fate};
use baton_integration::fleet::{self, Fleet, Setup};
use baton_integration::steady::Steady;
use baton_integration::{direct, ports, wait};
use baton_proto::call::path;

const PROMPT: &str =
    "Runners come and go, and the baton is passed on all the same, lap after lap after lap.";

fn body() -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5}}"#)
}

async fn serves(fleet: &Fleet) {
    assert_eq!(
        fleet.complete(body()).await.served().generated(),
        model::text(PROMPT, 5)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_crashed_is_found_again() {
    let mut fleet = Setup::split().start().await;
    serves(&fleet).await;
    for orderly in [false, true] {
        let router = fleet.take_router(0);
        if orderly {
            assert!(router.stop().await.is_ok());
        } else {
            router.kill();
        }
        wait::until("the sidecars to notice", || async {
            fleet
                .sidecar_page("d0")
                .await
                .sum("baton_sidecar_routers", &[])
                == 0
        })
        .await;
        fleet.start_router(0).await;
        fleet.all_ready().await;
        serves(&fleet).await;
    }
    let page = fleet.sidecar_page("d0").await;
    assert_eq!(page.sum("baton_sidecar_routers", &[]), 1);
    assert_eq!(
        page.sum("baton_sidecar_engine_incarnations_total", &[]),
        1,
        "the engine was not disturbed"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_router_that_crashes_end_in_the_engines() {
    let mut fleet = Setup::split().start().await;
    let (at_prefill, at_decode) = (Gate::new(), Gate::new());
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).gate(&at_decode));
    let _first = fleet.begin("/v1/completions", body()).await;
    at_decode.reached(1).await;
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&at_prefill));
    let _second = fleet.begin("/v1/completions", body()).await;
    at_prefill.reached(1).await;
    fleet.take_router(0).kill();
    fleet.engine("p0").saw(Leg::Prefill, Fate::Aborted).await;
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets", &[("state", "running")]),
        0
    );
    for name in ["p0", "d0"] {
        wait::until("nothing to be in flight", || async {
            fleet
                .sidecar_page(name)
                .await
                .sum("baton_sidecar_in_flight", &[])
                == 0
        })
        .await;
    }
    // Nobody is left to release the first one's handoff, and its lease is long; this ends it for the final judgement.
    fleet
        .engine("p0")
        .restart(baton_integration::emulated::vllm::EngineId::New)
        .await;
    fleet.start_router(0).await;
    fleet.all_ready().await;
    wait::until("the new life to be known", || async {
        fleet.worker_view("p0").await["incarnation"] == fleet.engine("p0").agent()
    })
    .await;
    serves(&fleet).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_crashed_comes_back_beside_its_engine() {
    let mut fleet = Setup::split().start().await;
    for name in ["d0", "p0"] {
        let agent = fleet.engine(name).agent();
        fleet.take_sidecar(name).kill();
        fleet.worker_is(name, "suspect").await;
        fleet.complete(body()).await.refused(503);
        fleet.start_sidecar(name).await;
        fleet.all_ready().await;
        assert_eq!(
            fleet.worker_view(name).await["incarnation"],
            agent,
            "the same life of the engine"
        );
        serves(&fleet).await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_sidecar_that_crashes_in_a_stream_is_an_honest_event() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let streamed = body().replace(r#""max_tokens":5"#, r#""max_tokens":5,"stream":true"#);
    let mut exchange = fleet.begin("/v1/completions", streamed).await;
    exchange.until(&model::text(PROMPT, 2)[5..]).await;
    fleet.take_sidecar("d0").kill();
    let answer = exchange.finish().await;
    assert!(answer.complete, "{answer:?}");
    let events = answer.events();
    assert_eq!(events.len(), 3, "{events:?}");
    let last: serde_json::Value = serde_json::from_str(&events[2]).unwrap();
    assert!(last["error"]["message"].is_string(), "{last}");
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    fleet.start_sidecar("d0").await;
    fleet.all_ready().await;
    serves(&fleet).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_sidecar_that_crashes_before_settle_lets_no_answer_out() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    fleet.take_sidecar("p0").kill();
    wait::until("nobody to listen", || async {
        tokio::net::TcpStream::connect(fleet.sidecar_address("p0"))
            .await
            .is_err()
    })
    .await;
    fleet.start_sidecar("p0").await;
    gate.open();
    // Its successor knows nothing of the ticket: what decode said is withheld and computed anew.
    assert_eq!(
        exchange.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    assert_eq!(
        fleet
            .router_page()
            .await
            .sum("baton_router_unsettled_total", &[]),
        1
    );
    fleet.all_ready().await;
    fleet.finish().await;
}

/// Poisoned cache outlives the sidecar that knew of it: its successor must not let anybody hit it.
#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_outlives_the_decode_sidecar() {
    let short = |role| Config {
        lease: Duration::from_secs(1),
        ..Config::new(Some(role))
    };
    let mut fleet = Setup::new()
        .worker("p0", short("kv_producer"))
        .worker("d0", short("kv_consumer"))
        .router(&["--force", "split"])
        .start()
        .await;
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    wait::until("the lease to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    fleet.engine("p0").overwrite_free();
    gate.open();
    assert_eq!(
        exchange.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    wait::until("the router to know of it", || async {
        fleet.worker_view("d0").await["quarantined"] == true
    })
    .await;
    fleet.take_sidecar("d0").kill();
    fleet.start_sidecar("d0").await;
    fleet.all_ready().await;
    let local = body().replace(r#""max_tokens":5"#, r#""max_tokens":1"#);
    let answer = fleet.complete(local).await;
    assert_eq!(
        answer.served().generated(),
        model::text(PROMPT, 1),
        "the poisoned prefix was hit"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_sidecars_with_one_id_the_later_one_counts() {
    let fleet = Setup::new().plain("a").start().await;
    let older = fleet.sidecar_address("a");
    let other = EmulatedVllm::new(Config::new(None));
    other.start().await;
    let address = ports::free();
    let later = fleet.sidecar_daemon("a", address, &(&other).into());
    let at = |address: std::net::SocketAddr| format!("http://{address}");
    wait::until("the later one to take over", || async {
        let view = fleet.worker_view("a").await;
        view["address"] == at(address) && view["state"] == "ready"
    })
    .await;
    wait::until("the older one to be refused", || async {
        fleet::page(older).await.sum("baton_sidecar_routers", &[]) == 0
    })
    .await;
    serves(&fleet).await;
    assert!(
        fleet.engine("a").seen().is_empty(),
        "the older one gets nothing"
    );
    // When the later one leaves, the older one is welcome again.
    assert!(later.stop().await.is_ok());
    wait::until("the older one to be back", || async {
        let view = fleet.worker_view("a").await;
        view["address"] == at(older) && view["state"] == "ready"
    })
    .await;
    serves(&fleet).await;
    other.kill().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_join_and_drain_under_load_without_a_failed_request() {
    let mut fleet = Setup::split().start().await;
    let load = Steady::start(&[fleet.address()], 6);
    load.more(20).await;
    fleet
        .add_worker("d1", Config::new(Some("kv_consumer")), true)
        .await;
    fleet
        .add_worker("p1", Config::new(Some("kv_producer")), true)
        .await;
    fleet.all_ready().await;
    load.more(20).await;
    // One is told by its operator, over HTTP, and is then gone from the fleet by itself.
    let drained = direct::post(fleet.sidecar_address("d0"), path::DRAIN, "").await;
    assert_eq!(drained.status, 202);
    load.more(20).await;
    fleet.worker_is_gone("d0").await;
    let seen = fleet.engine("d0").seen().len();
    load.more(20).await;
    assert_eq!(
        fleet.engine("d0").seen().len(),
        seen,
        "it takes no new work"
    );
    // The others are told to stop, as SIGTERM does.
    assert!(fleet.take_sidecar("p0").stop().await.is_ok());
    fleet.worker_is_gone("p0").await;
    load.more(20).await;
    assert!(fleet.take_sidecar("d0").stop().await.is_ok());
    let served = load.end().await;
    assert!(served >= 100);
    assert_eq!(
        fleet
            .router_page()
            .await
            .sum("baton_router_requests_total", &[("outcome", "ok")]),
        i64::try_from(served).unwrap()
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_serves_its_kv_until_it_is_settled() {
    let mut fleet = Setup::split().prefill("p1").start().await;
    // p1 is there only so that the fleet goes on.
    fleet.engine("p1").kill().await;
    fleet.worker_is("p1", "suspect").await;
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    let mut stopping = fleet.take_sidecar("p0");
    stopping.ask_to_stop();
    fleet.worker_is("p0", "draining").await;
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets", &[("state", "claimed")]),
        1
    );
    assert!(stopping.is_running(), "somebody may still come for its KV");
    gate.open();
    assert_eq!(
        exchange.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    fleet.engine("p0").only(Leg::Prefill);
    fleet.engine("d0").only(Leg::Decode);
    assert!(stopping.ended().await.is_ok());
    fleet.worker_is_gone("p0").await;
    fleet.engine("p1").start().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_finishes_its_streams() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).gate_after(2, &gate));
    let streamed = body().replace(r#""max_tokens":5"#, r#""max_tokens":5,"stream":true"#);
    let mut exchange = fleet.begin("/v1/completions", streamed).await;
    exchange.until(&model::text(PROMPT, 2)[5..]).await;
    let mut stopping = fleet.take_sidecar("d0");
    stopping.ask_to_stop();
    fleet.worker_is("d0", "draining").await;
    fleet.complete(body()).await.refused(503);
    gate.open();
    assert_eq!(
        exchange.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    assert!(stopping.ended().await.is_ok());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stops_finishes_what_it_began() {
    let mut fleet = Setup::split().start().await;
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin("/v1/completions", body()).await;
    gate.reached(1).await;
    let mut stopping = fleet.take_router(0);
    stopping.ask_to_stop();
    wait::until("nobody to be let in any more", || async {
        tokio::net::TcpStream::connect(fleet.address())
            .await
            .is_err()
    })
    .await;
    gate.open();
    assert_eq!(
        exchange.finish().await.served().generated(),
        model::text(PROMPT, 5)
    );
    assert!(stopping.ended().await.is_ok());
    fleet.start_router(0).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_routers_share_a_fleet_and_one_survives_the_other() {
    let mut fleet = Setup::split()
        .prefill("p1")
        .decode("d1")
        .routers(2)
        .start()
        .await;
    let (first, second) = (fleet.router_address(0), fleet.router_address(1));
    let both = Steady::start(&[first, second], 6);
    both.more(40).await;
    both.end().await;
    for address in [first, second] {
        let page = fleet::page(address).await;
        assert!(
            page.sum(
                "baton_router_requests_total",
                &[("plan", "split"), ("outcome", "ok")]
            ) > 0
        );
        assert_eq!(page.sum("baton_router_unsettled_total", &[]), 0);
    }
    fleet.take_router(1).kill();
    let one = Steady::start(&[first], 4);
    one.more(20).await;
    wait::until("the sidecars to notice", || async {
        fleet
            .sidecar_page("p0")
            .await
            .sum("baton_sidecar_routers", &[])
            == 1
    })
    .await;
    one.more(20).await;
    one.end().await;
    fleet.start_router(1).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_makes_no_sense_is_refused() {
    use baton_proto::watch::Registration;
    use baton_proto::{Epoch, PROTOCOL_VERSION, frame};
    let fleet = Setup::split().start().await;
    let good = Registration {
        protocol: PROTOCOL_VERSION,
        worker: "x".parse().unwrap(),
        epoch: Epoch(1),
        address: "http://127.0.0.1:1".to_owned(),
        leave: false,
    };
    let register = |registration: Registration| {
        direct::post(
            fleet.address(),
            path::REGISTER,
            frame::to_bytes(&registration),
        )
    };
    for (address, status) in [
        ("https://127.0.0.1:1", 400),
        ("127.0.0.1:1", 400),
        ("http://127.0.0.1:1/path", 400),
        ("", 400),
        ("http://", 400),
    ] {
        let bad = Registration {
            address: address.to_owned(),
            ..good.clone()
        };
        register(bad).await.refused(status);
    }
    let newer = Registration {
        protocol: PROTOCOL_VERSION + 1,
        ..good.clone()
    };
    let message = register(newer).await.refused(502);
    assert!(message.contains("use one version"), "{message}");
    for bytes in [&b""[..], b"\xc1", b"{}", &[0x91; 1000]] {
        direct::post(fleet.address(), path::REGISTER, bytes)
            .await
            .refused(400);
    }
    direct::post(fleet.address(), path::REGISTER, vec![0; 100_000])
        .await
        .refused(413);
    // An older life of a worker that is there does not replace it, nor say goodbye for it.
    for leave in [false, true] {
        let older = Registration {
            worker: "p0".parse().unwrap(),
            leave,
            ..good.clone()
        };
        register(older).await.refused(409);
    }
    // One that says it is there, but is not, is suspect and then forgotten.
    assert_eq!(register(good).await.status, 200);
    fleet.worker_is("x", "suspect").await;
    fleet.worker_is_gone("x").await;
    serves(&fleet).await;
    fleet.finish().await;
}

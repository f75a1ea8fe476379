//! Engines that stand still while their health is green, and workers that failed: who is asked, and by how many.

use baton_integration::ask::{Ask, completion};
use baton_integration::client;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::vllm::{EmulatedVllm, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::{fleet, wait};
use serde_json::Value;

/// Serves one request after the other until something holds, each of them right.
async fn serve_until(fleet: &Fleet, ask: &Ask, holds: impl AsyncFn() -> bool) {
    let all = async {
        while !holds().await {
            let answer = fleet.post(ask.path, &ask.body).await;
            assert_eq!(answer.served().generated(), ask.text);
        }
    };
    wait::bounded("what requests should bring about", all).await;
}

async fn breaker(fleet: &Fleet, router: usize, name: &str) -> Value {
    let view = fleet::view(fleet.router_address(router)).await;
    let workers = view["workers"].as_array().cloned().unwrap_or_default();
    let found = workers.into_iter().find(|worker| worker["id"] == name);
    found.unwrap_or_default()["breaker"].clone()
}

async fn is_healthy(engine: &EmulatedVllm) -> bool {
    client::call(engine.address(), "GET", "/health", &[], "")
        .await
        .status
        == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stands_still_is_suspect_and_its_requests_go_elsewhere() {
    let setup = Setup::new().plain("a").plain("b");
    let fleet = setup.sidecars(&["--progress-floor-s", "2"]).start().await;
    let (a, ask) = (fleet.engine("a"), completion(true));
    a.freeze(true);
    serve_until(&fleet, &ask, async || !a.seen().is_empty()).await;
    a.saw(Leg::Local, Fate::Aborted).await;
    let seen = fleet.worker_view("a").await;
    assert_eq!(seen["state"], "suspect", "{seen}");
    let reason = seen["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("no progress"), "{seen}");
    assert_eq!(seen["breaker"]["cause"], "stalled", "{seen}");
    assert!(is_healthy(a).await, "its health is green all the while");
    let page = fleet.sidecar_page("a").await;
    assert!(page.sum("baton_sidecar_engine_stalls_total", &[]) >= 1);
    assert!(page.sum("baton_sidecar_engine_stalled", &[]) >= 1);
    a.freeze(false);
    serve_until(&fleet, &ask, async || {
        fleet.worker_view("a").await["state"] == "ready"
    })
    .await;
    wait::until("the stall to be over", || async {
        let page = fleet.sidecar_page("a").await;
        page.sum("baton_sidecar_engine_stalled", &[]) == 0
    })
    .await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_legs_leave_an_engine_that_stands_still() {
    for (name, leg) in [("p0", Leg::Prefill), ("d0", Leg::Decode)] {
        let setup = Setup::split().prefill("p1").decode("d1");
        let fleet = setup.sidecars(&["--progress-floor-s", "2"]).start().await;
        let (engine, ask) = (fleet.engine(name), completion(true));
        engine.freeze(true);
        serve_until(&fleet, &ask, async || !engine.seen_of(leg).is_empty()).await;
        engine.saw(leg, Fate::Aborted).await;
        engine.freeze(false);
        serve_until(&fleet, &ask, async || {
            fleet.worker_view(name).await["state"] == "ready"
        })
        .await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stands_still_is_waited_for_where_nobody_else_could_serve() {
    let fleet = Setup::new()
        .plain("a")
        .sidecars(&["--progress-floor-s", "2"])
        .start()
        .await;
    let ask = completion(false);
    fleet.engine("a").freeze(true);
    let exchange = fleet.begin(ask.path, &ask.body).await;
    fleet.worker_is("a", "suspect").await;
    fleet.engine("a").freeze(false);
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    fleet.engine("a").only(Leg::Local);
    fleet.worker_is("a", "ready").await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_each_router_one_request_at_a_time_tries_a_worker_that_failed() {
    let fleet = Setup::new().plain("a").plain("b").routers(2).start().await;
    let (a, ask, gate) = (fleet.engine("a"), completion(false), Gate::new());
    let served = async |router: usize| {
        let headers = [("content-type", "application/json")];
        let address = fleet.router_address(router);
        let answer = client::call(address, "POST", ask.path, &headers, &ask.body).await;
        assert_eq!(answer.served().generated(), ask.text);
    };
    a.script(Rule::on(Leg::Local).times(2).fault(Fault::Reset));
    for router in [0, 1] {
        let failed = async {
            while breaker(&fleet, router, "a").await["state"] == "closed" {
                served(router).await;
            }
        };
        wait::bounded("a worker to fail", failed).await;
    }
    a.behave();
    a.script(Rule::on(Leg::Local).always().gate(&gate));
    let before = a.seen().len();
    let mut probes = Vec::new();
    for router in [0, 1] {
        wait::until("the breaker to be half open", || async {
            breaker(&fleet, router, "a").await["state"] == "half_open"
        })
        .await;
        // Whichever of them is the probe waits at the gate; nobody else comes there.
        let all: Vec<_> = (0..20)
            .map(|_| {
                let (address, ask) = (fleet.router_address(router), ask.clone());
                tokio::spawn(async move {
                    let headers = [("content-type", "application/json")];
                    client::call(address, "POST", ask.path, &headers, &ask.body).await
                })
            })
            .collect();
        gate.reached(router + 1).await;
        assert_eq!(breaker(&fleet, router, "a").await["probing"], true);
        probes.extend(all);
        for _ in 0..10 {
            served(router).await;
        }
    }
    assert_eq!(a.seen().len(), before + 2, "one of each router");
    gate.open();
    for probe in probes {
        let answer = wait::bounded("an answer", probe).await;
        assert_eq!(answer.unwrap().served().generated(), ask.text);
    }
    for router in [0, 1] {
        assert_eq!(breaker(&fleet, router, "a").await["state"], "closed");
    }
    fleet.finish().await;
}

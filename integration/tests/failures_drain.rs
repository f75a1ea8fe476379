//! Every worker and every router is replaced under load, one after the other, and no client notices.

use baton_integration::emulated::vllm::EngineId;
use baton_integration::fleet::{self, Fleet, Setup};
use baton_integration::steady::Steady;
use baton_integration::wait;

/// A worker stops as by SIGTERM, and another one takes its name.
async fn replace(fleet: &mut Fleet, name: &str, id: EngineId) {
    let stopping = fleet.take_sidecar(name);
    assert!(stopping.stop().await.is_ok(), "{name} drained");
    fleet.engine(name).restart(id).await;
    fleet.start_sidecar(name).await;
    fleet.all_ready().await;
}

async fn all_were_served(fleet: &Fleet, routers: usize, served: usize) {
    let mut ok = 0;
    for router in 0..routers {
        let page = fleet::page(fleet.router_address(router)).await;
        let outcome = |outcome| page.sum("baton_router_requests_total", &[("outcome", outcome)]);
        assert_eq!(
            outcome("ok"),
            page.sum("baton_router_requests_total", &[]),
            "nothing but what was served"
        );
        ok += outcome("ok");
    }
    assert_eq!(usize::try_from(ok), Ok(served));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_replacement_of_every_worker_fails_no_request() {
    let setup = Setup::split().prefill("p1").decode("d1");
    let mut fleet = setup.routers(2).start().await;
    let routers = [fleet.router_address(0), fleet.router_address(1)];
    let load = Steady::start(&routers, 6);
    load.more(20).await;
    for name in ["p0", "d0", "p1", "d1"] {
        replace(&mut fleet, name, EngineId::New).await;
        load.more(30).await;
    }
    let served = load.end().await;
    fleet.quiet().await;
    all_were_served(&fleet, 2, served).await;
    let page = fleet.router_page().await;
    assert!(page.sum("baton_router_requests_total", &[("plan", "split")]) > 0);
    assert!(page.sum("baton_router_requests_total", &[("plan", "local")]) > 0);
    fleet.finish().await;
}

/// Engines that are given fixed names: a decode engine cannot follow the restart of a prefill engine that it knows, so its
/// requests are served otherwise until it is replaced itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_replacement_under_the_old_names_fails_no_request() {
    let setup = Setup::new().prefill("p0").prefill("p1").decode("d0");
    let mut fleet = setup.decode("d1").start().await;
    let load = Steady::start(&[fleet.address()], 6);
    load.more(20).await;
    for name in ["p0", "p1", "d0", "d1"] {
        replace(&mut fleet, name, EngineId::Same).await;
        load.more(30).await;
    }
    let served = load.end().await;
    fleet.quiet().await;
    all_were_served(&fleet, 1, served).await;
    wait::until("every pair to be whole again", || async {
        let view = fleet.view().await;
        let pairs = view["pairs"].as_array().cloned().unwrap_or_default();
        pairs.len() == 4 && pairs.iter().all(|pair| pair["obstacle"].is_null())
    })
    .await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_replacement_of_every_router_fails_no_request() {
    let setup = Setup::split().router(&["--linger-s", "1"]);
    let mut fleet = setup.routers(2).start().await;
    let routers = [fleet.router_address(0), fleet.router_address(1)];
    let load = Steady::start(&routers, 6);
    load.more(20).await;
    for router in [0, 1] {
        assert!(fleet.take_router(router).stop().await.is_ok());
        load.more(20).await;
        fleet.start_router(router).await;
        fleet.all_ready().await;
        load.more(20).await;
    }
    assert!(load.end().await >= 100);
    fleet.finish().await;
}

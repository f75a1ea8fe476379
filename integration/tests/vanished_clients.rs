//! Clients that go away: whatever was begun for them ends, what an engine still holds is counted, and nothing leaks.

use baton_integration::client::Exchange;
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::emulated::vllm::{Config, Fate};
use baton_integration::fleet::{Fleet, Setup};

const PROMPT: &str =
    "A client that is not there any more when its answer comes, whatever the reason may be.";

fn body(stream: bool) -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":6,"stream":{stream}}}"#)
}

/// Half of all clients close in order, half with a reset.
fn leave(exchange: Exchange, reset: bool) {
    if reset {
        exchange.vanish();
    } else {
        drop(exchange);
    }
}

async fn cancelled(fleet: &Fleet, name: &str, stage: &str) -> i64 {
    let labels = [("stage", stage), ("outcome", "cancelled")];
    fleet
        .sidecar_page(name)
        .await
        .sum("baton_sidecar_legs_total", &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn before_it_has_sent_its_request() {
    let fleet = Setup::split().start().await;
    for reset in [false, true] {
        let mut exchange = Exchange::open(fleet.address()).await;
        exchange
            .send(
                "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 90\r\n\r\n{\"model\"",
            )
            .await;
        leave(exchange, reset);
    }
    fleet.quiet().await;
    assert!(fleet.engine("p0").seen().is_empty());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_its_prompt_is_prefilled() {
    let fleet = Setup::split().start().await;
    for (number, (stream, reset)) in [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .enumerate()
    {
        let (gate, p0) = (Gate::new(), fleet.engine("p0"));
        p0.script(Rule::on(Leg::Prefill).gate(&gate));
        let exchange = fleet.begin("/v1/completions", body(stream)).await;
        gate.reached(1).await;
        leave(exchange, reset);
        p0.saw(Leg::Prefill, Fate::Aborted).await;
        fleet.quiet().await;
        assert_eq!(
            p0.seen_of(Leg::Prefill).len(),
            number + 1,
            "it is not tried again"
        );
        assert_eq!(p0.holds(), 0);
        assert_eq!(fleet.stranded("p0").await, 0, "nothing was held");
    }
    assert!(fleet.engine("d0").seen().is_empty());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_prefill_and_the_first_token() {
    let fleet = Setup::split().start().await;
    for (number, (stream, reset)) in [(false, false), (true, true)].into_iter().enumerate() {
        let (gate, d0) = (Gate::new(), fleet.engine("d0"));
        d0.script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin("/v1/completions", body(stream)).await;
        gate.reached(1).await;
        leave(exchange, reset);
        d0.saw(Leg::Decode, Fate::Aborted).await;
        fleet.quiet().await;
        let count = i64::try_from(number).unwrap() + 1;
        fleet.gave_back("p0").await;
        assert_eq!(cancelled(&fleet, "d0", "decode").await, count);
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_its_stream() {
    let fleet = Setup::split().start().await;
    for (number, reset) in [false, true].into_iter().enumerate() {
        let (gate, d0) = (Gate::new(), fleet.engine("d0"));
        d0.script(Rule::on(Leg::Decode).gate_after(2, &gate));
        let mut exchange = fleet.begin("/v1/completions", body(true)).await;
        exchange
            .until(&model::text(PROMPT, 2)[model::text(PROMPT, 1).len()..])
            .await;
        leave(exchange, reset);
        d0.saw(Leg::Decode, Fate::Aborted).await;
        fleet.quiet().await;
        let count = i64::try_from(number).unwrap() + 1;
        assert_eq!(cancelled(&fleet, "d0", "decode").await, count);
        let page = fleet.router_page().await;
        let labels = [("plan", "split"), ("outcome", "cancelled")];
        assert_eq!(page.sum("baton_router_requests_total", &labels), count);
    }
    assert_eq!(fleet.stranded("p0").await, 0, "the handoffs were settled");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_engine_does_it_all() {
    let fleet = Setup::new().plain("a").start().await;
    for (stream, reset) in [(false, true), (true, false)] {
        let (gate, a) = (Gate::new(), fleet.engine("a"));
        a.script(Rule::on(Leg::Local).gate(&gate));
        let exchange = fleet.begin("/v1/completions", body(stream)).await;
        gate.reached(1).await;
        leave(exchange, reset);
        a.saw(Leg::Local, Fate::Aborted).await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_waits_to_be_admitted() {
    let fleet = Setup::new()
        .plain("a")
        .sidecars(&["--max-concurrency", "1"])
        .start()
        .await;
    let gate = Gate::new();
    fleet.engine("a").script(Rule::on(Leg::Local).gate(&gate));
    let first = fleet.begin("/v1/completions", body(false)).await;
    gate.reached(1).await;
    let second = fleet.begin("/v1/completions", body(false)).await;
    baton_integration::wait::until("the second to wait", || async {
        fleet
            .sidecar_page("a")
            .await
            .sum("baton_sidecar_queued", &[])
            == 1
    })
    .await;
    second.vanish();
    baton_integration::wait::until("its place to be free", || async {
        fleet
            .sidecar_page("a")
            .await
            .sum("baton_sidecar_queued", &[])
            == 0
    })
    .await;
    gate.open();
    assert_eq!(
        first.finish().await.served().generated(),
        model::text(PROMPT, 6)
    );
    assert_eq!(
        fleet.engine("a").seen().len(),
        1,
        "the engine never saw the second"
    );
    fleet.finish().await;
}

/// A hundred clients leave at every possible moment; whoever stays is served right, and all comes to rest.
#[tokio::test(flavor = "multi_thread")]
async fn at_any_moment_at_all() {
    let short = |role| Config {
        lease: std::time::Duration::from_secs(2),
        ..Config::new(Some(role))
    };
    let fleet = std::sync::Arc::new(
        Setup::new()
            .worker("p0", short("kv_producer"))
            .worker("d0", short("kv_consumer"))
            .router(&["--force", "split"])
            .start()
            .await,
    );
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..100u64 {
        let fleet = std::sync::Arc::clone(&fleet);
        clients.spawn(async move {
            let exchange = fleet.begin("/v1/completions", body(number % 2 == 0)).await;
            if number % 5 == 0 {
                assert_eq!(
                    exchange.finish().await.served().generated(),
                    model::text(PROMPT, 6)
                );
            } else {
                // Not synchronisation: the moment of leaving is what varies.
                tokio::time::sleep(std::time::Duration::from_micros(number * 137 % 20_000)).await;
                leave(exchange, number % 3 == 0);
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    fleet.quiet().await;
    let fleet = std::sync::Arc::into_inner(fleet).unwrap();
    baton_integration::wait::until("all leases to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    baton_integration::wait::until("the ledger to forget them", || async {
        fleet
            .sidecar_page("p0")
            .await
            .sum("baton_sidecar_tickets", &[])
            == 0
    })
    .await;
    fleet.finish().await;
}

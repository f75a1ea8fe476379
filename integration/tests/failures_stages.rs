//! What goes wrong at each stage of a split request, and the rule that docs/failure-model.md has for it.

use baton_integration::ask::{Ask, chat, completion};
use baton_integration::client::{self, Exchange};
use baton_integration::direct;
use baton_integration::emulated::vllm::script::{Gate, Leg, Rule};
use baton_integration::emulated::vllm::{EngineId, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use baton_proto::call::path;
use serde_json::Value;

/// Two of each kind: whoever fails, somebody else is there.
fn pairs() -> Setup {
    Setup::split().prefill("p1").decode("d1")
}

/// Workers that take one leg at a time.
const ONE_AT_A_TIME: [&str; 2] = ["--max-concurrency", "1"];

/// Starts a request whose leg of this kind waits at the gate; where it waits.
async fn at_gate<'a>(
    fleet: &Fleet,
    ask: &Ask,
    leg: Leg,
    names: [&'a str; 2],
    gate: &Gate,
) -> (Exchange, &'a str) {
    for name in names {
        fleet.engine(name).script(Rule::on(leg).gate(gate));
    }
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    let here = names
        .into_iter()
        .find(|name| !fleet.engine(name).seen_of(leg).is_empty());
    for name in names {
        fleet.engine(name).behave();
    }
    (exchange, here.expect("one of them was asked"))
}

async fn is_right(exchange: Exchange, ask: &Ask) {
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
}

/// Keeps a worker's only place with a leg of the test's own; whoever comes then waits.
async fn occupied(fleet: &Fleet, name: &str) -> (Gate, tokio::task::JoinHandle<()>) {
    let gate = Gate::new();
    fleet
        .engine(name)
        .script(Rule::on(Leg::Local).about("occupied").gate(&gate));
    let sidecar = fleet.sidecar_address(name);
    let body = r#"{"model":"tiny","prompt":"occupied","max_tokens":2}"#;
    let leg = tokio::spawn(async move {
        direct::generate(sidecar, body).await;
    });
    gate.reached(1).await;
    (gate, leg)
}

async fn waits_at(fleet: &Fleet, name: &str, legs: i64) {
    wait::until("a leg to wait to be admitted", || async {
        let page = fleet.sidecar_page(name).await;
        page.sum("baton_sidecar_queued", &[]) == legs
    })
    .await;
}

async fn begun(fleet: &Fleet) -> (Exchange, Ask) {
    let ask = completion(false);
    let request = client::request("POST", ask.path, &[], ask.body.as_bytes());
    let mut exchange = Exchange::open(fleet.address()).await;
    exchange.send(&request[..request.len() - 10]).await;
    wait::until("the request to be there", || async {
        let page = fleet.router_page().await;
        page.sum("baton_router_in_flight", &[]) == 1
    })
    .await;
    (exchange, ask)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_before_it_has_read_a_request_leaves_nothing() {
    let mut fleet = Setup::split().start().await;
    let (exchange, ask) = begun(&fleet).await;
    fleet.take_router(0).kill();
    assert!(exchange.closed_silently().await, "nothing was promised");
    for name in ["p0", "d0"] {
        assert!(fleet.engine(name).seen().is_empty());
    }
    fleet.start_router(0).await;
    fleet.all_ready().await;
    is_right(fleet.begin(ask.path, &ask.body).await, &ask).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stops_reads_the_requests_that_it_began_to_read() {
    let mut fleet = Setup::split().start().await;
    let (mut exchange, ask) = begun(&fleet).await;
    let mut stopping = fleet.take_router(0);
    stopping.ask_to_stop();
    wait::until("nobody to be let in any more", || async {
        let connected = tokio::net::TcpStream::connect(fleet.address());
        connected.await.is_err()
    })
    .await;
    let rest = &ask.body[ask.body.len() - 10..];
    exchange.send(rest).await;
    is_right(exchange, &ask).await;
    assert!(stopping.ended().await.is_ok());
    fleet.start_router(0).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_while_a_request_is_read_is_not_planned() {
    let mut fleet = pairs().start().await;
    let (mut exchange, ask) = begun(&fleet).await;
    fleet.take_sidecar("p0").kill();
    fleet.worker_is("p0", "suspect").await;
    exchange.send(&ask.body[ask.body.len() - 10..]).await;
    is_right(exchange, &ask).await;
    assert!(fleet.engine("p0").seen().is_empty());
    fleet.start_sidecar("p0").await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_its_leg_is_admitted_leaves_nothing() {
    for (name, held) in [("p0", 0), ("d0", 1)] {
        let fleet = Setup::split().sidecars(&ONE_AT_A_TIME).start().await;
        let (busy, leg) = occupied(&fleet, name).await;
        let ask = completion(true);
        let exchange = fleet.begin(ask.path, &ask.body).await;
        waits_at(&fleet, name, 1).await;
        exchange.vanish();
        waits_at(&fleet, name, 0).await;
        busy.open();
        leg.await.unwrap();
        fleet.quiet().await;
        let legs = [Leg::Prefill, Leg::Decode].map(|leg| fleet.engine(name).seen_of(leg).len());
        assert_eq!(legs, [0, 0], "the engine of {name} never saw it");
        fleet.gave_back("p0").await;
        let given_up = fleet.sidecar_page("p0").await;
        let released = [("end", "released")];
        assert_eq!(
            given_up.sum("baton_sidecar_tickets_ended_total", &released),
            held
        );
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leg_that_is_not_admitted_in_time_is_refused_unseen() {
    for name in ["p0", "d0"] {
        let fleet = Setup::split()
            .sidecars(&ONE_AT_A_TIME)
            .router(&["--request-timeout-s", "1"])
            .start()
            .await;
        let (busy, leg) = occupied(&fleet, name).await;
        let ask = completion(true);
        let answer = fleet.post(ask.path, &ask.body).await;
        assert!([503, 504].contains(&answer.status), "{answer:?}");
        answer.refused(answer.status);
        assert_eq!(fleet.engine(name).seen().len(), 1, "only what was there");
        busy.open();
        leg.await.unwrap();
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_refuses_is_passed_over() {
    // Full, draining, or gone: nothing was begun there, so another one is asked at once.
    for refusal in ["full", "drains", "gone"] {
        let mut fleet = pairs()
            .sidecars(&ONE_AT_A_TIME)
            .sidecars(&["--max-queue", "0"])
            .start()
            .await;
        let mut busy = None;
        match refusal {
            "full" => busy = Some(occupied(&fleet, "p0").await),
            "drains" => {
                let drained = direct::post(fleet.sidecar_address("p0"), path::DRAIN, "").await;
                assert_eq!(drained.status, 202);
            }
            _ => fleet.take_sidecar("p0").kill(),
        }
        for _ in 0..6 {
            let ask = chat(true);
            is_right(fleet.begin(ask.path, &ask.body).await, &ask).await;
        }
        assert!(fleet.engine("p0").seen_of(Leg::Prefill).is_empty());
        if let Some((gate, leg)) = busy {
            gate.open();
            leg.await.unwrap();
        }
        if refusal == "gone" {
            fleet.start_sidecar("p0").await;
        }
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_before_a_leg_is_admitted_spoils_no_answer() {
    for name in ["p0", "d0"] {
        let fleet = Setup::split().sidecars(&ONE_AT_A_TIME).start().await;
        let (busy, leg) = occupied(&fleet, name).await;
        let ask = completion(false);
        let exchange = fleet.begin(ask.path, &ask.body).await;
        waits_at(&fleet, name, 1).await;
        fleet.engine(name).restart(EngineId::Same).await;
        busy.open();
        leg.await.unwrap();
        is_right(exchange, &ask).await;
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_under_its_old_name_in_the_middle_of_a_leg_spoils_no_answer() {
    let legs = [(Leg::Prefill, ["p0", "p1"]), (Leg::Decode, ["d0", "d1"])];
    for (leg, names) in legs {
        for ask in [completion(false), chat(true)] {
            let (fleet, gate) = (pairs().start().await, Gate::new());
            let (exchange, here) = at_gate(&fleet, &ask, leg, names, &gate).await;
            fleet.engine(here).restart(EngineId::Same).await;
            gate.open();
            is_right(exchange, &ask).await;
            fleet.finish().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_dies_before_the_first_token_costs_no_answer() {
    let legs = [(Leg::Prefill, ["p0", "p1"]), (Leg::Decode, ["d0", "d1"])];
    for (leg, names) in legs {
        for ask in [completion(false), chat(true)] {
            let (mut fleet, gate) = (pairs().start().await, Gate::new());
            let (exchange, here) = at_gate(&fleet, &ask, leg, names, &gate).await;
            fleet.take_sidecar(here).kill();
            is_right(exchange, &ask).await;
            fleet.engine(here).saw(leg, Fate::Aborted).await;
            gate.open();
            fleet.start_sidecar(here).await;
            fleet.all_ready().await;
            fleet.finish().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_finishes_its_legs() {
    let legs = [(Leg::Prefill, ["p0", "p1"]), (Leg::Decode, ["d0", "d1"])];
    for (leg, names) in legs {
        let (mut fleet, gate, ask) = (pairs().start().await, Gate::new(), completion(false));
        let (exchange, here) = at_gate(&fleet, &ask, leg, names, &gate).await;
        let mut stopping = fleet.take_sidecar(here);
        stopping.ask_to_stop();
        fleet.worker_is(here, "draining").await;
        gate.open();
        is_right(exchange, &ask).await;
        fleet.engine(here).only(leg);
        assert!(stopping.ended().await.is_ok());
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_stands_still_with_a_ticket_out_holds_its_kv_all_the_same() {
    let (fleet, gate, ask) = (Setup::split().start().await, Gate::new(), completion(true));
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    fleet.engine("p0").freeze(true);
    gate.open();
    is_right(exchange, &ask).await;
    fleet.engine("d0").only(Leg::Decode);
    fleet.engine("p0").freeze(false);
    fleet.finish().await;
}

/// The KV has come and decode has answered, but the prefill engine cannot say any more that it was the right one.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_dies_before_settle_lets_no_answer_out() {
    let (fleet, gate, ask) = (Setup::split().start().await, Gate::new(), completion(false));
    let half_out = Rule::on(Leg::Decode).gate_after(0, &gate);
    fleet.engine("d0").script(half_out);
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    fleet.engine("p0").kill().await;
    gate.open();
    is_right(exchange, &ask).await;
    let page = fleet.router_page().await;
    assert_eq!(page.sum("baton_router_unsettled_total", &[]), 1);
    fleet.engine("p0").start().await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_handoff_is_settled_leaves_nothing() {
    use baton_integration::emulated::vllm::side_channel::SideChannel;
    for stream in [false, true] {
        let (fleet, ask) = (Setup::split().start().await, completion(stream));
        // Engines that have met need no side channel any more; settle does.
        fleet.post(ask.path, &ask.body).await.served();
        fleet.engine("p0").side_channel_mode(SideChannel::Mute);
        let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
        let exchange = fleet.begin(ask.path, &ask.body).await;
        wait::until("decode to have answered", || async {
            let seen = fleet.engine("d0").seen_of(Leg::Decode);
            seen.len() > decodes
                && seen
                    .last()
                    .is_some_and(|seen| seen.fate() == Fate::Answered)
        })
        .await;
        exchange.vanish();
        fleet.quiet().await;
        fleet.engine("p0").behave();
        is_right(fleet.begin(ask.path, &ask.body).await, &ask).await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_goes_after_the_first_token_hurts_no_stream() {
    let (mut fleet, gate, ask) = (Setup::split().start().await, Gate::new(), completion(true));
    let in_stream = Rule::on(Leg::Decode).gate_after(2, &gate);
    fleet.engine("d0").script(in_stream);
    let mut exchange = fleet.begin(ask.path, &ask.body).await;
    exchange.until(&ask.text[5..10]).await;
    fleet.take_sidecar("p0").kill();
    fleet.engine("p0").kill().await;
    gate.open();
    is_right(exchange, &ask).await;
    fleet.engine("p0").start().await;
    fleet.start_sidecar("p0").await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_dies_in_a_stream_cuts_it_and_ends_it_in_the_engine() {
    let (mut fleet, gate, ask) = (Setup::split().start().await, Gate::new(), completion(true));
    let in_stream = Rule::on(Leg::Decode).gate_after(2, &gate);
    fleet.engine("d0").script(in_stream);
    let mut exchange = fleet.begin(ask.path, &ask.body).await;
    exchange.until(&ask.text[5..10]).await;
    fleet.take_router(0).kill();
    let answer = exchange.finish().await;
    let honest = !answer.complete || answer.text().contains(r#"{"error":"#);
    assert!(honest, "nobody takes it for whole: {answer:?}");
    fleet.engine("d0").saw(Leg::Decode, Fate::Aborted).await;
    fleet.start_router(0).await;
    fleet.all_ready().await;
    fleet.finish().await;
}

/// What was computed for nothing is counted, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn prefills_that_were_for_nothing_are_counted_in_seconds() {
    let (fleet, gate, ask) = (Setup::split().start().await, Gate::new(), completion(true));
    let wasted = async || -> Value {
        let page = fleet.router_page().await;
        let lines = page.text().lines();
        let of = |line: &str| {
            let sample = line.strip_prefix("baton_router_wasted_prefill_seconds_total{cause=\"")?;
            let (cause, seconds) = sample.split_once("\"} ")?;
            Some((cause.to_owned(), seconds.parse::<f64>().ok()?.into()))
        };
        Value::Object(lines.filter_map(of).collect())
    };
    is_right(fleet.begin(ask.path, &ask.body).await, &ask).await;
    assert_eq!(wasted().await, serde_json::json!({}));
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    exchange.vanish();
    fleet.quiet().await;
    let after = wasted().await;
    assert!(after["abandoned"].as_f64() > Some(0.0), "{after}");
    let failing = baton_integration::emulated::vllm::script::Fault::Reset;
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).fault(failing));
    is_right(fleet.begin(ask.path, &ask.body).await, &ask).await;
    let after = wasted().await;
    assert!(after["not_decoded"].as_f64() > Some(0.0), "{after}");
    fleet.finish().await;
}

//! Engines that fail, before and after the commit point: until it a failure is repaired without a trace, after it the
//! client is told honestly.

use std::time::{Duration, Instant};

use baton_integration::ask::{chat, completion};
use baton_integration::client::Answer;
use baton_integration::emulated::vllm::Fate;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::fleet::Setup;
use baton_integration::wait;
use serde_json::Value;

fn unary_faults() -> Vec<Fault> {
    vec![
        Fault::Reset,
        Fault::Status(500, r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#.into()),
        Fault::Status(503, String::new()),
        Fault::EmptyOk,
        Fault::BodyOk("{".into()),
        Fault::BodyOk("<html>".into()),
        Fault::BodyOk(r#"{"error":{"message":"in a 200","code":500}}"#.into()),
        Fault::BodyOk(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#.into()),
        Fault::Garbage,
        Fault::Truncated,
    ]
}

fn stream_faults() -> Vec<Fault> {
    vec![
        Fault::InBand {
            after: 0,
            done: true,
        },
        Fault::InBand {
            after: 0,
            done: false,
        },
        Fault::CutInEvent(0),
        Fault::EndEarly(0),
        Fault::ResetAfter(0),
        Fault::Reset,
        Fault::Status(500, "not even JSON".into()),
        Fault::EmptyOk,
        Fault::BodyOk("data: not a stream by its content type\n\n".into()),
        Fault::Garbage,
    ]
}

/// One complete answer, as if nothing had happened.
#[track_caller]
fn without_a_trace(answer: &Answer, text: &str, fault: &Fault) {
    assert_eq!(answer.served().generated(), text, "{fault:?}");
    let shown = answer.text();
    assert!(!shown.contains("error"), "{fault:?}: {shown}");
    assert!(
        shown.matches(r#""role":"assistant""#).count() <= 1,
        "{fault:?}: {shown}"
    );
    assert!(shown.matches("[DONE]").count() <= 1, "{fault:?}: {shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_once_is_repaired_without_a_trace() {
    let fleet = Setup::split().start().await;
    for fault in unary_faults() {
        for ask in [completion(false), chat(true)] {
            let before = fleet.engine("p0").seen_of(Leg::Prefill).len();
            fleet
                .engine("p0")
                .script(Rule::on(Leg::Prefill).fault(fault.clone()));
            without_a_trace(&fleet.post(ask.path, &ask.body).await, &ask.text, &fault);
            assert_eq!(
                fleet.engine("p0").seen_of(Leg::Prefill).len(),
                before + 2,
                "{fault:?}"
            );
        }
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_that_fails_once_before_its_first_token_is_repaired_without_a_trace() {
    let fleet = Setup::split().start().await;
    let unary = unary_faults().into_iter().map(|fault| (fault, false));
    let streamed = stream_faults().into_iter().map(|fault| (fault, true));
    for (fault, stream) in unary.chain(streamed) {
        for ask in [completion(stream), chat(stream)] {
            fleet
                .engine("d0")
                .script(Rule::on(Leg::Decode).fault(fault.clone()));
            without_a_trace(&fleet.post(ask.path, &ask.body).await, &ask.text, &fault);
        }
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leg_that_always_fails_leaves_the_request_to_one_engine() {
    let fleet = Setup::split().start().await;
    let ask = completion(true);
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).always().fault(Fault::Reset));
    assert_eq!(
        fleet.post(ask.path, &ask.body).await.served().generated(),
        ask.text
    );
    assert_eq!(
        fleet.engine("p0").seen_of(Leg::Prefill).len(),
        2,
        "a body that ends engines must not end many"
    );
    assert_eq!(fleet.engine("d0").only(Leg::Local).body, ask.body);
    fleet.engine("p0").behave();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).always().fault(Fault::InBand {
            after: 0,
            done: true,
        }));
    assert_eq!(
        fleet.post(ask.path, &ask.body).await.served().generated(),
        ask.text
    );
    assert_eq!(fleet.engine("d0").seen_of(Leg::Decode).len(), 2);
    assert_eq!(fleet.engine("d0").seen_of(Leg::Local).len(), 2);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_everything_fails_the_client_is_told_in_the_engines_words() {
    let fleet = Setup::split().start().await;
    for name in ["p0", "d0"] {
        let sorry = r#"{"error":{"message":"out of luck","type":"InternalServerError","param":null,"code":500}}"#;
        fleet
            .engine(name)
            .script(Rule::any().always().fault(Fault::Status(500, sorry.into())));
    }
    for ask in [completion(false), completion(true), chat(true)] {
        let message = fleet.post(ask.path, &ask.body).await.refused(502);
        assert!(message.contains("out of luck"), "{message}");
    }
    let seen = fleet.engine("p0").seen().len() + fleet.engine("d0").seen().len();
    assert!(seen <= 9, "three requests cost {seen} attempts");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefill_engine_steps_in_for_a_dead_one() {
    let fleet = Setup::split().prefill("p1").start().await;
    let ask = completion(true);
    for name in ["p0", "p1"] {
        fleet
            .engine(name)
            .script(Rule::on(Leg::Prefill).fault(Fault::Die));
    }
    // Both die of their first one; whoever is asked first must not take the other along more than once.
    assert_eq!(
        fleet.post(ask.path, &ask.body).await.served().generated(),
        ask.text
    );
    for name in ["p0", "p1"] {
        if !fleet.engine(name).is_alive() {
            fleet.engine(name).start().await;
        }
        fleet.engine(name).behave();
    }
    fleet.all_ready().await;
    fleet.engine("p0").kill().await;
    for _ in 0..4 {
        assert_eq!(
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text
        );
    }
    fleet.worker_is("p0", "suspect").await;
    fleet.engine("p0").start().await;
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_dies_at_any_moment_costs_no_answer() {
    for fault in [Fault::Die, Fault::DieInBody, Fault::DieAfter] {
        let fleet = Setup::split().start().await;
        for ask in [completion(false), chat(true)] {
            fleet.all_ready().await;
            fleet
                .engine("p0")
                .script(Rule::on(Leg::Prefill).fault(fault.clone()));
            without_a_trace(&fleet.post(ask.path, &ask.body).await, &ask.text, &fault);
            wait::until("the engine to be down", || async {
                !fleet.engine("p0").is_alive()
            })
            .await;
            fleet.engine("p0").start().await;
        }
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_that_dies_before_its_first_token_costs_no_answer() {
    let fleet = Setup::split().decode("d1").start().await;
    for ask in [completion(false), completion(true), chat(true)] {
        fleet.all_ready().await;
        let gate = Gate::new();
        for name in ["d0", "d1"] {
            fleet.engine(name).script(Rule::on(Leg::Decode).gate(&gate));
        }
        let exchange = fleet.begin(ask.path, &ask.body).await;
        gate.reached(1).await;
        let asked = ["d0", "d1"].map(|name| fleet.engine(name).working_on());
        let chosen = if asked[0] == 1 { "d0" } else { "d1" };
        fleet.engine(chosen).kill().await;
        gate.open();
        without_a_trace(&exchange.finish().await, &ask.text, &Fault::Die);
        fleet.engine(chosen).start().await;
        for name in ["d0", "d1"] {
            fleet.engine(name).behave();
        }
    }
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_token_a_failure_is_one_honest_event() {
    let fleet = Setup::split().sidecars(&["--stall-s", "1"]).start().await;
    let faults = [
        Fault::InBand {
            after: 2,
            done: true,
        },
        Fault::InBand {
            after: 2,
            done: false,
        },
        Fault::CutInEvent(2),
        Fault::EndEarly(2),
        Fault::ResetAfter(2),
        Fault::Stall(2),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let ask = if number % 2 == 0 {
            completion(true)
        } else {
            chat(true)
        };
        let gate = Gate::new();
        fleet.engine("d0").script(
            Rule::on(Leg::Decode)
                .gate_after(2, &gate)
                .fault(fault.clone()),
        );
        let before = fleet.engine("d0").seen().len();
        let mut exchange = fleet.begin(ask.path, &ask.body).await;
        exchange.until(&ask.text[5..10]).await;
        gate.open();
        let answer = exchange.finish().await;
        assert!(
            answer.status == 200 && answer.complete,
            "{fault:?}: {answer:?}"
        );
        honest_end(&answer, &ask.text[..10], &fault);
        assert_eq!(
            fleet.engine("d0").seen().len(),
            before + 1,
            "{fault:?}: nothing is retried past the commit point"
        );
    }
    fleet.quiet().await;
    let page = fleet.router_page().await;
    let ok = page.sum(
        "baton_router_requests_total",
        &[("plan", "split"), ("outcome", "ok")],
    );
    assert_eq!(
        ok,
        0,
        "streams that failed are not counted as served:\n{}",
        page.text()
    );
    let page = fleet.sidecar_page("d0").await;
    assert_eq!(
        page.sum(
            "baton_sidecar_legs_total",
            &[("stage", "decode"), ("outcome", "engine_failed")]
        ),
        6
    );
    fleet.finish().await;
}

/// The tokens so far, then one error event and nothing after it.
#[track_caller]
fn honest_end(answer: &Answer, said: &str, fault: &Fault) {
    let events = answer.events();
    let (last, before) = events.split_last().expect("a stream has events");
    let last: Value =
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{fault:?}: {events:?}"));
    let message = last["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{fault:?} ends with {last}");
    let words: String = before
        .iter()
        .map(|event| {
            let event: Value =
                serde_json::from_str(event).unwrap_or_else(|_| panic!("{fault:?}: {events:?}"));
            assert!(
                event.get("error").is_none(),
                "{fault:?}: more than one error: {events:?}"
            );
            let choice = &event["choices"][0];
            let text = choice["text"]
                .as_str()
                .or(choice["delta"]["content"].as_str());
            text.unwrap_or_default().to_owned()
        })
        .collect();
    assert_eq!(words, said, "{fault:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_that_dies_in_the_stream_is_an_honest_event() {
    let fleet = Setup::split().start().await;
    let ask = chat(true);
    let gate = Gate::new();
    fleet.engine("d0").script(
        Rule::on(Leg::Decode)
            .gate_after(2, &gate)
            .fault(Fault::DieAfterTokens(2)),
    );
    let mut exchange = fleet.begin(ask.path, &ask.body).await;
    exchange.until(&ask.text[5..10]).await;
    gate.open();
    honest_end(
        &exchange.finish().await,
        &ask.text[..10],
        &Fault::DieAfterTokens(2),
    );
    fleet.worker_is("d0", "suspect").await;
    fleet.post(ask.path, &ask.body).await.refused(503);
    fleet.engine("d0").start().await;
    fleet.all_ready().await;
    assert_eq!(
        fleet.post(ask.path, &ask.body).await.served().generated(),
        ask.text
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_hangs_is_given_up_in_time() {
    let fleet = Setup::split()
        .router(&["--request-timeout-s", "1"])
        .start()
        .await;
    let cases = [
        ("p0", Leg::Prefill, Fault::Hang, false),
        ("d0", Leg::Decode, Fault::Hang, false),
        ("d0", Leg::Decode, Fault::Hang, true),
        ("d0", Leg::Decode, Fault::Stall(0), true),
        ("d0", Leg::Decode, Fault::StallInBody, false),
    ];
    for (name, leg, fault, stream) in cases {
        let engine = fleet.engine(name);
        engine.script(Rule::on(leg).always().fault(fault.clone()));
        for ask in [completion(stream), chat(stream)] {
            let started = Instant::now();
            let answer = fleet.post(ask.path, &ask.body).await;
            let message = answer.refused(504);
            let took = started.elapsed();
            assert!(
                took < Duration::from_secs(4),
                "{fault:?} on {leg:?} took {took:?}: {message}"
            );
            engine.saw(leg, Fate::Aborted).await;
        }
        engine.behave();
    }
    // The same with nothing to split.
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Local).always().fault(Fault::Hang));
    fleet
        .complete(r#"{"model":"tiny","prompt":"x","max_tokens":1}"#)
        .await
        .refused(504);
    fleet.finish().await;
}

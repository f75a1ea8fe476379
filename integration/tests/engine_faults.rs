//! Engines that fail, before and after the commit point: until it a failure is repaired without a trace, after it the
//! client is told honestly.

use std::time::{Duration, Instant};

use baton_integration::client::Answer;
use baton_integration::fake_vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::fake_vllm::side_channel::SideChannel;
use baton_integration::fake_vllm::{EngineId, Fate, Http, model};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use serde_json::{Value, json};

const PROMPT: &str =
    "Engines fail in every way there is, and in some that nobody has thought of so far.";

fn completion(stream: bool) -> (&'static str, String, String) {
    let body =
        format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5,"stream":{stream}}}"#);
    ("/v1/completions", body, model::text(PROMPT, 5))
}

fn chat(stream: bool) -> (&'static str, String, String) {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": 5, "stream": stream});
    (
        "/v1/chat/completions",
        body.to_string(),
        model::chat_text(&messages, 5),
    )
}

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
        for (path, body, text) in [completion(false), chat(true)] {
            let before = fleet.engine("p0").seen_of(Leg::Prefill).len();
            fleet
                .engine("p0")
                .script(Rule::on(Leg::Prefill).fault(fault.clone()));
            without_a_trace(&fleet.post(path, body).await, &text, &fault);
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
        for (path, body, text) in [completion(stream), chat(stream)] {
            fleet
                .engine("d0")
                .script(Rule::on(Leg::Decode).fault(fault.clone()));
            without_a_trace(&fleet.post(path, body).await, &text, &fault);
        }
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leg_that_always_fails_leaves_the_request_to_one_engine() {
    let fleet = Setup::split().start().await;
    let (path, body, text) = completion(true);
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).always().fault(Fault::Reset));
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    assert_eq!(
        fleet.engine("p0").seen_of(Leg::Prefill).len(),
        2,
        "a body that ends engines must not end many"
    );
    assert_eq!(fleet.engine("d0").only(Leg::Local).body, body);
    fleet.engine("p0").behave();
    fleet
        .engine("d0")
        .script(Rule::on(Leg::Decode).always().fault(Fault::InBand {
            after: 0,
            done: true,
        }));
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
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
    for (path, body, _) in [completion(false), completion(true), chat(true)] {
        let message = fleet.post(path, body).await.refused(502);
        assert!(message.contains("out of luck"), "{message}");
    }
    let seen = fleet.engine("p0").seen().len() + fleet.engine("d0").seen().len();
    assert!(seen <= 9, "three requests cost {seen} attempts");
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefill_engine_steps_in_for_a_dead_one() {
    let fleet = Setup::split().prefill("p1").start().await;
    let (path, body, text) = completion(true);
    for name in ["p0", "p1"] {
        fleet
            .engine(name)
            .script(Rule::on(Leg::Prefill).fault(Fault::Die));
    }
    // Both die of their first one; whoever is asked first must not take the other along more than once.
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    for name in ["p0", "p1"] {
        if !fleet.engine(name).is_alive() {
            fleet.engine(name).start().await;
        }
        fleet.engine(name).behave();
    }
    fleet.all_ready().await;
    fleet.engine("p0").kill().await;
    for _ in 0..4 {
        assert_eq!(fleet.post(path, &body).await.served().generated(), text);
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
        for (path, body, text) in [completion(false), chat(true)] {
            fleet.all_ready().await;
            fleet
                .engine("p0")
                .script(Rule::on(Leg::Prefill).fault(fault.clone()));
            without_a_trace(&fleet.post(path, body).await, &text, &fault);
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
    for (path, body, text) in [completion(false), completion(true), chat(true)] {
        fleet.all_ready().await;
        // The first decode leg dies, wherever it is; the other engine stays.
        for name in ["d0", "d1"] {
            fleet
                .engine(name)
                .script(Rule::on(Leg::Decode).fault(Fault::Die));
        }
        let gate = Gate::new();
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).gate(&gate));
        let exchange = fleet.begin(path, body).await;
        gate.reached(1).await;
        gate.open();
        wait::until("one of them to die", || async {
            let alive = ["d0", "d1"].map(|name| fleet.engine(name).is_alive());
            alive.contains(&false)
        })
        .await;
        for name in ["d0", "d1"] {
            fleet.engine(name).behave();
        }
        let answer = exchange.finish().await;
        // Both may have died before they were told to behave; then an honest error is all there is.
        if answer.status == 200 {
            without_a_trace(&answer, &text, &Fault::Die);
        } else {
            assert!(
                !["d0", "d1"]
                    .iter()
                    .any(|name| fleet.engine(name).is_alive()),
                "{answer:?}"
            );
        }
        for name in ["d0", "d1"] {
            if !fleet.engine(name).is_alive() {
                fleet.engine(name).start().await;
            }
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
        let (path, body, text) = if number % 2 == 0 {
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
        let mut exchange = fleet.begin(path, body).await;
        exchange.until(&text[5..10]).await;
        gate.open();
        let answer = exchange.finish().await;
        assert!(
            answer.status == 200 && answer.complete,
            "{fault:?}: {answer:?}"
        );
        honest_end(&answer, &text[..10], &fault);
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
    let (last, before) = events.split_last().unwrap();
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
    let (path, body, text) = chat(true);
    let gate = Gate::new();
    fleet.engine("d0").script(
        Rule::on(Leg::Decode)
            .gate_after(2, &gate)
            .fault(Fault::DieAfterTokens(2)),
    );
    let mut exchange = fleet.begin(path, &body).await;
    exchange.until(&text[5..10]).await;
    gate.open();
    honest_end(
        &exchange.finish().await,
        &text[..10],
        &Fault::DieAfterTokens(2),
    );
    fleet.worker_is("d0", "suspect").await;
    fleet.post(path, &body).await.refused(503);
    fleet.engine("d0").start().await;
    fleet.all_ready().await;
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
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
        for (path, body, _) in [completion(stream), chat(stream)] {
            let started = Instant::now();
            let answer = fleet.post(path, body).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_are_not_there_yet_are_waited_for() {
    let fleet = Setup::split()
        .absent("p0")
        .absent("d0")
        .start_without_waiting()
        .await;
    let (path, body, text) = completion(false);
    let answer = fleet.post(path, &body).await;
    answer.refused(503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    fleet.worker_is("p0", "joining").await;
    fleet.engine("p0").start().await;
    fleet.worker_is("p0", "ready").await;
    let refused = fleet.post(path, &body).await.refused(503);
    assert!(refused.contains("hand over"), "{refused}");
    fleet.engine("d0").start().await;
    fleet.all_ready().await;
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    fleet.finish().await;
}

async fn stays_out(fleet: &Fleet, name: &str) {
    let (path, body, _) = completion(false);
    fleet.worker_is(name, "joining").await;
    fleet.post(path, body).await.refused(503);
    assert!(fleet.engine(name).seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_vllm_never_gets_work() {
    for mode in [Http::Garbage, Http::Mute, Http::OtherServer] {
        let fleet = Setup::split().absent("d0").start_without_waiting().await;
        fleet.engine("d0").http_mode(mode);
        fleet.engine("d0").start().await;
        stays_out(&fleet, "d0").await;
        fleet.engine("d0").behave();
        fleet.all_ready().await;
        let (path, body, text) = completion(false);
        assert_eq!(fleet.post(path, body).await.served().generated(), text);
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_speaks_no_handshake_never_gets_work() {
    for mode in [
        SideChannel::Garbage,
        SideChannel::OtherShape,
        SideChannel::Mute,
    ] {
        let fleet = Setup::split().absent("p0").start_without_waiting().await;
        fleet.engine("p0").side_channel_mode(mode);
        fleet.engine("p0").start().await;
        stays_out(&fleet, "p0").await;
        fleet.engine("p0").behave();
        fleet.all_ready().await;
        let (path, body, text) = completion(false);
        assert_eq!(fleet.post(path, body).await.served().generated(), text);
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_turns_into_something_else_loses_its_work_until_it_is_back() {
    let fleet = Setup::split()
        .router(&["--request-timeout-s", "3"])
        .start()
        .await;
    let (path, body, text) = completion(false);
    for mode in [Http::Garbage, Http::OtherServer] {
        fleet.engine("d0").http_mode(mode);
        let answer = fleet.post(path, &body).await;
        assert!(matches!(answer.status, 502..=504), "{answer:?}");
        answer.refused(answer.status);
        fleet.engine("d0").behave();
        fleet.all_ready().await;
        assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    }
    fleet.finish().await;
}

type Change = fn(&mut Value);

/// What a prefill engine may never make Baton hand on.
fn unusable_params() -> Vec<(&'static str, Change)> {
    vec![
        ("no request id", |p| {
            drop(p.as_object_mut().unwrap().remove("remote_request_id"))
        }),
        ("an empty request id", |p| {
            p["remote_request_id"] = json!("")
        }),
        ("a null request id", |p| {
            p["remote_request_id"] = json!(null)
        }),
        ("a number as request id", |p| {
            p["remote_request_id"] = json!(7)
        }),
        ("too few blocks", |p| {
            drop(p["remote_block_ids"][0].as_array_mut().unwrap().pop())
        }),
        ("no blocks", |p| p["remote_block_ids"] = json!([])),
        ("an empty group", |p| p["remote_block_ids"] = json!([[]])),
        ("null blocks", |p| p["remote_block_ids"] = json!(null)),
        ("flat blocks", |p| p["remote_block_ids"] = json!([1, 2, 3])),
        ("blocks that do not exist", |p| {
            p["remote_block_ids"][0][0] = json!(256)
        }),
        ("negative blocks", |p| {
            p["remote_block_ids"][0][0] = json!(-1)
        }),
        ("another engine", |p| {
            p["remote_engine_id"] = json!("someone-else")
        }),
        ("no engine", |p| {
            drop(p.as_object_mut().unwrap().remove("remote_engine_id"))
        }),
        ("a longer prompt", |p| {
            p["remote_num_tokens"] = json!(PROMPT.len() + 1)
        }),
        ("a shorter prompt", |p| {
            p["remote_num_tokens"] = json!(PROMPT.len() - 2)
        }),
        ("an empty prompt", |p| p["remote_num_tokens"] = json!(0)),
        ("no length", |p| {
            drop(p.as_object_mut().unwrap().remove("remote_num_tokens"))
        }),
        ("no host", |p| p["remote_host"] = json!("")),
        ("no port", |p| p["remote_port"] = json!(0)),
        ("an impossible port", |p| p["remote_port"] = json!(70_000)),
        ("no tensor-parallel size", |p| {
            drop(p.as_object_mut().unwrap().remove("tp_size"))
        }),
        ("a tensor-parallel size of 0", |p| p["tp_size"] = json!(0)),
        ("no offer", |p| p["do_remote_prefill"] = json!(false)),
        ("a demand", |p| p["do_remote_decode"] = json!(true)),
        ("push", |p| p["transfer_mode"] = json!("push")),
        ("only the offer", |p| {
            *p = json!({"do_remote_prefill": true})
        }),
        ("nothing", |p| *p = json!(null)),
        ("an empty object", |p| *p = json!({})),
        ("a text", |p| *p = json!("do_remote_prefill")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_that_makes_no_sense_never_reaches_decode() {
    let fleet = Setup::split().start().await;
    let (path, body, text) = completion(false);
    for (name, change) in unusable_params() {
        let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).always().fault(Fault::params(change)));
        let answer = fleet.post(path, &body).await;
        assert_eq!(answer.served().generated(), text, "{name}");
        assert_eq!(
            fleet.engine("d0").seen_of(Leg::Decode).len(),
            decodes,
            "{name} reached decode"
        );
        fleet.engine("p0").behave();
    }
    let unusable = unusable_params().len();
    let page = fleet.sidecar_page("p0").await;
    let labels = [("stage", "prefill"), ("outcome", "protocol")];
    assert_eq!(
        page.sum("baton_sidecar_legs_total", &labels),
        2 * i64::try_from(unusable).unwrap()
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_answers_something_else_never_reaches_decode() {
    let fleet = Setup::split().start().await;
    let (path, body, text) = completion(false);
    let changes: [(&str, Change); 6] = [
        ("two choices", |a| {
            let choice = a["choices"][0].clone();
            a["choices"].as_array_mut().unwrap().push(choice);
        }),
        ("no choices", |a| a["choices"] = json!([])),
        ("no finish reason", |a| {
            a["choices"][0]["finish_reason"] = json!(null)
        }),
        ("another prompt length", |a| {
            a["usage"]["prompt_tokens"] = json!(PROMPT.len() + 40)
        }),
        ("no usage", |a| a["usage"] = json!(null)),
        ("an error beside it", |a| {
            *a = json!({"error": {"message": "in a 200", "code": 500}})
        }),
    ];
    for (name, change) in changes {
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).always().fault(Fault::answer(change)));
        assert_eq!(
            fleet.post(path, &body).await.served().generated(),
            text,
            "{name}"
        );
        assert!(
            fleet.engine("d0").seen_of(Leg::Decode).is_empty(),
            "{name} reached decode"
        );
        fleet.engine("p0").behave();
    }
    fleet.finish().await;
}

/// The answer was withheld, the decode engine's cache quarantined, and the client got the right one.
async fn was_withheld(fleet: &Fleet, answer: &Answer, text: &str) {
    assert_eq!(answer.served().generated(), text);
    let unsettled = fleet
        .router_page()
        .await
        .sum("baton_router_unsettled_total", &[]);
    assert!(unsettled >= 1);
    let quarantines = fleet
        .sidecar_page("d0")
        .await
        .sum("baton_sidecar_quarantines_total", &[]);
    assert_eq!(quarantines, unsettled);
    let legs = fleet.engine("d0").seen();
    let salt = legs.last().unwrap().json()["cache_salt"].clone();
    assert!(
        salt.as_str().is_some_and(|salt| !salt.is_empty()),
        "later requests are kept apart: {salt}"
    );
    // The poisoned prefix is not hit, neither by the same request nor with a salt of the client's own.
    let (path, body, _) = completion(false);
    assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    let local = body.replace(r#""max_tokens":5"#, r#""max_tokens":1"#);
    assert_eq!(
        fleet.post(path, &local).await.served().generated(),
        text[..5]
    );
    let own = body.replace(
        r#""max_tokens":5"#,
        r#""max_tokens":1,"cache_salt":"tenant""#,
    );
    fleet.post(path, &own).await.served();
    let salted = fleet.engine("d0").seen().pop().unwrap().json()["cache_salt"].clone();
    assert!(
        salted
            .as_str()
            .is_some_and(|salted| salted.contains("tenant") && salted != "tenant"),
        "{salted}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_restarts_before_decodes_first_token_spoils_no_answer() {
    for (path, body, text) in [completion(false), completion(true)] {
        let fleet = Setup::split().start().await;
        let gate = Gate::new();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin(path, body).await;
        gate.reached(1).await;
        // Under its old name, and never met by this decode engine: the transfer works and brings whatever is there now.
        fleet.engine("p0").restart(EngineId::Same).await;
        gate.open();
        let answer = exchange.finish().await;
        assert_ne!(
            fleet.engine("d0").seen_of(Leg::Decode)[0]
                .answer()
                .generated(),
            text,
            "decode had wrong KV"
        );
        was_withheld(&fleet, &answer, &text).await;
        fleet.finish().await;
    }
}

/// What settle learns of a restart, the sidecar knows: its next handoffs are of the new life.
#[tokio::test(flavor = "multi_thread")]
async fn one_restart_of_a_prefill_engine_costs_one_withheld_answer() {
    let fleet = Setup::split().start().await;
    let (path, body, text) = completion(false);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(path, &body).await;
    gate.reached(1).await;
    fleet.engine("p0").restart(EngineId::Same).await;
    gate.open();
    assert_eq!(exchange.finish().await.served().generated(), text);
    for _ in 0..5 {
        assert_eq!(fleet.post(path, &body).await.served().generated(), text);
    }
    assert_eq!(
        fleet
            .router_page()
            .await
            .sum("baton_router_unsettled_total", &[]),
        1
    );
    assert_eq!(
        fleet
            .sidecar_page("d0")
            .await
            .sum("baton_sidecar_quarantines_total", &[]),
        1
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_restarts_under_a_new_name_fails_the_transfer_and_no_answer() {
    let fleet = Setup::split().start().await;
    let (path, body, text) = completion(true);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(path, body).await;
    gate.reached(1).await;
    fleet.engine("p0").restart(EngineId::New).await;
    gate.open();
    assert_eq!(exchange.finish().await.served().generated(), text);
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kv_whose_lease_is_over_spoils_no_answer() {
    let short = |role| baton_integration::fake_vllm::Config {
        lease: Duration::from_secs(1),
        ..baton_integration::fake_vllm::Config::new(Some(role))
    };
    let fleet = Setup::new()
        .worker("p0", short("kv_producer"))
        .worker("d0", short("kv_consumer"))
        .router(&["--force", "split"])
        .start()
        .await;
    let (path, body, text) = completion(false);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(path, body).await;
    gate.reached(1).await;
    wait::until("the lease to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    gate.open();
    let answer = exchange.finish().await;
    assert_ne!(
        fleet.engine("d0").seen_of(Leg::Decode)[0]
            .answer()
            .generated(),
        text,
        "decode had wrong KV"
    );
    was_withheld(&fleet, &answer, &text).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_cannot_confirm_gets_no_answer_out() {
    for mode in [SideChannel::Garbage, SideChannel::Mute] {
        let fleet = Setup::split().start().await;
        let (path, body, text) = completion(true);
        let gate = Gate::new();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin(path, body).await;
        gate.reached(1).await;
        fleet.engine("p0").side_channel_mode(mode);
        gate.open();
        assert_eq!(
            exchange.finish().await.served().generated(),
            text,
            "served, but by one engine"
        );
        assert_eq!(fleet.engine("d0").seen_of(Leg::Local).len(), 1);
        assert_eq!(
            fleet
                .router_page()
                .await
                .sum("baton_router_unsettled_total", &[]),
            2
        );
        fleet.engine("p0").behave();
        fleet.all_ready().await;
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_under_a_name_that_decode_knows_is_refused_before_decode_sees_it() {
    let (_, body, text) = completion(false);
    let fleet = Setup::split().start().await;
    assert_eq!(fleet.complete(&body).await.served().generated(), text);
    let old = fleet.engine("p0").agent();
    fleet.engine("p0").restart(EngineId::Same).await;
    wait::until("the sidecar to see the new life", || async {
        let seen = fleet.worker_view("p0").await["incarnation"].clone();
        seen == fleet.engine("p0").agent() && seen != old
    })
    .await;
    let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
    let answer = fleet.complete(&body).await;
    assert_eq!(
        fleet.engine("d0").seen_of(Leg::Decode).len(),
        decodes,
        "decode never saw the handoff"
    );
    let pairs = fleet.view().await["pairs"].clone();
    let obstacle = pairs[0]["obstacle"].as_str().unwrap_or_default();
    assert!(obstacle.contains("restart"), "{pairs}");
    if answer.status == 200 {
        assert_eq!(answer.served().generated(), text);
    } else {
        let message = answer.refused(503);
        assert!(
            message.contains("hand over") || message.contains("restart"),
            "{message}"
        );
    }
    // A restart under a fresh name mends it.
    fleet.engine("p0").restart(EngineId::New).await;
    wait::until("the pair to be whole again", || async {
        fleet.view().await["pairs"][0]["obstacle"].is_null()
    })
    .await;
    fleet.all_ready().await;
    assert_eq!(fleet.complete(&body).await.served().generated(), text);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_cannot_hand_over_are_never_tried_and_say_why() {
    use baton_integration::fake_vllm::Config;
    let other = |name: &'static str| {
        let mut config = Config::new(Some("kv_producer"));
        match name {
            "block_size" => config.block_size = 64,
            "compatibility_hash" => {
                config.compatibility_hash =
                    "0000002e67ae07159c7f0b1a8477b52881665113f0649995de773a219769682e"
            }
            "kv_cache_layout" => config.layout = "BLNHC",
            _ => config.token_offset = 1,
        }
        config
    };
    for fact in [
        "block_size",
        "compatibility_hash",
        "kv_cache_layout",
        "tokenisation",
    ] {
        let setup = Setup::new().worker("p0", other(fact)).decode("d0");
        let fleet = setup.clone().router(&["--force", "split"]).start().await;
        let (path, body, text) = completion(false);
        let message = fleet.post(path, &body).await.refused(503);
        assert!(
            message.contains("hand over") && message.contains("/fleet"),
            "{message}"
        );
        let pairs = fleet.view().await["pairs"].clone();
        let obstacle = pairs[0]["obstacle"].as_str().unwrap_or_default();
        assert!(obstacle.contains(fact), "{fact}: {pairs}");
        assert!(fleet.engine("p0").seen().is_empty() && fleet.engine("d0").seen().is_empty());
        fleet.finish().await;

        let fleet = setup.start().await;
        assert_eq!(
            fleet.post(path, &body).await.served().generated(),
            text,
            "without force it is served whole"
        );
        fleet.finish().await;
    }
}

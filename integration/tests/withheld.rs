//! KV that cannot be trusted: what makes no sense never reaches decode, and what turns out to be wrong is withheld,
//! quarantined and computed anew.

#![expect(
    clippy::unwrap_used,
    clippy::semicolon_if_nothing_returned,
    reason = "tables of small changes to JSON"
)]

use std::time::Duration;

use baton_integration::ask::{PROMPT, chat, completion};
use baton_integration::client::Answer;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::vllm::side_channel::SideChannel;
use baton_integration::emulated::vllm::{Config, EngineId, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use serde_json::{Value, json};

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
    let ask = completion(false);
    for (name, change) in unusable_params() {
        let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).always().fault(Fault::params(change)));
        let answer = fleet.post(ask.path, &ask.body).await;
        assert_eq!(answer.served().generated(), ask.text, "{name}");
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
    let ask = completion(false);
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
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text,
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

/// After a restart under its old name the pair may be refused, and a forced split with it; wrong it may never be.
fn right_or_refused(answer: &Answer, text: &str) {
    if answer.status == 200 {
        assert_eq!(answer.served().generated(), text);
    } else {
        answer.refused(503);
    }
}

/// The answer was withheld, the decode engine's cache quarantined, and the client got the right one.
async fn was_withheld(fleet: &Fleet, answer: &Answer, text: &str) {
    assert_eq!(answer.served().generated(), text);
    let quarantines = fleet
        .sidecar_page("d0")
        .await
        .sum("baton_sidecar_quarantines_total", &[]);
    assert!(quarantines >= 1);
    let legs = fleet.engine("d0").seen();
    let salt = legs.last().unwrap().json()["cache_salt"].clone();
    assert!(
        salt.as_str().is_some_and(|salt| !salt.is_empty()),
        "later requests are kept apart: {salt}"
    );
    // The poisoned prefix is not hit, neither by the same request nor with a salt of the client's own.
    let ask = completion(false);
    let local = ask.body.replace(r#""max_tokens":5"#, r#""max_tokens":1"#);
    assert_eq!(
        fleet.post(ask.path, &local).await.served().generated(),
        text[..5]
    );
    right_or_refused(&fleet.post(ask.path, &ask.body).await, &ask.text);
    let own = ask.body.replace(
        r#""max_tokens":5"#,
        r#""max_tokens":1,"cache_salt":"tenant""#,
    );
    fleet.post(ask.path, &own).await.served();
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
    for ask in [completion(false), completion(true)] {
        let fleet = Setup::split().start().await;
        let gate = Gate::new();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin(ask.path, &ask.body).await;
        gate.reached(1).await;
        // Under its old name, and never met by this decode engine: the transfer works and brings whatever is there now.
        fleet.engine("p0").restart(EngineId::Same).await;
        gate.open();
        let answer = exchange.finish().await;
        assert_ne!(
            fleet.engine("d0").seen_of(Leg::Decode)[0]
                .answer()
                .generated(),
            ask.text,
            "decode had wrong KV"
        );
        was_withheld(&fleet, &answer, &ask.text).await;
        fleet.finish().await;
    }
}

/// What settle learns of a restart, the sidecar knows: its next handoffs are of the new life.
#[tokio::test(flavor = "multi_thread")]
async fn one_restart_of_a_prefill_engine_costs_one_withheld_answer() {
    let fleet = Setup::split().start().await;
    let ask = completion(false);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    fleet.engine("p0").restart(EngineId::Same).await;
    gate.open();
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    for _ in 0..5 {
        right_or_refused(&fleet.post(ask.path, &ask.body).await, &ask.text);
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
    let ask = completion(true);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    fleet.engine("p0").restart(EngineId::New).await;
    gate.open();
    assert_eq!(exchange.finish().await.served().generated(), ask.text);
    fleet.all_ready().await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kv_whose_lease_is_over_spoils_no_answer() {
    let short = |role| Config {
        lease: Duration::from_secs(1),
        ..Config::new(Some(role))
    };
    let fleet = Setup::new()
        .worker("p0", short("kv_producer"))
        .worker("d0", short("kv_consumer"))
        .router(&["--force", "split"])
        .start()
        .await;
    let ask = completion(false);
    let gate = Gate::new();
    fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
    let exchange = fleet.begin(ask.path, &ask.body).await;
    gate.reached(1).await;
    wait::until("the leg to be cut off before it fetches", || async {
        fleet.engine("d0").seen_of(Leg::Decode)[0].fate() == Fate::Aborted
    })
    .await;
    wait::until("the lease to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    fleet.engine("p0").overwrite_free();
    gate.open();
    let answer = exchange.finish().await;
    was_withheld(&fleet, &answer, &ask.text).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_engine_that_cannot_confirm_gets_no_answer_out() {
    for mode in [SideChannel::Garbage, SideChannel::Mute] {
        let fleet = Setup::split().start().await;
        // Engines that have met need no side channel any more; sidecars do.
        fleet.chat(&chat(false).body).await.served();
        let ask = completion(true);
        let gate = Gate::new();
        fleet.engine("d0").script(Rule::on(Leg::Decode).gate(&gate));
        let exchange = fleet.begin(ask.path, &ask.body).await;
        gate.reached(1).await;
        fleet.engine("p0").side_channel_mode(mode);
        gate.open();
        assert_eq!(
            exchange.finish().await.served().generated(),
            ask.text,
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
    let ask = completion(false);
    let fleet = Setup::split().start().await;
    assert_eq!(
        fleet.complete(&ask.body).await.served().generated(),
        ask.text
    );
    let old = fleet.engine("p0").agent();
    fleet.engine("p0").restart(EngineId::Same).await;
    wait::until("the sidecar to see the new life", || async {
        let seen = fleet.worker_view("p0").await["incarnation"].clone();
        seen == fleet.engine("p0").agent() && seen != old
    })
    .await;
    let decodes = fleet.engine("d0").seen_of(Leg::Decode).len();
    let answer = fleet.complete(&ask.body).await;
    assert_eq!(
        fleet.engine("d0").seen_of(Leg::Decode).len(),
        decodes,
        "decode never saw the handoff"
    );
    let pairs = fleet.view().await["pairs"].clone();
    let obstacle = pairs[0]["obstacle"].as_str().unwrap_or_default();
    assert!(obstacle.contains("restart"), "{pairs}");
    if answer.status == 200 {
        assert_eq!(answer.served().generated(), ask.text);
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
    assert_eq!(
        fleet.complete(&ask.body).await.served().generated(),
        ask.text
    );
    fleet.finish().await;
}

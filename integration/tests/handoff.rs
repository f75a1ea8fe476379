//! Tickets: one use, one decode worker, one request, one life of the prefill engine, one lease. Spoken to sidecars directly,
//! as a router would that is wrong, late or hostile.

#![expect(
    clippy::unwrap_used,
    clippy::semicolon_if_nothing_returned,
    reason = "a table of small changes to a ticket"
)]

use std::time::Duration;

use baton_integration::client::{self, Answer};
use baton_integration::direct::{self, Prefilled};
use baton_integration::emulated::model;
use baton_integration::emulated::vllm::script::{Fault, Gate, Leg, Rule};
use baton_integration::emulated::vllm::{Config, EngineId, Fate};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::wait;
use baton_proto::call::{CONTENT_TYPE, path};
use baton_proto::digest::RequestDigest;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, ErrorKind, TicketId};
use serde_json::{Value, json};

const PROMPT: &str =
    "A ticket is for one use by one worker for one request, and for nothing else at all.";

fn body() -> String {
    format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5}}"#)
}

/// A refusal's kind.
#[track_caller]
fn kind(answer: &Answer) -> ErrorKind {
    let header = answer
        .header("baton-error")
        .unwrap_or_else(|| panic!("not refused: {answer:?}"));
    Error::from_wire(header, &answer.body).kind
}

async fn ticket_for(fleet: &Fleet, decode: &str) -> Ticket {
    let call = direct::prefill_call(decode);
    direct::prefill(fleet.sidecar_address("p0"), &call, &body())
        .await
        .ticket()
}

/// Ends a ticket that a test leaves unused.
async fn release(fleet: &Fleet, id: &TicketId) {
    assert_eq!(
        direct::ticket(fleet.sidecar_address("p0"), id, "release")
            .await
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_used_once_and_settled_once() {
    let fleet = Setup::split().start().await;
    let (p0, d0) = (fleet.sidecar_address("p0"), fleet.sidecar_address("d0"));
    let ticket = ticket_for(&fleet, "d0").await;
    assert_eq!(
        direct::decode(d0, &ticket, &body())
            .await
            .served()
            .generated(),
        model::text(PROMPT, 5)
    );
    for _ in 0..3 {
        assert_eq!(
            kind(&direct::decode(d0, &ticket, &body()).await),
            ErrorKind::TicketRefused,
            "a replay"
        );
    }
    fleet.engine("d0").only(Leg::Decode);
    assert_eq!(direct::ticket(p0, &ticket.id, "settle").await.status, 200);
    assert_eq!(
        kind(&direct::ticket(p0, &ticket.id, "settle").await),
        ErrorKind::TicketRefused
    );
    assert_eq!(
        kind(&direct::claim(p0, &ticket.id, "d0").await.unwrap_err()),
        ErrorKind::TicketRefused
    );
    // Release is idempotent and says nothing of what it found.
    release(&fleet, &ticket.id).await;
    assert_eq!(fleet.stranded("p0").await, 0);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_refused_even_after_the_engine_failed_on_it() {
    let fleet = Setup::split().start().await;
    let d0 = fleet.sidecar_address("d0");
    for fault in [Fault::Reset, Fault::Status(500, "{}".into())] {
        let ticket = ticket_for(&fleet, "d0").await;
        fleet
            .engine("d0")
            .script(Rule::on(Leg::Decode).fault(fault));
        let seen = fleet.engine("d0").seen().len();
        assert!(direct::decode(d0, &ticket, &body()).await.status >= 500);
        assert_eq!(
            kind(&direct::decode(d0, &ticket, &body()).await),
            ErrorKind::TicketRefused
        );
        assert_eq!(fleet.engine("d0").seen().len(), seen + 1);
        release(&fleet, &ticket.id).await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_uses_at_the_same_time_are_one_use() {
    let fleet = Setup::split().start().await;
    let d0 = fleet.sidecar_address("d0");
    let ticket = ticket_for(&fleet, "d0").await;
    let mut uses = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let ticket = ticket.clone();
        uses.spawn(async move { direct::decode(d0, &ticket, &body()).await });
    }
    let mut served = 0;
    while let Some(answer) = uses.join_next().await {
        let answer = answer.unwrap();
        if answer.status == 200 {
            served += 1;
        } else {
            assert_eq!(kind(&answer), ErrorKind::TicketRefused);
        }
    }
    assert_eq!(served, 1);
    fleet.engine("d0").only(Leg::Decode);
    release(&fleet, &ticket.id).await;
    fleet.finish().await;
}

type Alter = fn(&mut Ticket);

fn params(ticket: &mut Ticket, change: impl FnOnce(&mut Value)) {
    let mut params: Value = serde_json::from_slice(ticket.metadata.as_bytes()).unwrap();
    change(&mut params);
    ticket.metadata = TransferMetadata::new(params.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_ticket_is_refused_before_the_engine_sees_it() {
    let fleet = Setup::split().start().await;
    let d0 = fleet.sidecar_address("d0");
    let genuine = ticket_for(&fleet, "d0").await;
    let foreign = ticket_for(&fleet, "d0").await;
    let alterations: [(&str, Alter); 21] = [
        ("its name", |t| t.id = direct::fresh()),
        ("its prefill worker", |t| t.prefill = "p1".parse().unwrap()),
        ("its life", |t| t.incarnation = "another".parse().unwrap()),
        ("its decode worker", |t| t.decode = "d1".parse().unwrap()),
        ("its request", |t| {
            t.request_digest = RequestDigest::of("/v1/completions", b"{}")
        }),
        ("more tokens", |t| {
            t.prompt_tokens = t.prompt_tokens.map(|tokens| tokens + 1)
        }),
        ("fewer tokens", |t| {
            t.prompt_tokens = t.prompt_tokens.map(|tokens| tokens - 1)
        }),
        ("its bytes", |t| t.bytes = t.bytes.map(|bytes| bytes + 1)),
        ("unknown tokens", |t| t.prompt_tokens = None),
        ("a longer lease", |t| t.lease_ms += 1),
        ("more left than there was", |t| {
            t.lease_remaining_ms = t.lease_ms + 1
        }),
        ("no metadata", |t| {
            t.metadata = TransferMetadata::new(&b""[..])
        }),
        ("metadata that are no JSON", |t| {
            t.metadata = TransferMetadata::new(&b"\xff{"[..])
        }),
        ("a space in the metadata", |t| {
            t.metadata = TransferMetadata::new([t.metadata.as_bytes(), b" "].concat())
        }),
        ("fewer blocks", |t| {
            params(t, |p| {
                drop(p["remote_block_ids"][0].as_array_mut().unwrap().pop())
            })
        }),
        ("no request id", |t| {
            params(t, |p| {
                drop(p.as_object_mut().unwrap().remove("remote_request_id"))
            })
        }),
        ("another request id", |t| {
            params(t, |p| {
                p["remote_request_id"] = json!("cmpl-other-0-00000000")
            })
        }),
        ("another engine", |t| {
            params(t, |p| p["remote_engine_id"] = json!("other"))
        }),
        ("another port", |t| {
            params(t, |p| p["remote_port"] = json!(1))
        }),
        ("only the offer", |t| {
            params(t, |p| *p = json!({"do_remote_prefill": true}))
        }),
        ("a key smuggled into the body", |t| {
            t.metadata = TransferMetadata::new(&br#"{},"n":2"#[..])
        }),
    ];
    for (name, alter) in alterations {
        let mut altered = genuine.clone();
        alter(&mut altered);
        let answer = direct::decode(d0, &altered, &body()).await;
        assert_eq!(
            (answer.status, kind(&answer)),
            (409, ErrorKind::TicketRefused),
            "{name}"
        );
    }
    let mut mixed = genuine.clone();
    mixed.seal = foreign.seal;
    assert_eq!(
        kind(&direct::decode(d0, &mixed, &body()).await),
        ErrorKind::TicketRefused,
        "another's seal"
    );
    assert!(fleet.engine("d0").seen().is_empty());
    // None of that used it up.
    direct::decode(d0, &genuine, &body()).await.served();
    for ticket in [genuine, foreign] {
        release(&fleet, &ticket.id).await;
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_killers_are_refused_as_tickets_too() {
    let fleet = Setup::split().start().await;
    let d0 = fleet.sidecar_address("d0");
    let genuine = ticket_for(&fleet, "d0").await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/refused");
    for entry in std::fs::read_dir(folder).unwrap() {
        let recorded: Value =
            serde_json::from_slice(&std::fs::read(entry.unwrap().path()).unwrap()).unwrap();
        let mut tampered = genuine.clone();
        tampered.metadata =
            TransferMetadata::new(recorded["body"]["kv_transfer_params"].to_string());
        assert_eq!(
            kind(&direct::decode(d0, &tampered, &body()).await),
            ErrorKind::TicketRefused
        );
    }
    assert!(fleet.engine("d0").seen().is_empty());
    release(&fleet, &genuine.id).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_good_for_its_own_request_and_worker_only() {
    let fleet = Setup::split().decode("d1").start().await;
    let ticket = ticket_for(&fleet, "d0").await;
    let d0 = fleet.sidecar_address("d0");
    for other in [
        body().replace("one worker", "two worker"),
        format!("{} ", body()),
        body().replace(r#""max_tokens":5"#, r#""max_tokens":6"#),
        "{}".to_owned(),
    ] {
        assert_eq!(
            kind(&direct::decode(d0, &ticket, &other).await),
            ErrorKind::TicketRefused,
            "{other}"
        );
    }
    let d1 = fleet.sidecar_address("d1");
    assert_eq!(
        kind(&direct::decode(d1, &ticket, &body()).await),
        ErrorKind::TicketRefused
    );
    let p0 = fleet.sidecar_address("p0");
    assert_eq!(
        kind(&direct::decode(p0, &ticket, &body()).await),
        ErrorKind::Incompatible,
        "no decode worker at all"
    );
    for name in ["d0", "d1"] {
        assert!(fleet.engine(name).seen().is_empty());
    }
    direct::decode(d0, &ticket, &body()).await.served();
    release(&fleet, &ticket.id).await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_moves_an_unused_ticket() {
    let fleet = Setup::split().decode("d1").start().await;
    let (p0, d1) = (fleet.sidecar_address("p0"), fleet.sidecar_address("d1"));
    let first = ticket_for(&fleet, "d0").await;
    let moved = direct::claim(p0, &first.id, "d1").await.unwrap();
    assert_eq!((moved.decode.as_str(), &moved.id), ("d1", &first.id));
    assert!(
        moved.lease_remaining_ms <= first.lease_remaining_ms,
        "a claim does not lengthen the lease"
    );
    assert_eq!(
        direct::decode(d1, &moved, &body())
            .await
            .served()
            .generated(),
        model::text(PROMPT, 5)
    );
    assert_eq!(direct::ticket(p0, &first.id, "settle").await.status, 200);
    let nobody: TicketId = direct::fresh();
    for unknown in [&nobody, &first.id] {
        assert_eq!(
            kind(&direct::claim(p0, unknown, "d0").await.unwrap_err()),
            ErrorKind::TicketRefused
        );
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_released_is_over() {
    let fleet = Setup::split().start().await;
    let p0 = fleet.sidecar_address("p0");
    let ticket = ticket_for(&fleet, "d0").await;
    release(&fleet, &ticket.id).await;
    release(&fleet, &ticket.id).await;
    let page = fleet.sidecar_page("p0").await;
    let leaving = page.sum("baton_sidecar_tickets", &[("state", "leaving")]);
    assert_eq!(leaving, 1, "once, and nobody can say who fetches");
    assert_eq!(
        kind(&direct::ticket(p0, &ticket.id, "settle").await),
        ErrorKind::TicketRefused
    );
    assert_eq!(
        kind(&direct::claim(p0, &ticket.id, "d0").await.unwrap_err()),
        ErrorKind::TicketRefused
    );
    // Its name is not used again, and one that was released before its prefill never starts.
    let mut again = direct::prefill_call("d0");
    again.ticket = ticket.id.clone();
    let early = direct::prefill_call("d0");
    release(&fleet, &early.ticket).await;
    let seen = fleet.engine("p0").seen().len();
    for call in [again, early] {
        match direct::prefill(p0, &call, &body()).await {
            Prefilled::Refused(answer) => assert_eq!(kind(&answer), ErrorKind::Conflict),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fleet.engine("p0").seen().len(), seen);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_a_running_prefill_ends_it_in_the_engine() {
    let fleet = Setup::split().start().await;
    let (p0, gate) = (fleet.sidecar_address("p0"), Gate::new());
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    let call = direct::prefill_call("d0");
    let running = {
        let call = call.clone();
        tokio::spawn(async move { direct::prefill(p0, &call, &body()).await })
    };
    gate.reached(1).await;
    release(&fleet, &call.ticket).await;
    match wait::bounded("the prefill to end", running).await.unwrap() {
        Prefilled::Failed(error) => assert_eq!(error.kind, ErrorKind::Cancelled),
        other => panic!("{other:?}"),
    }
    fleet.engine("p0").saw(Leg::Prefill, Fate::Aborted).await;
    assert_eq!(fleet.stranded("p0").await, 0);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_permits_nothing() {
    let short = |role| Config {
        lease: Duration::from_secs(1),
        ..Config::new(Some(role))
    };
    let fleet = Setup::new()
        .worker("p0", short("kv_producer"))
        .worker("d0", short("kv_consumer"))
        .start()
        .await;
    let (p0, d0) = (fleet.sidecar_address("p0"), fleet.sidecar_address("d0"));
    let tickets = [
        ticket_for(&fleet, "d0").await,
        ticket_for(&fleet, "d0").await,
    ];
    assert!(
        tickets[0].lease_ms < 1000,
        "Baton's lease ends before the engine's"
    );
    wait::until("the engine's lease to end", || async {
        fleet.engine("p0").holds() == 0
    })
    .await;
    for ticket in &tickets {
        let settled = direct::ticket(p0, &ticket.id, "settle").await;
        assert!(
            matches!(
                kind(&settled),
                ErrorKind::LeaseExpired | ErrorKind::TicketRefused
            ),
            "{settled:?}"
        );
        let claimed = direct::claim(p0, &ticket.id, "d0").await.unwrap_err();
        assert!(
            matches!(
                kind(&claimed),
                ErrorKind::LeaseExpired | ErrorKind::TicketRefused
            ),
            "{claimed:?}"
        );
        // A router that says how old the ticket is.
        let mut aged = ticket.clone();
        aged.lease_remaining_ms = 0;
        assert_eq!(
            kind(&direct::decode(d0, &aged, &body()).await),
            ErrorKind::LeaseExpired
        );
    }
    assert!(fleet.engine("d0").seen().is_empty());
    wait::until("the lapsed ones to be counted", || async {
        fleet
            .sidecar_page("p0")
            .await
            .sum("baton_sidecar_tickets_ended_total", &[("end", "lapsed")])
            == 2
    })
    .await;
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_life_of_the_prefill_engine_voids_all_tickets() {
    let fleet = Setup::split().start().await;
    let p0 = fleet.sidecar_address("p0");
    let tickets = [
        ticket_for(&fleet, "d0").await,
        ticket_for(&fleet, "d0").await,
    ];
    fleet.engine("p0").restart(EngineId::Same).await;
    let first = kind(&direct::ticket(p0, &tickets[0].id, "settle").await);
    assert!(
        matches!(
            first,
            ErrorKind::IncarnationChanged | ErrorKind::TicketRefused
        ),
        "{first}"
    );
    assert_eq!(
        kind(&direct::ticket(p0, &tickets[1].id, "settle").await),
        ErrorKind::TicketRefused
    );
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum("baton_sidecar_tickets_ended_total", &[("end", "voided")]),
        2
    );
    assert_eq!(
        page.sum("baton_sidecar_tickets_ended_total", &[("end", "settled")]),
        0
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecar_checks_a_clients_body_as_the_router_does() {
    let fleet = Setup::split().start().await;
    for bad in [
        r#"{"model":"tiny","prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}"#,
        r#"{"model":"tiny","prompt":"x","prompt":"y"}"#,
        r#"{"model":"tiny","vllm_xargs":{"kv_transfer_params":1}}"#,
        "{",
    ] {
        match direct::prefill(
            fleet.sidecar_address("p0"),
            &direct::prefill_call("d0"),
            bad,
        )
        .await
        {
            Prefilled::Refused(answer) => assert_eq!(kind(&answer), ErrorKind::BadRequest),
            other => panic!("{other:?}"),
        }
        direct::generate(fleet.sidecar_address("d0"), bad)
            .await
            .refused(400);
    }
    assert!(fleet.engine("p0").seen().is_empty() && fleet.engine("d0").seen().is_empty());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_cannot_be_read_are_refused() {
    let fleet = Setup::split().start().await;
    let sidecar = fleet.sidecar_address("p0");
    let good = direct::prefill_bytes(&direct::prefill_call("d0"), &body());
    let mut calls: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0],
        vec![0xff; 4],
        vec![0, 0, 0, 0],
        vec![0, 0, 0, 200, 0x81],
        b"{\"json\":true}".to_vec(),
        good[..good.len() / 3].to_vec(),
    ];
    let mut long = vec![0x00, 0x7f, 0xff, 0xff];
    long.extend(vec![0x91; 100_000]);
    calls.push(long);
    for call in &calls {
        for path in [path::PREFILL, path::DECODE, path::GENERATE] {
            let answer = direct::post(sidecar, path, call).await;
            assert!((400..600).contains(&answer.status), "{answer:?}");
            answer.refused(answer.status);
        }
    }
    for (call, status) in [
        ("t", 404),
        ("t/burn", 404),
        ("t%20/settle", 400),
        ("/settle", 400),
        ("../prefill", 404),
    ] {
        direct::post(sidecar, &format!("{}{call}", path::TICKETS), "")
            .await
            .refused(status);
    }
    let claim = direct::post(sidecar, &format!("{}t/claim", path::TICKETS), b"\xc1").await;
    claim.refused(400);
    assert!(fleet.engine("p0").seen().is_empty());
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_in_the_engine_does_not_enter_twice() {
    let fleet = Setup::split().start().await;
    let (p0, gate) = (fleet.sidecar_address("p0"), Gate::new());
    fleet
        .engine("p0")
        .script(Rule::on(Leg::Prefill).gate(&gate));
    let call = direct::prefill_call("d0");
    let running = {
        let call = call.clone();
        tokio::spawn(async move { direct::prefill(p0, &call, &body()).await.ticket() })
    };
    gate.reached(1).await;
    let mut same_request = direct::prefill_call("d0");
    same_request.request = call.request.clone();
    let mut same_ticket = direct::prefill_call("d0");
    same_ticket.ticket = call.ticket.clone();
    for twin in [same_request, same_ticket] {
        match direct::prefill(p0, &twin, &body()).await {
            Prefilled::Refused(answer) => assert_eq!(kind(&answer), ErrorKind::Conflict),
            other => panic!("{other:?}"),
        }
    }
    gate.open();
    let ticket = running.await.unwrap();
    assert_eq!(ticket.id, call.ticket, "the first one is not disturbed");
    release(&fleet, &ticket.id).await;
    fleet.finish().await;
}

fn short_lease(role: &'static str) -> Config {
    Config {
        lease: Duration::from_secs(2),
        ..Config::new(Some(role))
    }
}

/// Once the answer has begun the engine holds KV: the sidecar reads it to its end, and the handoff that nobody takes is
/// given up or lapses, but is never forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_whose_router_went_away_when_its_answer_had_begun_is_booked() {
    let setup = Setup::new()
        .worker("p0", short_lease("kv_producer"))
        .worker("d0", short_lease("kv_consumer"));
    let fleet = setup.start().await;
    let (p0, gate) = (fleet.sidecar_address("p0"), Gate::new());
    // Half of it fits into no socket's buffer: when it is out, the sidecar reads the answer.
    let long = Fault::answer(|answer| answer["padding"] = json!("x".repeat(32 << 20)));
    let rule = Rule::on(Leg::Prefill).gate_after(0, &gate).fault(long);
    fleet.engine("p0").script(rule);
    let call = direct::prefill_call("d0");
    let exchange = direct::begin(p0, path::PREFILL, direct::prefill_bytes(&call, &body())).await;
    gate.reached(1).await;
    exchange.vanish();
    gate.open();
    fleet.engine("p0").saw(Leg::Prefill, Fate::Answered).await;
    wait::until("the handoff that nobody takes to end, counted", || async {
        let page = fleet.sidecar_page("p0").await;
        let ends = ["released", "lapsed"]
            .map(|end| page.sum("baton_sidecar_tickets_ended_total", &[("end", end)]));
        ends.iter().sum::<i64>() == 1
    })
    .await;
    let page = fleet.sidecar_page("p0").await;
    assert_eq!(
        page.sum(
            "baton_sidecar_legs_total",
            &[("stage", "prefill"), ("outcome", "ok")]
        ),
        1
    );
    fleet.finish().await;
}

/// The engine's answer and the router's leaving cross on the wire. Whatever comes first, all comes to rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_is_cut_when_it_ends_leaves_nothing_open() {
    let setup = Setup::new()
        .worker("p0", short_lease("kv_producer"))
        .worker("d0", short_lease("kv_consumer"));
    let fleet = setup.start().await;
    let p0 = fleet.sidecar_address("p0");
    for number in 0..20 {
        let gate = Gate::new();
        fleet
            .engine("p0")
            .script(Rule::on(Leg::Prefill).gate(&gate));
        let call = direct::prefill_call("d0");
        let exchange =
            direct::begin(p0, path::PREFILL, direct::prefill_bytes(&call, &body())).await;
        gate.reached(1).await;
        gate.open();
        if number % 2 == 0 {
            exchange.vanish();
        } else {
            drop(exchange);
        }
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_fleets_token_opens_nothing() {
    let fleet = Setup::split().start().await;
    let call = direct::prefill_bytes(&direct::prefill_call("d0"), &body());
    let headers = [
        ("authorization", "Bearer another-fleets-token"),
        ("content-type", CONTENT_TYPE),
    ];
    client::call(
        fleet.sidecar_address("p0"),
        "POST",
        path::PREFILL,
        &headers,
        call,
    )
    .await
    .refused(401);
    assert!(fleet.engine("p0").seen().is_empty());
    fleet.finish().await;
}

//! Requests that are wrong in every way their kind allows: each has its own outcome, and none has one that reaches further
//! than itself. No engine sees what was not meant for it, and the next good request is served as if nothing had been.

use baton_integration::ask::completion;
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::hostile::batch;
use baton_integration::hostile::case::Case;
use baton_integration::hostile::plain::Front;
use baton_integration::hostile::requests::{
    calls, chunks, framing, head, headers, json, media, members, pipelines, registrations,
    transfer_keys,
};

async fn one_engine(router: &[&str]) -> Fleet {
    let local = Setup::new().plain("e0").router(&["--force", "local"]);
    local.router(router).start().await
}

/// What must be true behind every batch.
async fn nothing_else_happened(fleet: Fleet, worker: &str, cases: &[Case]) {
    fleet.quiet().await;
    batch::seen_as_meant(&fleet, &[worker], cases);
    for ask in [completion(false), completion(true)] {
        let answer = fleet.post(ask.path, &ask.body).await;
        assert_eq!(answer.served().generated(), ask.text);
    }
    fleet.finish().await;
}

type Generate = fn(Front) -> Vec<Case>;

/// The router, and a sidecar by somebody who has the token.
async fn attack_both(kinds: &[Generate]) {
    let fleet = one_engine(&[]).await;
    let mut all = Vec::new();
    for (front, address) in [
        (Front::Router, fleet.address()),
        (Front::Sidecar, fleet.sidecar_address("e0")),
    ] {
        let cases: Vec<Case> = kinds.iter().flat_map(|kind| kind(front)).collect();
        batch::run(address, &cases).await;
        all.extend(cases);
    }
    nothing_else_happened(fleet, "e0", &all).await;
}

async fn attack_router(fleet: Fleet, cases: Vec<Case>) {
    batch::run(fleet.address(), &cases).await;
    nothing_else_happened(fleet, "e0", &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_end_or_none() {
    attack_both(&[framing::cases, chunks::cases, pipelines::cases]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_says_one_thing_or_nothing() {
    attack_both(&[head::cases, headers::cases]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_one_json_object_or_refused() {
    attack_both(&[json::cases, members::cases]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_key_is_refused_wherever_an_engine_would_find_it() {
    attack_both(&[transfer_keys::cases]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_what_it_says() {
    attack_router(one_engine(&[]).await, media::cases()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused() {
    let fleet = one_engine(&["--max-body-mib", "1"]).await;
    attack_router(fleet, media::sizes(1 << 20)).await;
}

/// The decode worker's sidecar; its engine may be asked with KV, and sees none of these.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_what_the_protocol_says_or_refused() {
    let fleet = Setup::split().start().await;
    let cases = calls::cases();
    batch::run(fleet.sidecar_address("d0"), &cases).await;
    nothing_else_happened(fleet, "d0", &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_is_what_the_protocol_says_or_refused() {
    let fleet = Setup::split().start().await;
    let before = fleet.view().await["workers"].as_array().map(Vec::len);
    let cases = registrations::cases();
    batch::run(fleet.address(), &cases).await;
    let after = fleet.view().await["workers"].as_array().map(Vec::len);
    assert_eq!(after, before, "nobody joined");
    nothing_else_happened(fleet, "d0", &cases).await;
}

//! Whether the tests of the view are blind: the same engine, the same losses, and a follower that checks nothing.
//!
//! It applies messages as they come, numbered by itself, so that no gap ever shows. What it knows must be found to differ
//! from what the engine holds, though it is certain of it; with that, equality elsewhere means something.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::collections::BTreeSet;

use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::publisher::EventFault;
use baton_integration::emulated::vllm::{Config, EmulatedVllm, EventsConfig, MODEL};
use baton_integration::wait::{self, until};
use baton_integration::{client, kv_scene};
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::Mirror;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_vllm::events::decoder::Decoder;
use baton_sidecar_vllm::events::message::Message;
use serde_json::json;

const BLOCK: u32 = 16;

async fn engine() -> EmulatedVllm {
    let engine = EmulatedVllm::new(Config {
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 100,
            hash_form: HashForm::Int,
        }),
        block_size: BLOCK,
        blocks: 24,
        ..Config::new(None)
    });
    engine.start().await;
    engine
}

/// Two blocks that no other question has.
async fn ask(engine: &EmulatedVllm, question: u32) {
    let tokens: Vec<u32> = (0..40).map(|at| 10 + (question * 7 + at) % 100).collect();
    let body = json!({"model": MODEL, "prompt": tokens, "max_tokens": 1}).to_string();
    let headers = [("content-type", "application/json")];
    let address = engine.address();
    let answer = client::call(
        address,
        "POST",
        "/v1/completions",
        &headers,
        body.as_bytes(),
    );
    answer.await.served();
}

/// Follows an engine's messages; what is checked of them is the caller's.
struct Follower {
    socket: zmq::Socket,
    decoder: Decoder,
    mirror: Mirror,
    heard: u64,
    last: Option<u64>,
    checks: bool,
}

impl Follower {
    async fn start(engine: &EmulatedVllm, checks: bool) -> Self {
        let socket = zmq::Context::new().socket(zmq::SUB).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_subscribe(b"").unwrap();
        let source = engine.event_source(0).unwrap();
        socket
            .connect(source["0"]["endpoint"].as_str().unwrap())
            .unwrap();
        let mut follower = Self {
            socket,
            decoder: Decoder::default(),
            mirror: Mirror::new(MODEL, Some(BLOCK)),
            heard: 0,
            last: None,
            checks,
        };
        // Until the subscription has arrived nothing is heard.
        let mut question = 1000;
        while !follower.hear() {
            ask(engine, question).await;
            question += 1;
            assert!(question < 2000, "nothing is ever heard");
        }
        // Both begin with the same: nothing.
        engine.reset_prefix_cache();
        ask(engine, 0).await;
        let last = || engine.next_event(0).unwrap() - 1;
        let started = std::time::Instant::now();
        while follower.last != Some(last()) {
            follower.hear();
            assert!(
                started.elapsed() < wait::PATIENCE,
                "the last message never came"
            );
        }
        follower
    }

    /// Whether something was heard.
    fn hear(&mut self) -> bool {
        let mut any = false;
        while let Ok(frames) = self.socket.recv_multipart(zmq::DONTWAIT) {
            any = true;
            let message = Message::published(&frames).unwrap();
            let batch = self.decoder.decode(message.payload).unwrap();
            let seq = if self.checks { message.seq } else { self.heard };
            let time = batch.time;
            self.mirror.apply(0, Stamp { seq, time }, batch.events());
            self.heard += 1;
            self.last = Some(message.seq);
        }
        any
    }

    fn known(&self) -> BTreeSet<SequenceHash> {
        self.mirror.rank(0).unwrap().blocks(Tier::Device).collect()
    }

    fn is_certain(&self) -> bool {
        self.mirror.rank(0).unwrap().doubts().is_empty()
    }
}

/// Evictions are lost; whether what is known is right, and whether that is claimed.
async fn lose(checks: bool) -> (bool, bool) {
    let engine = engine().await;
    let mut follower = Follower::start(&engine, checks).await;
    assert_eq!(
        follower.known(),
        kv_scene::held(&engine, 0),
        "before anything is lost"
    );
    assert!(follower.is_certain());
    // By then every further block evicts another one.
    for question in 1..13 {
        ask(&engine, question).await;
    }
    let faults = engine.event_faults(0).unwrap();
    faults.raise(EventFault::Lose {
        batches: 3,
        replayable: true,
    });
    for question in 13..20 {
        ask(&engine, question).await;
    }
    let last = engine.next_event(0).unwrap() - 1;
    until("the last message to come", || {
        follower.hear();
        let came = follower.last == Some(last);
        async move { came }
    })
    .await;
    let known = follower.known();
    (
        known.is_subset(&kv_scene::held(&engine, 0)),
        follower.is_certain(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_checks_no_gaps_is_wrong_and_certain() {
    assert_eq!(lose(false).await, (false, true));
    assert_eq!(lose(true).await, (true, false));
}

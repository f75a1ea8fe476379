//! A sidecar's view of an engine's KV cache, made from the events of an emulated engine on which everything goes wrong that
//! can, against what the engine holds.
//!
//! The engine is asked itself what is in its cache, apart from all that it publishes. At every quiet point the view is a
//! subset of that, and equal to it while it is certain; and it is certain whenever nothing was lost for good.
//! `BATON_VIEW_ROUNDS` asks for more rounds than the handful that every run of the tests makes.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::collections::BTreeSet;

use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::publisher::{EventFault, Mangled, ReplayFault};
use baton_integration::emulated::vllm::{Config, EmulatedVllm, EngineId, EventsConfig, MODEL};
use baton_integration::kv_scene::{self, Watched};
use baton_integration::wait::{PATIENCE, until};
use baton_integration::{client, ports};
use baton_proto::hash::SequenceHash;
use baton_sidecar_core::view::RankStatus;
use baton_sidecar_vllm::follow::source::{EventSource, sources_told};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const BLOCK: u32 = 16;

/// An engine and who follows it.
struct Scene {
    engine: EmulatedVllm,
    watched: Watched,
    random: StdRng,
}

fn config(blocks: u32, seed: u64) -> Config {
    let hash_form = [HashForm::Int, HashForm::Bytes][usize::from(seed % 2 == 1)];
    Config {
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: "kv@tiny".to_owned(),
            buffer_steps: 200,
            hash_form,
        }),
        loras: vec!["ada".to_owned()],
        block_size: BLOCK,
        blocks,
        ..Config::new(None)
    }
}

fn sources(engine: &EmulatedVllm) -> Vec<EventSource> {
    let ranks = engine.config().ranks as usize;
    let told = (0..ranks).filter_map(|rank| engine.event_source(rank));
    let told = told.filter_map(|told| told.as_object().cloned()).flatten();
    let told = serde_json::from_value(Value::Object(told.collect())).unwrap();
    let source = |(rank, config)| EventSource {
        rank,
        config,
        host: "127.0.0.1".to_owned(),
        asked: None,
    };
    sources_told(told).into_iter().map(source).collect()
}

impl Scene {
    async fn new(config: Config, seed: u64) -> Self {
        let engine = EmulatedVllm::new(config);
        engine.start().await;
        let mut watched = Watched::new();
        watched.follow(sources(&engine), BLOCK);
        Self {
            engine,
            watched,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// One request of a few shared beginnings, of any length, for any namespace.
    async fn ask(&mut self) {
        let beginning = self.random.random_range(0u32..4);
        let shared = self.random.random_range(0u32..120);
        let own = self.random.random_range(0u32..60);
        let question = self.random.random_range(0u32..1000);
        let tokens = (0..shared).map(|at| 10 + (beginning * 7 + at) % 40);
        let tokens: Vec<u32> = tokens
            .chain((0..own).map(|at| 60 + (question + at) % 90))
            .collect();
        let mut body = json!({
            "model": MODEL,
            "prompt": if tokens.is_empty() { vec![1] } else { tokens },
            "max_tokens": self.random.random_range(1..40),
        });
        if self.random.random_bool(0.2) {
            body["model"] = "ada".into();
        }
        if self.random.random_bool(0.2) {
            body["cache_salt"] = "tenant".into();
        }
        self.send(&body, 0).await;
    }

    /// One request that fills blocks which nobody has: something is told of it.
    async fn ask_news(&mut self, rank: u32) {
        let tokens: Vec<u32> = (0..40).map(|_| self.random.random_range(10..150)).collect();
        let body = json!({"model": MODEL, "prompt": tokens, "max_tokens": 1});
        self.send(&body, rank).await;
    }

    async fn send(&self, body: &Value, rank: u32) {
        let rank = rank.to_string();
        let headers = [
            ("content-type", "application/json"),
            ("x-data-parallel-rank", rank.as_str()),
        ];
        let body = body.to_string();
        let answer = client::call(
            self.engine.address(),
            "POST",
            "/v1/completions",
            &headers,
            body.as_bytes(),
        );
        answer.await.served();
    }

    fn raise(&self, fault: EventFault) {
        self.engine.event_faults(0).unwrap().raise(fault);
    }

    fn calm(&self) {
        self.engine.event_faults(0).unwrap().clear();
    }

    fn held(&self, rank: usize) -> BTreeSet<SequenceHash> {
        kv_scene::held(&self.engine, rank)
    }

    fn known(&self, rank: u32) -> BTreeSet<SequenceHash> {
        self.watched.known(rank)
    }

    fn status(&self, rank: u32) -> RankStatus {
        self.watched.status(rank)
    }

    /// Waits until all that was published has arrived.
    async fn quiet(&self, rank: u32) -> RankStatus {
        let at = rank as usize;
        let arrived = || async {
            let last = self.engine.next_event(at).unwrap().checked_sub(1);
            let status = self.status(rank);
            status.last_seq == last && !status.deaf
        };
        until("all events to arrive", arrived).await;
        self.status(rank)
    }

    /// At a quiet point.
    async fn check(&self, what: &str) -> RankStatus {
        let status = self.quiet(0).await;
        let (held, known) = (self.held(0), self.known(0));
        let ghosts = known.difference(&held).count();
        assert_eq!(
            ghosts, 0,
            "{what}: blocks are known that are not there, {status:?}"
        );
        if status.doubts.is_empty() {
            assert_eq!(
                known.len(),
                held.len(),
                "{what}: certain, and not all is known"
            );
        }
        status
    }

    /// Sooner or later it is. An engine's death is noticed later than the engine is asked what it holds.
    async fn is_exact(&self, what: &str) {
        let exact =
            || async { self.quiet(0).await.doubts.is_empty() && self.known(0) == self.held(0) };
        let exact = tokio::time::timeout(PATIENCE * 3 / 4, until("it", exact)).await;
        exact.unwrap_or_else(|_| {
            let (known, held) = (self.known(0).len(), self.held(0).len());
            let next = self.engine.next_event(0);
            let status = self.status(0);
            panic!(
                "{} {what}: not exact, {known} of {held} blocks, {status:?}, next {next:?}",
                self.engine.event_source(0).unwrap()
            );
        });
    }
}

fn rounds(usual: u64) -> u64 {
    let asked = std::env::var("BATON_VIEW_ROUNDS").ok();
    asked.map_or(usual, |rounds| {
        rounds.parse().expect("BATON_VIEW_ROUNDS is a number")
    })
}

/// Runs a story with so many seeds at a time.
async fn with_seeds<F: Future<Output = ()> + Send + 'static>(seeds: u64, story: fn(u64) -> F) {
    let stories: Vec<_> = (0..seeds)
        .map(|seed| (seed, tokio::spawn(story(seed))))
        .collect();
    for (seed, story) in stories {
        story
            .await
            .unwrap_or_else(|failed| panic!("seed {seed}: {failed}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_namespaces_and_generated_blocks() {
    with_seeds(4, |seed| async move {
        let mut scene = Scene::new(config(28, seed), seed).await;
        for _ in 0..30 {
            scene.ask().await;
            scene.is_exact("a request").await;
        }
        scene.engine.reset_prefix_cache();
        scene.ask().await;
        scene
            .is_exact("the cache was reset, and that was told late")
            .await;
    })
    .await;
}

/// Faults after which everything can be known again, since the engine still has what was lost.
fn repairable(random: &mut StdRng) -> EventFault {
    let batches = random.random_range(1..4);
    match random.random_range(0..7) {
        0 | 1 => EventFault::Lose {
            batches,
            replayable: true,
        },
        2 => EventFault::SwapNextTwo,
        3 => EventFault::Duplicate { batches },
        4 => EventFault::Hold,
        5 => EventFault::Mangle(Mangled::FrameMissing),
        _ => EventFault::Mangle(Mangled::ShortSequence),
    }
}

/// Faults after which it cannot.
fn lasting(random: &mut StdRng) -> EventFault {
    match random.random_range(0..8) {
        0 | 1 => EventFault::Lose {
            batches: random.random_range(1..4),
            replayable: false,
        },
        2 => EventFault::Mangle(Mangled::NotMessagePack),
        3 => EventFault::Mangle(Mangled::Truncated),
        4 => EventFault::Mangle(Mangled::OtherShape),
        5 => EventFault::Replay(ReplayFault::OtherPayloads),
        6 => EventFault::Replay(ReplayFault::OutOfOrder),
        _ => EventFault::Replay(ReplayFault::OneMissing),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_had_again_is_had_again() {
    with_seeds(6, |seed| async move {
        let mut scene = Scene::new(config(28, seed), seed).await;
        for round in 0..rounds(6) {
            let fault = repairable(&mut scene.random);
            scene.raise(fault.clone());
            for _ in 0..scene.random.random_range(1..6) {
                scene.ask().await;
            }
            scene.calm();
            scene.is_exact(&format!("round {round}, {fault:?}")).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_for_good_is_known_to_be_until_the_cache_is_reset() {
    with_seeds(6, |seed| async move {
        let mut scene = Scene::new(config(28, seed), seed).await;
        for round in 0..rounds(4) {
            let fault = lasting(&mut scene.random);
            let what = format!("round {round}, {fault:?}");
            if matches!(fault, EventFault::Replay(_)) {
                scene.raise(EventFault::Lose {
                    batches: 2,
                    replayable: true,
                });
            }
            scene.raise(fault);
            for _ in 0..scene.random.random_range(2..6) {
                scene.ask().await;
            }
            scene.ask_news(0).await;
            scene.calm();
            // A last message that even the engine does not have any more is nothing that anybody could miss.
            scene.ask_news(0).await;
            scene.check(&what).await;
            scene.engine.reset_prefix_cache();
            scene.ask().await;
            scene
                .is_exact(&format!("{what}, and the cache was reset"))
                .await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_takes_its_blocks_with_it() {
    with_seeds(6, |seed| async move {
        let mut config = config(28, seed);
        // A new life has the sockets of the old one.
        let events = config.events.as_mut().unwrap();
        events.endpoint = format!("tcp://*:{}", ports::free().port());
        events.replay_endpoint = Some(format!("tcp://{}", ports::free()));
        let mut scene = Scene::new(config, seed).await;
        for round in 0..rounds(3) {
            for _ in 0..scene.random.random_range(0..4) {
                scene.ask().await;
            }
            scene.engine.kill().await;
            let id = [EngineId::Same, EngineId::New][scene.random.random_range(0..2)];
            scene.engine.restart(id).await;
            // The new life may be as long as the old one was, or longer, before anybody hears of it.
            for _ in 0..scene.random.random_range(0..6) {
                scene.ask().await;
            }
            scene.is_exact(&format!("round {round}")).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_engine_that_cannot_be_heard_nothing_is_said_to_be_known() {
    let mut config = config(28, 8);
    let events = config.events.as_mut().unwrap();
    events.endpoint = format!("tcp://*:{}", ports::free().port());
    events.replay_endpoint = Some(format!("tcp://{}", ports::free()));
    let mut scene = Scene::new(config, 8).await;
    for _ in 0..4 {
        scene.ask().await;
    }
    scene.is_exact("before").await;
    assert!(!scene.known(0).is_empty());
    scene.engine.kill().await;
    let told = || async { scene.status(0).deaf && scene.known(0).is_empty() };
    until("the view to be taken back", told).await;
    scene.engine.restart(EngineId::Same).await;
    scene.ask().await;
    scene.is_exact("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_begin_again_are_a_new_life() {
    let mut scene = Scene::new(config(28, 1), 1).await;
    for _ in 0..5 {
        scene.ask().await;
    }
    scene.is_exact("before").await;
    // A process that begins anew holds nothing.
    scene.engine.reset_prefix_cache();
    scene.raise(EventFault::RestartSequence);
    scene.ask().await;
    scene.is_exact("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_joins_late_is_certain_only_if_history_reaches_back() {
    for (keep, exact) in [(1000, true), (2, false)] {
        let mut scene = Scene::new(config(28, 3), 3).await;
        for _ in 0..8 {
            scene.ask().await;
        }
        scene.is_exact("from the beginning").await;
        scene.raise(EventFault::ForgetHistory { keep });
        scene.watched.follow(sources(&scene.engine), BLOCK);
        assert!(!scene.status(0).doubts.is_empty(), "nothing was heard yet");
        let status = scene.check("joined late").await;
        assert_eq!(status.doubts.is_empty(), exact, "{status:?}");
        assert!(scene.watched.view().wants_reports() != exact);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engine_is_no_loss_and_one_without_a_past_is_certain() {
    let mut scene = Scene::new(config(28, 4), 4).await;
    scene.is_exact("nothing was published yet").await;
    scene.ask().await;
    scene.is_exact("one request").await;
    let messages = |scene: &Scene| scene.watched.messages();
    let before = messages(&scene);
    // Longer than it takes for the follower to ask whether it missed anything.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(messages(&scene), before);
    assert!(scene.status(0).doubts.is_empty());
    scene.is_exact("and silence").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_reused_are_learnt_anew_when_asked_for() {
    let mut scene = Scene::new(config(64, 5), 5).await;
    let ask = |mode: Option<&str>| {
        let tokens: Vec<u32> = (0..100).map(|at| 10 + at % 50).collect();
        let mut body = json!({"model": MODEL, "prompt": tokens, "max_tokens": 2});
        if let Some(mode) = mode {
            body["vllm_xargs"] = json!({"kv_cache_report_mode": mode});
        }
        body
    };
    scene.send(&ask(None), 0).await;
    scene.is_exact("told once").await;
    scene.raise(EventFault::Lose {
        batches: 1,
        replayable: false,
    });
    scene.ask_news(0).await;
    scene.ask_news(0).await;
    scene.check("something was lost").await;
    assert!(scene.watched.view().wants_reports());
    let lost = scene.held(0).len() - scene.known(0).len();
    let guard = scene.watched.view().ask_for_reports();
    scene.send(&ask(Some("full")), 0).await;
    scene.check("told again").await;
    let still = scene.held(0).len() - scene.known(0).len();
    assert!(still + 6 <= lost, "{still} of {lost} are still unknown");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_is_followed_by_itself() {
    let config = Config {
        ranks: 2,
        ..config(28, 6)
    };
    let mut scene = Scene::new(config, 6).await;
    for rank in [0, 1, 1, 0, 1] {
        scene.ask_news(rank).await;
    }
    for rank in 0..2 {
        let status = scene.quiet(rank).await;
        assert!(status.doubts.is_empty());
        assert_eq!(scene.known(rank), scene.held(rank as usize));
    }
    assert!((0..2).all(|rank| !scene.known(rank).is_empty()));
    assert_ne!(scene.known(0), scene.known(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_socket_that_says_nothing_holds_nothing_up_for_long() {
    for fault in [ReplayFault::Mute, ReplayFault::NoEndMarker] {
        let mut scene = Scene::new(config(28, 7), 7).await;
        // What is published before the subscription has arrived is had from the replay socket alone.
        while scene.watched.messages() == 0 {
            scene.ask_news(0).await;
            scene.is_exact("before").await;
        }
        scene.raise(EventFault::Replay(fault));
        scene.raise(EventFault::Lose {
            batches: 1,
            replayable: true,
        });
        scene.ask_news(0).await;
        scene.ask_news(0).await;
        let status = scene.check(&format!("{fault:?}")).await;
        assert_eq!(status.doubts.is_empty(), fault == ReplayFault::NoEndMarker);
    }
}

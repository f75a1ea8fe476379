//! Recorded logs of KV events, published once more: what a router knows in the end is what the log says.
//!
//! The judge is an oracle that has nothing in common with what it judges but the protocol's hashes.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::path::Path;

use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::publisher::{EventFault, PublisherConfig};
use baton_integration::emulated::vllm::{BLOCK_SIZE, Config, EngineId, EventsConfig, MODEL};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::kv_scene::oracle::{self, Oracle, Shown};
use baton_integration::kv_scene::proxy::{Proxy, Way};
use baton_integration::kv_scene::recording::{Message, Recording, Stage};
use baton_integration::kv_scene::teller::{self, Teller};
use baton_integration::kv_scene::{self, Watched};
use baton_integration::ports;
use baton_integration::replay;
use baton_integration::wait::until;
use baton_sidecar_core::record::Recorder;
use baton_sidecar_vllm::follow::source::EventSource;
use clap::Parser;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// What the router shows of the one worker's one rank.
async fn shown(fleet: &Fleet) -> Option<Shown> {
    let view = fleet.worker_view("w").await;
    let rank = view["view"]["ranks"].as_array()?.first()?.clone();
    let lower = ["host", "disk", "external"].map(|tier| rank["blocks"][tier].as_u64());
    assert!(lower.iter().all(|blocks| blocks.unwrap_or_default() == 0));
    Some(Shown {
        certain: rank["certain"].as_bool()?,
        whole: rank["whole"].as_bool()?,
        blocks: rank["blocks"]["device"].as_u64()?,
        digest: rank["digest"]["device"].as_str().map(str::to_owned),
    })
}

/// Waits until the router shows this.
async fn shows(fleet: &Fleet, what: &str, expected: &Shown) {
    until(what, || async {
        shown(fleet).await.as_ref() == Some(expected)
    })
    .await;
}

/// A router, and a sidecar beside an engine whose events come from a stage.
async fn audience(stage: &Stage, block_size: u32) -> Fleet {
    let config = Config {
        block_size,
        ..Config::new(None)
    };
    let events = stage.events_config().to_string();
    Setup::new()
        .worker("w", config)
        .sidecars(&["--kv-events-config", &events])
        .start()
        .await
}

/// Publishes a recording with some rests, at each of which, and in the end, all is known.
async fn perform(recording: &Recording, block_size: u32, random: &mut StdRng, what: &str) -> Shown {
    let mut stage = Stage::of(recording);
    let fleet = audience(&stage, block_size).await;
    let mut expected = Oracle::default();
    for life in &recording.lives {
        stage.begin().await;
        expected = Oracle::default();
        for message in life {
            stage.publish(message);
            expected.apply(MODEL, message);
            if random.random_bool(0.1) {
                let rest = format!("{what} at {}", message.seq);
                shows(&fleet, &rest, &expected.shown()).await;
            }
        }
        shows(&fleet, what, &expected.shown()).await;
    }
    fleet.finish().await;
    expected.shown()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_knows_what_a_recorded_log_says() {
    for (seed, (name, recording)) in (0..).zip(Recording::all()) {
        let mut random = StdRng::seed_from_u64(seed);
        let shown = perform(&recording, BLOCK_SIZE, &mut random, name).await;
        assert!(shown.blocks > 0 || name == "dp_rank0_sha256cbor_bytes");
    }
}

/// What `baton-replay` says of a log.
fn replayed(file: &Path) -> Value {
    let args = ["baton-replay", "--json", "--strict", "--model", MODEL];
    let args = args.map(str::to_owned).into_iter();
    let args = args.chain([file.display().to_string()]);
    let mut out = Vec::new();
    let args = replay::Args::try_parse_from(args).unwrap();
    replay::run(&args, &mut out, &mut std::io::sink()).unwrap();
    let report: Value = serde_json::from_slice(&out).unwrap();
    report["view"]["ranks"][0].clone()
}

#[track_caller]
fn replays_as(file: &Path, shown: &Shown) {
    let rank = replayed(file);
    assert_eq!(rank["certain"], shown.certain, "{rank}");
    assert_eq!(rank["unreachable"] == 0, shown.whole, "{rank}");
    let tiers = match &shown.digest {
        Some(digest) => json!([{"tier": "device", "blocks": shown.blocks, "digest": digest}]),
        None => json!([]),
    };
    assert_eq!(rank["tiers"], tiers);
}

#[test]
fn the_replay_tool_knows_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/vllm/kv_events");
    for (name, recording) in Recording::all() {
        let last = recording.lives.last().unwrap();
        let expected = Oracle::after(MODEL, last).shown();
        replays_as(&folder.join(format!("{name}.jsonl")), &expected);
    }
}

/// An engine that tells of its blocks at ports that it keeps.
fn telling(blocks: u32) -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://{}", ports::free())),
            topic: "kv@w@tiny".to_owned(),
            buffer_steps: 1000,
            hash_form: HashForm::Bytes,
        }),
        loras: vec!["ada".to_owned()],
        block_size: 16,
        blocks,
        ..Config::new(None)
    }
}

fn request(random: &mut StdRng) -> Value {
    let beginning = random.random_range(0..4_u32);
    let shared = (0..random.random_range(1..150)).map(|at| 10 + (beginning * 7 + at) % 40);
    let own = (0..random.random_range(0..40_u32)).map(|at| 60 + at);
    let mut prompt: Vec<u32> = shared.chain(own).collect();
    // A prompt of which all is cached has its last block computed again: a second copy.
    let whole = prompt.len() / 16 * 16;
    if whole > 0 && random.random_bool(0.5) {
        prompt.truncate(whole);
    }
    let model = [MODEL, "ada"][usize::from(random.random_bool(0.2))];
    let mut body = json!({"model": model, "prompt": prompt, "max_tokens": 20});
    if random.random_bool(0.2) {
        body["cache_salt"] = "tenant".into();
    }
    body
}

/// Runs an engine under a sidecar that records it; what the router knew at the end.
async fn record(file: &Path, random: &mut StdRng, lives: usize) -> Shown {
    let fleet = Setup::new()
        .worker("w", telling(28))
        .sidecars(&["--record", &file.display().to_string()])
        .start()
        .await;
    for life in 0..lives {
        if life > 0 {
            fleet.engine("w").restart(EngineId::New).await;
            let id = "the fleet to be whole again";
            until(id, || async {
                let known = shown(&fleet).await;
                known.is_some_and(|known| known.certain && known.blocks == 0)
            })
            .await;
            fleet.worker_is("w", "ready").await;
        }
        for asked in 0..60 {
            if asked == 15 {
                fleet.engine("w").reset_prefix_cache();
            }
            fleet.complete(request(random).to_string()).await.served();
        }
    }
    let known = Shown::exactly(&kv_scene::held(fleet.engine("w"), 0));
    shows(&fleet, "what the engine holds", &known).await;
    fleet.finish().await;
    known
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sidecar_records_gives_the_view_that_it_had() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, lives) in [(1, 1), (2, 2)] {
        let mut random = StdRng::seed_from_u64(seed);
        let file = folder.path().join(format!("{seed}.jsonl"));
        let known = record(&file, &mut random, lives).await;
        assert!(known.blocks > 10 && known.whole, "{known:?}");
        replays_as(&file, &known);
        let recording = Recording::read(&file);
        assert_eq!(recording.lives.len(), lives);
        let seen = perform(&recording, 16, &mut random, "a sidecar's recording").await;
        assert_eq!(seen, known);
    }
}

/// What only the end of a connection showed is in the recording, too: between its messages there is no gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_without_a_gap_is_recorded() {
    let mut teller = Teller::running(PublisherConfig {
        replay_endpoint: None,
        ..teller::tcp()
    });
    let proxy = Proxy::to(teller::address(&teller.config().endpoint), Way::Through).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut watched = Watched::recorded(Some(Recorder::open(file.path()).unwrap()));
    let mut source = teller.source();
    source.config.endpoint = proxy.endpoint();
    watched.follow(vec![source], teller::BLOCK);
    let heard = async |teller: &mut Teller, first: u32| {
        let mut next = first;
        let before = watched.messages();
        until("messages to be heard", || {
            teller.store([next]);
            next += 1;
            let heard = watched.messages() > before;
            async move { heard }
        })
        .await;
        watched.has_applied(teller.last()).await;
    };
    heard(&mut teller, 0).await;
    teller.clear();
    teller.store(500..510);
    watched
        .becomes_exact("a cleared cache", teller.held())
        .await;
    proxy.cut();
    until("the end to be noticed", || async {
        !watched.status(0).doubts.is_empty()
    })
    .await;
    heard(&mut teller, 1000).await;
    watched.is_an_uncertain_subset("a connection ended", teller.held());
    let rank = replayed(file.path());
    assert_eq!(rank["certain"], false);
    assert_eq!(rank["tiers"][0]["blocks"], watched.known(0).len());
}

/// A follower of a stage.
fn watching(stage: &Stage) -> Watched {
    let config = serde_json::from_value(stage.events_config()).unwrap();
    let mut watched = Watched::new();
    let source = EventSource {
        rank: 0,
        config,
        host: "127.0.0.1".to_owned(),
        asked: Some(stage.config().endpoint.clone()),
    };
    watched.follow(vec![source], BLOCK_SIZE);
    watched
}

/// Every life of the recordings that has a middle.
fn lives() -> Vec<(String, Recording)> {
    let lives = Recording::all().into_iter().flat_map(|(name, recording)| {
        let topic = recording.topic;
        let lives = recording.lives.into_iter().enumerate();
        lives.map(move |(number, life)| {
            let lives = vec![life];
            let topic = topic.clone();
            (
                format!("life {number} of {name}"),
                Recording { topic, lives },
            )
        })
    });
    lives
        .filter(|(_, recording)| recording.lives[0].len() > 2)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_twice_or_out_of_order_changes_nothing() {
    let stories = (0..)
        .zip(lives())
        .map(|(seed, (what, recording))| async move {
            let mut random = StdRng::seed_from_u64(seed);
            let life = &recording.lives[0];
            for _ in 0..4 {
                let life = &life[..random.random_range(1..=life.len())];
                let mut stage = Stage::of(&recording);
                stage.begin().await;
                let watched = watching(&stage);
                for message in life {
                    let replayable = true;
                    let batches = 1;
                    match random.random_range(0..8) {
                        0 => stage.faults().raise(EventFault::Duplicate { batches }),
                        1 => stage.faults().raise(EventFault::SwapNextTwo),
                        2 => stage.faults().raise(EventFault::Lose {
                            batches,
                            replayable,
                        }),
                        _ => {}
                    }
                    stage.publish(message);
                }
                stage.faults().clear();
                let expected = Oracle::after(MODEL, life).held();
                watched.becomes_exact(&what, &expected).await;
            }
        });
    join_all(stories).await;
}

/// What is left of a life when messages are gone for good, and after which of those that are left all was empty.
fn damaged<'a>(life: &'a [Message], random: &mut StdRng) -> (Vec<&'a Message>, bool) {
    let cut = random.random_range(0..life.len() - 1);
    let dropped = random.random_range(0..life.len() - 1);
    let lost = |at: usize| at < cut || at == dropped;
    let (mut left, mut certain) = (Vec::new(), true);
    for (at, message) in life.iter().enumerate() {
        if lost(at) {
            certain = false;
            continue;
        }
        certain |= oracle::clears(message);
        left.push(message);
    }
    (left, certain)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_known_to_be() {
    let stories = (0..)
        .zip(lives())
        .map(|(seed, (what, recording))| async move {
            let mut random = StdRng::seed_from_u64(seed);
            let life = &recording.lives[0];
            for _ in 0..4 {
                let (left, certain) = damaged(life, &mut random);
                let mut stage = Stage::of(&recording);
                stage.begin().await;
                let watched = watching(&stage);
                for message in &left {
                    stage.publish(message);
                }
                watched.has_applied(left.last().map(|last| last.seq)).await;
                let expected = Oracle::after(MODEL, life).held();
                assert_eq!(watched.is_honest(&what, &expected), certain, "{what}");
            }
        });
    join_all(stories).await;
}

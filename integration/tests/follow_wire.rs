//! KV events over real sockets, with peers and networks that are out of luck.
//!
//! Whatever befalls them, the sidecar goes on, and in the end its view is what the engine holds, or is
//! known not to be and has nothing in it that is not there.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::time::{Duration, Instant};

use baton_integration::emulated::vllm::publisher::{EventFault, PublisherConfig};
use baton_integration::kv_scene::proxy::{Proxy, Way};
use baton_integration::kv_scene::stranger::{Greeting, Stranger};
use baton_integration::kv_scene::teller::{self, TOPIC, Teller, address};
use baton_integration::kv_scene::{Watched, Ways};
use baton_integration::wait::until;
use baton_sidecar_core::record::Recorder;

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_may_be_there_before_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    for config in [teller::tcp(), teller::ipc(&folder)] {
        let mut teller = Teller::new(config);
        let watched = Watched::following(teller.source());
        for life in 0..2 {
            teller.begin();
            teller.store(life..life + 10);
            teller.remove(life..life + 3);
            let what = format!("life {life} at {}", teller.config().endpoint);
            watched.becomes_exact(&what, teller.held()).await;
            teller.store(20..25);
            watched.becomes_exact(&what, teller.held()).await;
            teller.die().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_connects_is_listened_for() {
    let mut teller = Teller::new(teller::connecting());
    let watched = Watched::following(teller.source());
    let events = address(&teller.config().endpoint);
    for life in 0..2 {
        teller.begin();
        teller.store(life..life + 10);
        watched.becomes_exact("its history", teller.held()).await;
        let before = watched.messages();
        watched.hears(&mut teller).await;
        assert!(watched.messages() > before || life == 0);
        assert!(
            std::net::TcpListener::bind(events).is_err(),
            "the sidecar listens at {events}"
        );
        teller.die().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_may_follow_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    for config in [teller::tcp(), teller::ipc(&folder)] {
        let mut teller = Teller::running(config);
        let mut followers = [(); 2].map(|()| Watched::following(teller.source()));
        teller.store(0..5);
        teller.raise(EventFault::Lose {
            batches: 2,
            replayable: true,
        });
        teller.store(10..15);
        for watched in &followers {
            watched.becomes_exact("both", teller.held()).await;
        }
        followers[0].let_go();
        teller.remove(0..3);
        followers[1]
            .becomes_exact("the one that stays", teller.held())
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_topic_is_not_heard() {
    let mut teller = Teller::running(PublisherConfig {
        replay_endpoint: None,
        ..teller::tcp()
    });
    let mut source = teller.source();
    source.config.topic = "kv@other".to_owned();
    let other = Watched::following(source);
    let mut source = teller.source();
    // A subscription is for a beginning.
    source.config.topic = TOPIC[..3].to_owned();
    let beginning = Watched::following(source);
    let mut number = 0;
    until("its beginning to be heard", || {
        teller.store([number]);
        number += 1;
        let heard = beginning.messages() > 3;
        async move { heard }
    })
    .await;
    assert_eq!(other.messages(), 0);
    other.is_an_uncertain_subset("nothing was heard", &[].into());
    assert!(other.known(0).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_vanishes_without_a_word() {
    for asked in [Way::Through, Way::Swallowed] {
        let mut teller = Teller::running(teller::tcp());
        let ways = Ways::to(&teller, Way::Through, Way::Through).await;
        let watched = Watched::following(ways.source(&teller));
        watched.hears(&mut teller).await;
        ways.events.set(Way::Swallowed);
        ways.replay.set(asked);
        teller.store(0..10);
        if asked == Way::Through {
            let what = "what was swallowed is had by asking";
            watched.becomes_exact(what, teller.held()).await;
        }
        teller.die().await;
        teller.begin();
        teller.store(20..25);
        ways.events.set(Way::Through);
        ways.replay.set(Way::Through);
        ways.replay.cut();
        ways.events.cut();
        watched.becomes_exact("it is back", teller.held()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_beyond_the_high_water_mark_is_had_again() {
    let mut teller = Teller::running(PublisherConfig {
        buffer_steps: 1_000_000,
        max_queue_size: 1_000_000,
        ..teller::tcp()
    });
    let ways = Ways::to(&teller, Way::Through, Way::Through).await;
    let watched = Watched::following(ways.source(&teller));
    watched.hears(&mut teller).await;
    ways.events.set(Way::Stalled);
    teller.store(0..10);
    // 100,000 wait in the publisher, and what fits into sockets on the way.
    teller.chatter(160_000);
    teller.remove(0..5);
    teller.store(10..20);
    assert_eq!(teller.publisher().dropped(), 0);
    ways.events.set(Way::Through);
    while !watched.is_exact(teller.held()) {
        let before = watched.status(0).last_seq;
        until("the follower to get on", || async {
            watched.is_exact(teller.held()) || watched.status(0).last_seq > before
        })
        .await;
    }
    let published = teller.publisher().next_sequence();
    assert!(watched.messages() < published, "nothing was lost");
    assert_eq!(watched.status(0).last_seq, teller.last());
}

/// A new life of which the first message that is heard has the number that the old life's next one would have had, or one
/// a little further on.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_looks_like_a_small_gap_or_none() {
    for (replay, buffer_steps) in [(true, 1000), (true, 2), (false, 1000)] {
        for gap in [0, 1, 3] {
            let mut config = PublisherConfig {
                buffer_steps,
                ..teller::tcp()
            };
            if !replay {
                config.replay_endpoint = None;
            }
            let mut teller = Teller::running(config);
            let watched = Watched::following(teller.source());
            teller.clear();
            until("the old life to be heard", || {
                teller.store([1000 + u32::try_from(teller.last().unwrap()).unwrap()]);
                let heard = watched.messages() > 0;
                async move { heard }
            })
            .await;
            let last = teller.last().unwrap();
            watched.has_applied(Some(last)).await;
            teller.die().await;
            teller.begin();
            let batches = usize::try_from(last).unwrap() + 1 + gap;
            teller.raise(EventFault::Lose {
                batches,
                replayable: true,
            });
            teller.store(0..u32::try_from(batches).unwrap());
            let what = format!("replay {replay} of {buffer_steps}, gap {gap}");
            teller.store([2000]);
            until("the new life to be heard", || async {
                teller.repeat();
                watched.status(0).last_seq > Some(last)
            })
            .await;
            watched.has_applied(teller.last()).await;
            let certain = watched.is_honest(&what, teller.held());
            assert_eq!(certain, replay && buffer_steps > batches, "{what}");
            teller.clear();
            watched.becomes_exact(&what, teller.held()).await;
        }
    }
}

/// Threads of this process that follow a rank.
fn followers(rank: u32) -> usize {
    let name = format!("kv-events-{rank}");
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        // It may end meanwhile.
        std::fs::read_to_string(task.unwrap().path().join("comm")).ok()
    });
    names.filter(|found| found.trim_end() == name).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_end_with_their_guard() {
    let mut teller = Teller::running(teller::tcp());
    let stranger = Stranger::start(Greeting::None, vec![], false).await;
    let mute = format!("tcp://{}", stranger.address());
    // What is followed, its endpoint, and what the engine was given for one.
    let places = [
        ("a real one", teller.source().config.endpoint, "tcp://*:0"),
        ("a mute one", mute.clone(), "tcp://*:0"),
        ("nobody", "tcp://*:1".to_owned(), "tcp://*:1"),
        ("a port that is taken", mute.clone(), mute.as_str()),
    ];
    for (rank, (what, endpoint, asked)) in (7001..).zip(places) {
        let mut source = teller.source();
        source.rank = rank;
        source.asked = Some(asked.to_owned());
        (source.config.endpoint, source.config.replay_endpoint) = (endpoint, Some(mute.clone()));
        let mut quickest = Duration::MAX;
        for _ in 0..3 {
            let mut watched = Watched::following(source.clone());
            teller.store([rank]);
            teller.remove([rank]);
            // Those of libzmq that it begins have its name, too.
            until("threads to begin", || async { followers(rank) > 0 }).await;
            let told = Instant::now();
            watched.let_go();
            until("threads to end", || async { followers(rank) == 0 }).await;
            quickest = quickest.min(told.elapsed());
        }
        assert!(quickest < Duration::from_secs(1), "{what}: {quickest:?}");
    }
}

/// What accepts connections for an engine that is down, as proxies do, and ends them at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_none_loses_nothing() {
    let mut teller = Teller::running(PublisherConfig {
        replay_endpoint: None,
        ..teller::tcp()
    });
    let proxy = Proxy::to(address(&teller.config().endpoint), Way::Through).await;
    let mut source = teller.source();
    source.config.endpoint = proxy.endpoint();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut watched = Watched::recorded(Some(Recorder::open(file.path()).unwrap()));
    watched.follow(vec![source], teller::BLOCK);
    until("a message to be heard", || {
        teller.store([0]);
        teller.repeat();
        let heard = watched.messages() > 0;
        async move { heard }
    })
    .await;
    teller.die().await;
    let before = proxy.accepted();
    until("some more connections", || async {
        proxy.accepted() > before + 3
    })
    .await;
    let recorded = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(recorded.matches(r#""event":"lost""#).count(), 1);
}

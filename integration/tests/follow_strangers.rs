//! Strangers in place of an engine that publishes KV events: they say nothing, or what no engine says.
//!
//! Whatever stands there, the sidecar goes on, and when the engine is there its view is what the engine holds, or is known not
//! to be and has nothing in it that is not there.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::emulated::vllm::publisher::{EventFault, Mangled};
use baton_integration::kv_scene::proxy::Way;
use baton_integration::kv_scene::stranger::{FLOOD, Greeting, Stranger, frame, head};
use baton_integration::kv_scene::teller::{self, TOPIC, Teller, address};
use baton_integration::kv_scene::{Watched, Ways};
use baton_integration::wait::until;
use futures_util::future::join_all;

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_never_greets_is_given_up() {
    let mut teller = Teller::running(teller::tcp());
    let ways = Ways::to(&teller, Way::Swallowed, Way::Through).await;
    let watched = Watched::following(ways.source(&teller));
    teller.store(0..5);
    until("the follower to connect", || async {
        ways.events.accepted() > 0
    })
    .await;
    watched.is_an_uncertain_subset("nobody greets", teller.held());
    // The connection that is there stays as it is.
    ways.events.set(Way::Through);
    watched.becomes_exact("the real one", teller.held()).await;
    assert!(ways.events.accepted() > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_socket_that_never_greets_holds_nothing_up() {
    let mut teller = Teller::running(teller::tcp());
    let ways = Ways::to(&teller, Way::Through, Way::Swallowed).await;
    let watched = Watched::following(ways.source(&teller));
    teller.raise(EventFault::Lose {
        batches: 5,
        replayable: true,
    });
    teller.store(0..5);
    let mut next = 10;
    until("what is heard to be applied", || {
        teller.store([next]);
        next += 1;
        let last = watched.status(0).last_seq;
        async move { last.is_some() }
    })
    .await;
    watched.has_applied(teller.last()).await;
    watched.is_an_uncertain_subset("its beginning is missing", teller.held());
    ways.replay.set(Way::Through);
    teller.raise(EventFault::Lose {
        batches: 1,
        replayable: true,
    });
    teller.clear();
    teller.store(0..5);
    watched.becomes_exact("the real one", teller.held()).await;
}

/// What is no greeting, and what other protocols begin with.
fn rubbish() -> Vec<(&'static str, Greeting, Vec<u8>)> {
    let mut curve = vec![0; 64];
    (curve[0], curve[9], curve[10]) = (0xff, 0x7f, 3);
    curve[12..17].copy_from_slice(b"CURVE");
    let http = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec();
    let mut older = vec![1, 0];
    older.extend([&[1, 1][..], b"", &frame(b"kv@tiny", true)].concat());
    vec![
        ("HTTP", Greeting::None, http),
        ("TLS", Greeting::None, vec![0x15, 3, 3, 0, 2, 2, 40]),
        ("zeros", Greeting::None, vec![0; 4096]),
        ("ones", Greeting::None, vec![0xff; 4096]),
        ("security", Greeting::None, curve),
        ("an older protocol", Greeting::None, older),
        ("a replying socket", Greeting::Zmtp("REP"), vec![]),
        (
            "unknown commands",
            Greeting::Zmtp("PUB"),
            vec![4, 2, 1, b'x'],
        ),
        (
            "a command cut short",
            Greeting::Zmtp("PUB"),
            vec![4, 9, 8, b'S'],
        ),
        ("reserved flags", Greeting::Zmtp("PUB"), vec![0xf8, 1, 0]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn rubbish_in_place_of_events() {
    let stories = rubbish()
        .into_iter()
        .map(|(what, greeting, says)| async move {
            let mut teller = Teller::running(teller::tcp());
            let ways = Ways::to(&teller, Way::Through, Way::Through).await;
            let stranger = Stranger::start(greeting, says, false).await;
            ways.events.lead_to(stranger.address());
            let watched = Watched::following(ways.source(&teller));
            teller.store(0..5);
            // Some of what comes after a handshake is passed over by libzmq.
            let is_over = || match greeting {
                Greeting::Zmtp("PUB") => stranger.said() > 0,
                _ => stranger.ended() > 0,
            };
            until("the stranger to be met", || async { is_over() }).await;
            ways.events.lead_to(address(&teller.config().endpoint));
            ways.events.cut();
            watched.becomes_exact(what, teller.held()).await;
        });
    join_all(stories).await;
}

/// Frames that say they are longer than anything may be, after what may come before them.
fn absurd() -> Vec<(&'static str, Vec<u8>)> {
    let topic = frame(TOPIC.as_bytes(), true);
    vec![
        ("2^62 bytes", head(1 << 62)),
        ("2^64 - 1 bytes", head(u64::MAX)),
        ("65 MiB", head(65 << 20)),
        (
            "2^62 bytes of a number",
            [&topic[..], &head(1 << 62)].concat(),
        ),
        (
            "1 GiB of payload",
            [&topic[..], &frame(&[0; 8], true), &head(1 << 30)].concat(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_sizes_in_place_of_events() {
    let stories = absurd().into_iter().map(|(what, says)| async move {
        let mut teller = Teller::running(teller::tcp());
        let ways = Ways::to(&teller, Way::Through, Way::Through).await;
        let stranger = Stranger::start(Greeting::Zmtp("PUB"), says, true).await;
        ways.events.lead_to(stranger.address());
        let watched = Watched::following(ways.source(&teller));
        teller.store(0..5);
        until("the stranger to be met", || async { stranger.ended() > 0 }).await;
        let taken = stranger.most_taken();
        assert!(taken < FLOOD / 8, "{what}: {taken} bytes were taken");
        ways.events.lead_to(address(&teller.config().endpoint));
        ways.events.cut();
        watched.becomes_exact(what, teller.held()).await;
    });
    join_all(stories).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_beyond_all_bounds_is_not_taken() {
    let mut teller = Teller::running(teller::tcp());
    let watched = Watched::following(teller.source());
    watched.hears(&mut teller).await;
    let bytes = 65 << 20;
    teller.raise(EventFault::Mangle(Mangled::Huge { bytes }));
    teller.store(0..5);
    teller.remove(0..2);
    let what = "the engine has it as it should have been";
    watched.becomes_exact(what, teller.held()).await;
    let before = watched.messages();
    until("messages to be heard again", || {
        teller.store([50]);
        teller.remove([50]);
        let heard = watched.messages() > before;
        async move { heard }
    })
    .await;
    watched.becomes_exact("all is well", teller.held()).await;
}

/// The same from where the replay socket should be.
#[tokio::test(flavor = "multi_thread")]
async fn absurd_sizes_in_place_of_answers() {
    let stories = absurd().into_iter().map(|(what, says)| async move {
        let mut teller = Teller::running(teller::tcp());
        let ways = Ways::to(&teller, Way::Through, Way::Through).await;
        let stranger = Stranger::start(Greeting::Zmtp("ROUTER"), says, true).await;
        ways.replay.lead_to(stranger.address());
        let watched = Watched::following(ways.source(&teller));
        until("the stranger to be met", || async { stranger.ended() > 0 }).await;
        let taken = stranger.most_taken();
        assert!(taken < FLOOD / 8, "{what}: {taken} bytes were taken");
        teller.store(0..5);
        watched.is_an_uncertain_subset(what, teller.held());
        let replay = teller.config().replay_endpoint.as_deref().unwrap();
        ways.replay.lead_to(address(replay));
        // Whether the beginning is asked for again depends on how soon that was.
        teller.clear();
        teller.store(10..15);
        watched.becomes_exact(what, teller.held()).await;
    });
    join_all(stories).await;
}

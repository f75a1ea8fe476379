//! Strangers in place of an engine that publishes KV events: they say nothing, or what no engine says.
//!
//! Whatever stands there, the sidecar goes on, and when the engine is there its view is what the engine holds, or is known not
//! to be and has nothing in it that is not there.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::emulated::vllm::publisher::EventFault;
use baton_integration::kv_scene::proxy::Way;
use baton_integration::kv_scene::teller::{self, Teller};
use baton_integration::kv_scene::{Watched, Ways};
use baton_integration::wait::until;

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

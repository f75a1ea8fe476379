//! Which engines get work at all: those that are there, are what they say, and fit together.

use baton_integration::ask::completion;
use baton_integration::emulated::vllm::side_channel::SideChannel;
use baton_integration::emulated::vllm::{Config, Http};
use baton_integration::fleet::{Fleet, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_are_not_there_yet_are_waited_for() {
    let fleet = Setup::split()
        .absent("p0")
        .absent("d0")
        .start_without_waiting()
        .await;
    let ask = completion(false);
    let answer = fleet.post(ask.path, &ask.body).await;
    answer.refused(503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    fleet.worker_is("p0", "joining").await;
    fleet.engine("p0").start().await;
    fleet.worker_is("p0", "ready").await;
    let refused = fleet.post(ask.path, &ask.body).await.refused(503);
    assert!(refused.contains("hand over"), "{refused}");
    fleet.engine("d0").start().await;
    fleet.all_ready().await;
    assert_eq!(
        fleet.post(ask.path, &ask.body).await.served().generated(),
        ask.text
    );
    fleet.finish().await;
}

async fn stays_out(fleet: &Fleet, name: &str) {
    let ask = completion(false);
    fleet.worker_is(name, "joining").await;
    fleet.post(ask.path, &ask.body).await.refused(503);
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
        let ask = completion(false);
        assert_eq!(
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text
        );
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
        let ask = completion(false);
        assert_eq!(
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text
        );
        fleet.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_turns_into_something_else_loses_its_work_until_it_is_back() {
    let fleet = Setup::split()
        .router(&["--request-timeout-s", "3"])
        .start()
        .await;
    let ask = completion(false);
    for mode in [Http::Garbage, Http::OtherServer] {
        fleet.engine("d0").http_mode(mode);
        let answer = fleet.post(ask.path, &ask.body).await;
        assert!(matches!(answer.status, 502..=504), "{answer:?}");
        answer.refused(answer.status);
        fleet.engine("d0").behave();
        fleet.all_ready().await;
        assert_eq!(
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text
        );
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_cannot_hand_over_are_never_tried_and_say_why() {
    let other = |name: &'static str| {
        let mut config = Config::new(Some("kv_producer"));
        match name {
            "block_size" => config.block_size = 64,
            "compatibility_hash" => {
                config.compatibility_hash =
                    "0000002e67ae07159c7f0b1a8477b52881665113f0649995de773a219769682e".to_owned();
            }
            "kv_cache_layout" => config.layout = "BLNHC".to_owned(),
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
        let ask = completion(false);
        let message = fleet.post(ask.path, &ask.body).await.refused(503);
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
            fleet.post(ask.path, &ask.body).await.served().generated(),
            ask.text,
            "without force it is served whole"
        );
        fleet.finish().await;
    }
}

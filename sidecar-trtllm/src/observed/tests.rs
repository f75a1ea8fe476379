use std::collections::VecDeque;

use baton_proto::{ErrorKind, Retry, Stage};
use baton_sidecar_core::core::Core;
use baton_sidecar_core::metrics::Metrics;
use baton_sidecar_core::status::EngineStatus;
use baton_sidecar_core::view::KvView;
use baton_sidecar_core::view::metrics::ViewMetrics;
use clap::Parser;
use serde_json::Value;

use super::*;

/// An engine that has told so much, and tells nothing more.
#[derive(Debug, Clone)]
struct Scripted(Arc<Mutex<VecDeque<String>>>);

impl Source for Scripted {
    async fn take_events(&self) -> Result<Vec<u8>, Error> {
        let told = self.0.lock().unwrap().pop_front();
        Ok(told.unwrap_or_else(|| "[]".to_owned()).into_bytes())
    }

    async fn take_statistics(&self) -> Result<Vec<u8>, Error> {
        let recorded =
            include_bytes!("../../../integration/recordings/trtllm/metrics_iteration_stats.json");
        Ok(recorded.to_vec())
    }
}

fn polls() -> VecDeque<String> {
    let recorded = include_str!("../../../integration/recordings/trtllm/kv_events_v1_polls.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let polls = recorded["polls"].as_array().unwrap().iter();
    polls.map(|poll| poll["body"].to_string()).collect()
}

fn engine(flags: &[&str]) -> ObservedEngine<Scripted> {
    let line = ["baton.attach", "--model", "tiny"].iter().chain(flags);
    ObservedEngine {
        args: ObservedArgs::try_parse_from(line).unwrap(),
        source: Scripted(Arc::new(Mutex::new(polls()))),
        ears: Ears::default(),
        files: Mutex::default(),
        started: watch::Sender::new(false),
    }
}

#[tokio::test]
async fn it_takes_no_leg_and_lives_once() {
    let engine = engine(&["--tokens-per-block", "32", "--max-batch-size", "8"]);
    let first = engine.attach().await.unwrap();
    assert!(*engine.started.borrow());
    assert_eq!(
        (first.info.role, first.info.role.serves()),
        (Role::Observed, false)
    );
    assert_eq!(
        (first.info.block_size, first.info.max_sequences),
        (Some(32), Some(8))
    );
    assert_eq!(engine.attach().await.unwrap(), first);
    assert_eq!(engine.incarnation().await.unwrap(), first.incarnation);
}

#[tokio::test(start_paused = true)]
async fn what_it_tells_becomes_a_view_and_a_load() {
    let engine = engine(&["--tokens-per-block", "32"]);
    let attached = engine.attach().await.unwrap();
    let view = KvView::new(ViewMetrics::default(), None);
    let following = engine.follow(&view.begin(&attached.info));
    // Past the last poll: time passes when everybody waits for it.
    while !engine.source.0.lock().unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let digests = view
        .after(0, usize::MAX)
        .and_then(|told| told.digests)
        .unwrap();
    let blocks: Vec<u64> = digests.iter().map(|rank| rank.blocks).collect();
    assert_eq!(blocks, [1], "of four that were told, one whole one is left");
    assert!(!view.is_uncertain());
    assert_eq!(
        engine.load().await.unwrap().report.running.unwrap().value,
        1
    );
    drop(following);
}

#[tokio::test]
async fn whoever_sends_it_a_leg_is_refused_and_may_go_elsewhere() {
    let engine = engine(&["--token", "a-secret-of-this-test"]);
    let (core, token) = (
        engine.args.core.clone(),
        engine.args.core.common.fleet_token(),
    );
    let attached = engine.attach().await.unwrap();
    let core = Core::new(engine, core, token.unwrap(), Metrics::default()).unwrap();
    core.engine_seen(EngineStatus::Up(Arc::new(attached)));
    let refused = core.ready(Stage::Generate).unwrap_err();
    assert_eq!(
        (refused.kind, refused.retry),
        (ErrorKind::NoWorker, Retry::Safe)
    );
    assert!(refused.message.contains("observed"), "{refused}");
}

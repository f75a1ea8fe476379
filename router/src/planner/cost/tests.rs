//! What cached tokens are worth.

use std::sync::Arc;

use baton_index::Index;
use baton_proto::event::{Blocks, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::watch::WatchFrame;
use baton_proto::worker::Tier;

use super::*;
use crate::args::Force;
use crate::fleet::testing::{hear, snapshot, worker};
use crate::planner::{Lessons, Plan, explain, plan};
use crate::view::tests::info;
use crate::view::{Prompt, predict};

const TOKENS: u32 = 3201;

fn facts() -> Facts {
    Facts {
        model: Some("tiny".to_owned()),
        local: None,
        prompt_tokens: TOKENS.into(),
        prompt: Some(Prompt::new((0..TOKENS).collect(), "")),
    }
}

/// A worker that holds the first blocks of the prompt, for sure or perhaps.
fn holder(index: &Arc<Index>, id: &str, blocks: usize, uncertain: bool) -> WorkerView {
    let idle = worker(id, index, info(16));
    let fleet = snapshot([idle.clone()]);
    let prediction = predict(index, &fleet, None, facts().prompt.as_ref());
    let named = prediction.blocks(&idle.worker).unwrap()[..blocks].iter();
    let broken = false;
    let part = WatchFrame::Snapshot {
        seq: 1,
        rank: 0,
        state: ViewState { uncertain, broken },
        tier: Tier::Device,
        blocks: Blocks(named.copied().map(SequenceHash).collect()),
        last: true,
    };
    hear(&idle, [part])
}

fn predicted(index: &Index, workers: &[&WorkerView]) -> Prediction {
    let fleet = snapshot(workers.iter().map(|worker| (*worker).clone()));
    predict(index, &fleet, Some("tiny"), facts().prompt.as_ref())
}

fn assert_close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-9, "{got} is not {expected}");
}

#[test]
fn only_what_is_not_cached_is_computed() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let warm = holder(&index, "b", 150, false);
    let perhaps = holder(&index, "c", 150, true);
    let prediction = predicted(&index, &[&cold, &warm, &perhaps]);
    let prefill = |worker| local(worker, &facts(), &prediction).prefill;
    assert_close(prefill(&cold), 3201.0 / PREFILL_TOKENS_PER_S);
    assert_close(prefill(&warm), (3201.0 - 2400.0) / PREFILL_TOKENS_PER_S);
    assert_close(
        prefill(&perhaps),
        (3201.0 - 2400.0 * LIKELY) / PREFILL_TOKENS_PER_S,
    );
}

#[test]
fn a_transfer_shrinks_by_what_decode_has() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let warm = holder(&index, "b", 150, false);
    let prediction = predicted(&index, &[&cold, &warm]);
    let cost = |prefill, decode| split(prefill, decode, &facts(), &prediction);
    let of = |tokens: f64| tokens * BYTES_PER_TOKEN / BANDWIDTH + HANDOFF_S;
    let to_warm = cost(&cold, &warm);
    assert_close(to_warm.prefill, 3201.0 / PREFILL_TOKENS_PER_S);
    assert_close(to_warm.transfer, of(801.0));
    let to_cold = cost(&warm, &cold);
    assert_close(to_cold.prefill, 801.0 / PREFILL_TOKENS_PER_S);
    assert_close(to_cold.transfer, of(3201.0));
}

#[test]
fn a_prediction_never_saves_more_than_there_is() {
    let mut short = facts();
    short.prompt_tokens = 10;
    let cached = Cached {
        known: u64::MAX,
        likely: u64::MAX,
        ..Cached::default()
    };
    assert_eq!(uncached(&short, cached), 0);
}

#[test]
fn the_plan_follows_the_cache_and_says_so() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let perhaps = holder(&index, "b", 150, true);
    let warm = holder(&index, "c", 150, false);
    let fleet = snapshot([cold.clone(), perhaps.clone(), warm.clone()]);
    let prediction = predicted(&index, &[&cold, &perhaps, &warm]);
    let lessons = Lessons::default();
    for _ in 0..20 {
        let chosen = plan(&fleet, &facts(), &prediction, Force::Local, &lessons).unwrap();
        assert!(matches!(chosen.plan, Plan::Local { worker } if worker.id() == warm.id()));
    }
    let explained = explain(&fleet, &facts(), &prediction, Force::Local);
    let cached: Vec<String> = explained["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|candidate| format!("{} {}", candidate["worker"], candidate["cached"]["worker"]))
        .collect();
    let expected = [
        r#""c" {"basis":"exact","likely_tokens":0,"tokens":2400}"#,
        r#""b" {"basis":"uncertain","likely_tokens":2400,"tokens":0}"#,
        r#""a" {"basis":"exact","likely_tokens":0,"tokens":0}"#,
    ];
    assert_eq!(cached, expected);
    assert_eq!(explained["request"]["prompt_tokens_known"], true);
}

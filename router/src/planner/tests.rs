use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_index::Index;
use baton_proto::compat::Compatibility;
use baton_proto::event::{Blocks, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::watch::WatchFrame;
use baton_proto::worker::{Tier, WorkerInfo};
use clap::Parser;

use super::*;
use crate::fleet::Admission;
use crate::fleet::testing::{dead, hear, snapshot, worker};
use crate::prefill::bypass::Facts;
use crate::queue::Ahead;
use crate::tokens::Known;
use crate::view::tests::info;
use crate::view::{Prediction, Prompt, predict};

mod legs_only;
mod observed;

const TOKENS: u32 = 3201;

fn facts() -> Facts {
    Facts {
        model: Some("tiny".to_owned()),
        local: None,
        whole: false,
        prompt_tokens: TOKENS.into(),
        longest_prompt: TOKENS.into(),
        prompt: Some(Prompt::new((0..TOKENS).collect(), "")),
        text: None,
        known: Known::Given,
        because: None,
    }
}

fn planning(flags: &[&str]) -> Planning {
    let flags = ["baton-router"].iter().chain(flags);
    Planning::new(&RouterArgs::parse_from(flags))
}

/// A worker that holds the first blocks of the prompt, for sure or perhaps.
fn holder(index: &Arc<Index>, id: &str, blocks: usize, uncertain: bool) -> WorkerView {
    let idle = worker(id, index, info(16));
    let fleet = snapshot([idle.clone()]);
    let prediction = predict(index, &fleet, None, facts().prompt.as_ref());
    let named = prediction.blocks(&idle.worker)[0][..blocks].iter();
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

struct Scene {
    fleet: Snapshot,
    facts: Facts,
    prediction: Prediction,
    lessons: Lessons,
    wish: Wish,
    ahead: Ahead,
}

impl Scene {
    fn new(index: &Index, workers: impl IntoIterator<Item = WorkerView>) -> Self {
        let fleet = snapshot(workers);
        let prediction = predict(index, &fleet, Some("tiny"), facts().prompt.as_ref());
        Self {
            fleet,
            facts: facts(),
            prediction,
            lessons: Lessons::default(),
            wish: Wish::default(),
            ahead: Ahead::default(),
        }
    }

    fn question(&self) -> Question<'_> {
        Question {
            snapshot: &self.fleet,
            facts: &self.facts,
            prediction: &self.prediction,
            lessons: &self.lessons,
            wish: &self.wish,
            ahead: &self.ahead,
        }
    }

    /// Who serves, prefill first.
    fn chosen(&self, planning: &Planning) -> Result<Vec<String>, String> {
        let plan = planning
            .plan(&self.question())
            .map_err(|error| error.message)?;
        let ids = match plan.plan {
            Plan::Local { worker } => vec![worker.id().to_string()],
            Plan::Split { prefill, decode } => {
                vec![prefill.id().to_string(), decode.id().to_string()]
            }
        };
        Ok(ids)
    }
}

#[test]
fn the_plan_follows_the_cache_and_says_so() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let perhaps = holder(&index, "b", 150, true);
    let warm = holder(&index, "c", 150, false);
    let scene = Scene::new(&index, [cold, perhaps, warm]);
    let planning = planning(&["--force", "local"]);
    for _ in 0..20 {
        assert_eq!(scene.chosen(&planning).unwrap(), ["c"]);
    }
    let explained = explain(&planning, &scene.question());
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
    assert_eq!(explained["chosen"]["worker"], "c");
    assert_eq!(explained["candidates"][2]["lost_by"]["mostly"], "prefill");
}

#[test]
fn what_must_be_computed_is_what_is_not_cached() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let perhaps = holder(&index, "b", 150, true);
    let warm = holder(&index, "c", 150, false);
    let scene = Scene::new(&index, [cold, perhaps, warm]);
    let planning = planning(&[]);
    let work = |id: &str| {
        let work = planning.work(&scene.question(), &id.parse().unwrap());
        (work.tokens, work.cached)
    };
    assert_eq!(work("a"), (3201, 0));
    assert_eq!(work("b"), (2001, 1200), "half of what is uncertain counts");
    assert_eq!(work("c"), (801, 2400));
    assert_eq!(work("gone"), (3201, 0));
}

#[test]
fn who_failed_is_spared_if_there_is_another() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let warm = holder(&index, "b", 150, false);
    let mut scene = Scene::new(&index, [cold, warm.clone()]);
    let planning = planning(&["--force", "local"]);
    scene.lessons.failed.push("b".parse().unwrap());
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
    scene.lessons.failed.push("a".parse().unwrap());
    assert_eq!(
        scene.chosen(&planning).unwrap(),
        ["b"],
        "better than nobody"
    );
    scene.lessons = Lessons::default();
    warm.worker.failed();
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
    scene.lessons.warm = Some("b".parse().unwrap());
    assert_eq!(scene.chosen(&planning).unwrap(), ["b"]);
}

/// A worker of this role that is known to hold nothing.
fn of_role(index: &Arc<Index>, id: &str, role: Role) -> WorkerView {
    let info = WorkerInfo {
        role,
        compatibility: Some(Compatibility {
            handoff: "pull".to_owned(),
            facts: BTreeMap::new(),
            block_size: 16,
        }),
        ..info(16)
    };
    worker(id, index, info)
}

#[tokio::test(start_paused = true)]
async fn breakers_never_empty_a_pool_and_the_least_bad_goes_first() {
    let index: Arc<Index> = Arc::default();
    let [p0, p1] = ["p0", "p1"].map(|id| of_role(&index, id, Role::Prefill));
    let [d0, d1] = ["d0", "d1"].map(|id| of_role(&index, id, Role::Decode));
    let all = [&d0, &d1, &p0, &p1].map(WorkerView::clone);
    let scene = Scene::new(&index, all);
    let planning = planning(&["--force", "split"]);
    let again = || (0..20).map(|_| scene.chosen(&planning).unwrap());
    p0.worker.failed();
    assert!(again().all(|ids| ids[0] == "p1"));
    // Now the whole pool is open; the one that failed more often is the worse one.
    tokio::time::advance(Duration::from_secs(1)).await;
    p0.worker.failed();
    p1.worker.failed();
    assert!(again().all(|ids| ids[0] == "p1"), "the least bad one");
    assert!(
        again().any(|ids| ids[1] == "d0") && again().any(|ids| ids[1] == "d1"),
        "one bad pool says nothing of the other"
    );
}

#[tokio::test(start_paused = true)]
async fn a_good_local_plan_goes_before_a_split_over_a_bad_worker() {
    let index: Arc<Index> = Arc::default();
    let prefill = of_role(&index, "p", Role::Prefill);
    let scene = Scene::new(
        &index,
        [of_role(&index, "d", Role::Decode), prefill.clone()],
    );
    prefill.worker.failed();
    for _ in 0..20 {
        assert_eq!(scene.chosen(&planning(&[])).unwrap(), ["d"]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_tries_a_half_open_worker_and_the_others_avoid_it() {
    let index: Arc<Index> = Arc::default();
    let tried = holder(&index, "b", 150, false);
    let scene = Scene::new(&index, [holder(&index, "a", 0, false), tried.clone()]);
    let planning = planning(&["--force", "local"]);
    tried.worker.failed();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(scene.chosen(&planning).unwrap(), ["b"], "its cache is warm");
    let probe = Admission::ask(&tried.worker).unwrap();
    assert!(Admission::ask(&tried.worker).is_none());
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
    drop(probe);
    assert_eq!(scene.chosen(&planning).unwrap(), ["b"]);
    let probe = Admission::ask(&tried.worker).unwrap();
    tried.worker.served();
    drop(probe);
    assert!(Admission::ask(&tried.worker).is_some());
    assert_eq!(scene.chosen(&planning).unwrap(), ["b"]);
}

/// A worker that is gone or whose engine does not answer is nobody's last resort.
#[test]
fn a_dead_worker_is_not_the_least_bad_one() {
    let index: Arc<Index> = Arc::default();
    let dead = dead(&of_role(&index, "a", Role::Any));
    let scene = Scene::new(&index, [dead]);
    let refused = scene.chosen(&planning(&[])).unwrap_err();
    assert!(refused.contains("no worker is ready"), "{refused}");
}

#[test]
fn a_prompt_that_is_too_long_for_all_is_judged_by_an_engine() {
    let index: Arc<Index> = Arc::default();
    let sized = |id, context_length| {
        let info = WorkerInfo {
            context_length: Some(context_length),
            ..info(16)
        };
        worker(id, &index, info)
    };
    let planning = planning(&[]);
    let scene = Scene::new(&index, [sized("a", 2000), sized("b", 4000)]);
    for _ in 0..20 {
        assert_eq!(scene.chosen(&planning).unwrap(), ["b"]);
    }
    let explained = explain(&planning, &scene.question());
    assert_eq!(explained["excluded"]["a"], "it can hold 2000 tokens");
    let scene = Scene::new(&index, [sized("a", 2000)]);
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
}

#[test]
fn policies_that_look_at_no_seconds() {
    let index: Arc<Index> = Arc::default();
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&index, id, 0, false));
    let warm = holder(&index, "d", 150, false);
    let busy = warm.worker.books().book(Work::default(), 0, 0.0);
    let scene = Scene::new(&index, [a, b, c, warm]);
    let chosen = |flags: &[&str]| {
        let planning = planning(flags);
        let ids = (0..40).flat_map(|_| scene.chosen(&planning).unwrap());
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        ids.dedup();
        ids.concat()
    };
    assert_eq!(chosen(&["--policy", "round-robin"]), "abcd");
    assert_eq!(chosen(&["--policy", "least-loaded"]), "abc");
    assert_eq!(chosen(&["--policy", "prefix"]), "d");
    drop(busy);
}

#[test]
fn decisions_are_kept_and_say_why() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let warm = holder(&index, "b", 150, false);
    let scene = Scene::new(&index, [cold, warm]);
    let planning = planning(&[]);
    for at in 0..300 {
        let chosen = planning.plan(&scene.question()).unwrap();
        let decision =
            planning
                .decisions
                .note(&scene.question(), &chosen, at.to_string(), f64::from(at));
        decision.came(|outcome| outcome.cached = Some(2400));
    }
    let shown = planning.decisions.shown(300.0);
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), 256);
    assert_eq!(shown[0]["trace"], "299");
    assert_eq!(shown[0]["chosen"]["worker"], "b");
    assert_eq!(shown[0]["others"][0]["worker"], "a");
    assert_eq!(shown[0]["others"][0]["lost_by"]["mostly"], "prefill");
    assert_eq!(shown[0]["reported_cached_tokens"], 2400);
}

#[test]
fn what_a_gateway_has_chosen_is_taken_or_refused() {
    let index: Arc<Index> = Arc::default();
    let cold = holder(&index, "a", 0, false);
    let warm = holder(&index, "b", 150, false);
    let mut scene = Scene::new(&index, [cold, warm]);
    let planning = planning(&[]);
    scene.wish.route = Some("local=a".parse().unwrap());
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
    for (route, part) in [
        ("local=c", "worker c cannot"),
        ("split=a,b", "a cannot hand over to b"),
    ] {
        scene.wish.route = Some(route.parse().unwrap());
        let error = scene.chosen(&planning).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_session_stays_with_its_worker() {
    let index: Arc<Index> = Arc::default();
    let workers = ["a", "b", "c"].map(|id| holder(&index, id, 0, false));
    let mut scene = Scene::new(&index, workers);
    let planning = planning(&[]);
    scene.wish.keep = Some(("c".parse().unwrap(), 0.1));
    for _ in 0..20 {
        assert_eq!(scene.chosen(&planning).unwrap(), ["c"]);
    }
}

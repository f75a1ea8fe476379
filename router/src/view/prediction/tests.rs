//! Predictions by views, expectations and both.

use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::watch::WatchFrame;
use baton_proto::worker::{Tier, WorkerInfo};

use super::*;
use crate::fleet::testing::{hear, lose, snapshot, worker};
use crate::view::tests::info;

const SIZE: u32 = 16;

fn prompt(tokens: u32) -> Prompt {
    Prompt::new((0..tokens).collect(), "")
}

/// The first blocks of a prompt, as workers of this description name them.
fn named(prompt: &Prompt, model: Option<&str>, info: &WorkerInfo, blocks: usize) -> Vec<u64> {
    let naming = prompt.naming(model, info).unwrap();
    let (named, _) = prompt.blocks(naming).next().unwrap();
    named[..blocks].to_vec()
}

fn holds(rank: u32, state: ViewState, held: Vec<u64>, last: bool) -> WatchFrame {
    let blocks = Blocks(held.into_iter().map(SequenceHash).collect());
    let tier = Tier::Device;
    WatchFrame::Snapshot {
        seq: 5,
        rank,
        state,
        tier,
        blocks,
        last,
    }
}

fn exactly(held: Vec<u64>) -> WatchFrame {
    holds(0, ViewState::default(), held, true)
}

#[test]
fn a_prediction_is_told_behind_the_plan() {
    let told = cached(32, 16, Basis::Expected).to_string();
    assert_eq!(told, " cached_tokens=32 likely_tokens=16 basis=expected");
    assert_eq!(Cached::default().to_string(), "");
}

fn cached(known: u64, likely: u64, basis: Basis) -> Cached {
    Cached {
        known,
        lower: 0,
        likely,
        basis,
    }
}

fn of(index: &Index, worker: &WorkerView, prompt: &Prompt) -> Cached {
    let fleet = snapshot([worker.clone()]);
    predict(index, &fleet, Some("tiny"), Some(prompt)).cached(worker.id())
}

#[test]
fn an_exact_view_tells_what_the_engine_will_find() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let idle = worker("a", &index, info(SIZE));
    let there = hear(&idle, [exactly(named(&long, None, &info(SIZE), 4))]);
    assert_eq!(of(&index, &there, &long), cached(64, 0, Basis::Exact));
    assert_eq!(of(&index, &there, &prompt(64)), cached(48, 0, Basis::Exact));
    assert_eq!(of(&index, &there, &prompt(65)), cached(64, 0, Basis::Exact));
    assert_eq!(of(&index, &there, &prompt(5)), cached(0, 0, Basis::Exact));
    let other = Prompt::new((0..100).collect(), "tenant");
    assert_eq!(of(&index, &there, &other), cached(0, 0, Basis::Exact));
    let fleet = snapshot([there.clone()]);
    let prediction = predict(&index, &fleet, None, Some(&long));
    assert_eq!(prediction.exact(there.id()), Some(64));
    assert_eq!(prediction.exact(&"b".parse().unwrap()), None);
    assert_eq!(
        predict(&index, &fleet, None, None).cached(there.id()),
        Cached::default()
    );
}

#[test]
fn models_adapters_and_block_sizes_name_blocks_in_their_own_ways() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let mut other = info(SIZE);
    other.models = vec!["large".to_owned(), "tiny".to_owned()];
    let infos = [("a", info(SIZE)), ("b", info(32)), ("c", other)];
    let workers = infos.map(|(id, info)| {
        let held = named(&long, Some("tiny"), &info, 3);
        hear(&worker(id, &index, info), [exactly(held)])
    });
    let fleet = snapshot(workers);
    let known = |model: &str| {
        let prediction = predict(&index, &fleet, Some(model), Some(&long));
        let cached = fleet
            .workers
            .iter()
            .map(|worker| prediction.cached(worker.id()));
        cached
            .map(|cached| (cached.known, cached.basis))
            .collect::<Vec<_>>()
    };
    let exact = |tokens| (tokens, Basis::Exact);
    assert_eq!(known("tiny"), [exact(48), exact(96), exact(48)]);
    assert_eq!(known("ada"), [exact(0), exact(0), exact(0)]);
    assert_eq!(
        known("large"),
        [(0, Basis::Unknown), (0, Basis::Unknown), exact(48)]
    );
}

#[test]
fn what_is_not_exact_is_likely_at_best() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let uncertain = ViewState {
        uncertain: true,
        broken: false,
    };
    let held = named(&long, None, &info(SIZE), 2);
    let unwatched = worker("a", &index, info(SIZE));
    assert_eq!(of(&index, &unwatched, &long), Cached::default());
    let joined = hear(&unwatched, [holds(0, uncertain, held, true)]);
    assert_eq!(of(&index, &joined, &long), cached(0, 32, Basis::Uncertain));
    let rank = 0;
    let (seq, event) = (6, KvEvent::Certain);
    let exact = hear(&joined, [WatchFrame::Event { seq, rank, event }]);
    assert_eq!(of(&index, &exact, &long), cached(32, 0, Basis::Exact));
    assert_eq!(
        of(&index, &lose(&exact), &long),
        cached(0, 32, Basis::Uncertain)
    );
}

#[test]
fn an_engine_with_several_ranks_has_what_all_of_them_have() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let two = WorkerInfo {
        ranks: 2,
        ..info(SIZE)
    };
    let held = |blocks| named(&long, None, &two, blocks);
    let known = ViewState::default();
    let one = worker("a", &index, two.clone());
    let half = hear(&one, [holds(0, known, held(4), true)]);
    assert_eq!(of(&index, &half, &long), cached(0, 64, Basis::Uncertain));
    let unequal = [
        holds(0, known, held(4), false),
        holds(1, known, held(2), true),
    ];
    let unequal = hear(&worker("b", &index, two.clone()), unequal);
    assert_eq!(of(&index, &unequal, &long), cached(32, 0, Basis::Uncertain));
    let equal = [
        holds(0, known, held(4), false),
        holds(1, known, held(4), true),
    ];
    let equal = hear(&worker("c", &index, two.clone()), equal);
    assert_eq!(of(&index, &equal, &long), cached(64, 0, Basis::Exact));
}

#[test]
fn requests_on_their_way_are_expected_beyond_what_is_known() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let held = |blocks| named(&long, None, &info(SIZE), blocks);
    let exact = hear(&worker("a", &index, info(SIZE)), [exactly(held(2))]);
    let sent = exact.worker.expected().expect(&held(5).into());
    assert_eq!(of(&index, &exact, &long), cached(32, 48, Basis::Expected));
    let fleet = snapshot([exact.clone()]);
    let prediction = predict(&index, &fleet, None, Some(&long));
    assert_eq!(
        prediction.exact(exact.id()),
        None,
        "the events may come any moment"
    );
    let told = hear(&exact, [exactly(held(5))]);
    assert_eq!(of(&index, &told, &long), cached(80, 0, Basis::Exact));
    let lost = lose(&exact);
    assert_eq!(of(&index, &lost, &long), cached(0, 80, Basis::Uncertain));
    drop(sent);
    assert_eq!(of(&index, &told, &long), cached(80, 0, Basis::Exact));
}

#[test]
fn without_events_what_was_sent_there_is_an_approximation() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let blind = worker("a", &index, info(SIZE));
    let fleet = snapshot([blind.clone()]);
    let prediction = predict(&index, &fleet, Some("tiny"), Some(&long));
    let blocks = &prediction.blocks(&blind.worker)[0];
    let mut sent = blind.worker.expected().expect(blocks).unwrap();
    sent.computed(blind.is_exactly_known());
    drop(sent);
    assert_eq!(of(&index, &blind, &long), cached(0, 96, Basis::Approximate));
    assert_eq!(
        of(&index, &blind, &prompt(96)),
        cached(0, 80, Basis::Approximate)
    );
}

#[test]
fn an_engine_in_quarantine_uses_names_that_nobody_knows() {
    let index: Arc<Index> = Arc::default();
    let long = prompt(100);
    let held = named(&long, None, &info(SIZE), 2);
    let exact = hear(&worker("a", &index, info(SIZE)), [exactly(held)]);
    exact.worker.tell_quarantine(1);
    assert_eq!(of(&index, &exact, &long), Cached::default());
}

#[test]
fn several_sequences_are_predicted_and_not_compared() {
    let index: Arc<Index> = Arc::default();
    let tokens: Vec<String> = (0..40).map(|token| token.to_string()).collect();
    let body = format!(r#"{{"prompt":[{}],"n":2}}"#, tokens.join(","));
    let request = ClientRequest::new(Route::Completions, body.into()).unwrap();
    let twice = Prompt::given(&request).unwrap();
    let held = named(&twice, None, &info(SIZE), 2);
    let exact = hear(&worker("a", &index, info(SIZE)), [exactly(held)]);
    let prediction = predict(&index, &snapshot([exact.clone()]), None, Some(&twice));
    assert_eq!(prediction.cached(exact.id()), cached(32, 0, Basis::Exact));
    assert_eq!(prediction.exact(exact.id()), None);
}

#[test]
fn of_a_batch_what_is_held_of_each_prompt_is_counted() {
    let index: Arc<Index> = Arc::default();
    let ids = |prompts: &str| {
        let body = format!(r#"{{"model":"tiny","prompt":{prompts}}}"#);
        let request = ClientRequest::new(Route::Completions, body.into()).unwrap();
        Prompt::given(&request).unwrap()
    };
    let [one, two]: [Vec<u32>; 2] = [(0..100).collect(), (500..540).collect()];
    let batch = ids(&format!("[{one:?},{two:?}]"));
    let idle = worker("a", &index, info(SIZE));
    let mut held = named(&prompt(100), None, &info(SIZE), 3);
    held.extend(named(&ids(&format!("{two:?}")), None, &info(SIZE), 2));
    let there = hear(&idle, [exactly(held)]);
    assert_eq!(of(&index, &there, &batch), cached(48 + 32, 0, Basis::Exact));
    // On its way it is expected whole, each prompt by itself.
    let fleet = snapshot([there.clone()]);
    let prediction = predict(&index, &fleet, None, Some(&batch));
    let blocks = prediction.blocks(&there.worker);
    assert_eq!(
        blocks.iter().map(|blocks| blocks.len()).collect::<Vec<_>>(),
        [6, 2]
    );
    let expected = there.worker.expected();
    let _sent: Vec<_> = blocks
        .iter()
        .map(|blocks| expected.expect(blocks))
        .collect();
    assert_eq!(of(&index, &there, &batch), cached(80, 48, Basis::Expected));
    assert_eq!(
        prediction.exact(there.id()),
        None,
        "its report is about two sequences"
    );
}

#[test]
fn texts_that_begin_alike_may_be_cached_where_one_was_computed() {
    let index: Arc<Index> = Arc::default();
    let [there, other] = ["a", "b"].map(|id| worker(id, &index, info(SIZE)));
    let text = |words: &str, more: &str| {
        let body = format!(r#"{{"model":"tiny","prompt":"{words}"{more}}}"#);
        let request = ClientRequest::new(Route::Completions, body.into()).unwrap();
        Text::of(&request).unwrap()
    };
    let words = "a".repeat(1024);
    let first = text(&words, "");
    let mut sent = there.worker.texts().expect(first.pieces()).unwrap();
    sent.computed(false);
    drop(sent);
    let fleet = snapshot([there.clone(), other.clone()]);
    let of = |text: &Text, tokens| {
        let prediction = predict_by_text(&fleet, Some("tiny"), text, tokens);
        [&there, &other].map(|worker| prediction.cached(worker.id()))
    };
    let longer = text(&format!("{words}{}", "b".repeat(600)), "");
    let [here, elsewhere] = of(&longer, 400);
    assert_eq!(here, cached(0, 4 * PIECE_TOKENS, Basis::Approximate));
    assert_eq!(elsewhere, Cached::default());
    assert_eq!(of(&longer, 100)[0].likely, 99, "the last token is computed");
    let salted = text(&words, r#","cache_salt":"x""#);
    assert_eq!(of(&salted, 400)[0], Cached::default());
    let prediction = predict_by_text(&fleet, Some("other"), &longer, 400);
    assert_eq!(prediction.cached(there.id()), Cached::default());
    assert_eq!(
        prediction.foretold(there.id()),
        None,
        "nothing is to be compared"
    );
}

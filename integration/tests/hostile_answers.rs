//! Engines that answer badly: in framing, in form, in content and in time. A client gets the right text, from another
//! attempt if need be, or an honest error; never another's text, never a 200 without content, never an end after an error.

use baton_integration::emulated::vllm::script::{End, Leg, RawAnswer};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::hostile::answers::asking::{Times, ask};
use baton_integration::hostile::answers::{
    Odd, Outcome, Question, Shape, bodies, framing, poisons, prefills, status, streams,
};

const UNARY: [Shape; 2] = [Shape::ALL[0], Shape::ALL[1]];

type Generate = fn(Shape) -> Vec<Odd>;

const KINDS: [Generate; 4] = [status::cases, framing::cases, bodies::cases, streams::cases];

/// All cases of these kinds for these shapes.
fn of(kinds: &[Generate], shapes: &[Shape]) -> Vec<Odd> {
    let each = |shape: &Shape| {
        kinds
            .iter()
            .flat_map(|kind| kind(*shape))
            .collect::<Vec<_>>()
    };
    shapes.iter().flat_map(each).collect()
}

/// Here every request fails at first, by design: none may be refused its second attempt for that.
const RETRIES: [&str; 2] = ["--retry-percent", "1000"];

/// One engine that does it all.
async fn local(router: &[&str], sidecar: &[&str]) -> Fleet {
    let local = Setup::new().plain("e0").router(&["--force", "local"]);
    let local = local.router(&RETRIES).router(router);
    local.sidecars(sidecar).start().await
}

/// Two engines, and every request between them.
async fn split() -> Fleet {
    Setup::split().router(&RETRIES).start().await
}

/// The engine behaves again, ordinary questions are answered, and the fleet ends in order.
async fn all_is_well(fleet: Fleet, worker: &str) {
    fleet.engine(worker).behave();
    fleet.quiet().await;
    let leg = Leg::Local;
    ask(
        fleet.address(),
        fleet.engine(worker),
        leg,
        Times::Once,
        ordinary(8),
    )
    .await;
    fleet.finish().await;
}

/// Ordinary answers to ordinary questions.
fn ordinary(count: usize) -> Vec<Odd> {
    let ask = |shape| {
        let question = Question::new(shape);
        let content = question.content();
        let answer = RawAnswer::new(End::Keep).bytes(question.sized(content.as_bytes()));
        Odd::new("an ordinary answer", &question, answer, Outcome::Taken)
    };
    Shape::ALL
        .into_iter()
        .cycle()
        .take(count)
        .map(ask)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_odd_is_taken_repaired_or_told() {
    let fleet = local(&[], &[]).await;
    let odd = of(&KINDS, &Shape::ALL);
    ask(
        fleet.address(),
        fleet.engine("e0"),
        Leg::Local,
        Times::Once,
        odd,
    )
    .await;
    all_is_well(fleet, "e0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_useless_every_time_is_told() {
    let fleet = local(&[], &[]).await;
    let mut odd = of(&KINDS, &Shape::ALL);
    odd.retain(|odd| odd.outcome == Outcome::Useless);
    ask(
        fleet.address(),
        fleet.engine("e0"),
        Leg::Local,
        Times::Always,
        odd,
    )
    .await;
    all_is_well(fleet, "e0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stops_is_given_up() {
    let fleet = local(&[], &["--stall-s", "1"]).await;
    let odd = of(&[streams::stalls], &[Shape::ALL[2], Shape::ALL[3]]);
    ask(
        fleet.address(),
        fleet.engine("e0"),
        Leg::Local,
        Times::Once,
        odd,
    )
    .await;
    all_is_well(fleet, "e0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_come_is_given_up() {
    let fleet = local(&["--request-timeout-s", "3"], &[]).await;
    let mut odd = of(&[status::late], &Shape::ALL);
    odd.push(status::interim_without_end());
    ask(
        fleet.address(),
        fleet.engine("e0"),
        Leg::Local,
        Times::Always,
        odd,
    )
    .await;
    all_is_well(fleet, "e0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_an_answer_that_was_meant_for_another() {
    let fleet = local(&[], &[]).await;
    let poisons = of(&[poisons::cases], &Shape::ALL);
    let mut others = ordinary(3 * poisons.len()).into_iter();
    let mut odd = Vec::new();
    for poison in poisons {
        odd.push(poison);
        odd.extend(others.by_ref().take(3));
    }
    ask(
        fleet.address(),
        fleet.engine("e0"),
        Leg::Local,
        Times::Poisoning,
        odd,
    )
    .await;
    all_is_well(fleet, "e0").await;
}

/// Some answers of every kind to the decode leg of a split request: what decode does not fetch fills the prefill engine.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_leg_is_no_other_leg() {
    let fleet = split().await;
    let odd = of(&KINDS, &Shape::ALL).into_iter().step_by(29).collect();
    ask(
        fleet.address(),
        fleet.engine("d0"),
        Leg::Decode,
        Times::Backed,
        odd,
    )
    .await;
    let unsettled = fleet
        .router_page()
        .await
        .sum("baton_router_unsettled_total", &[]);
    assert_eq!(unsettled, 0, "the prefill engine was well all the time");
    all_is_well(fleet, "d0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_is_answered_oddly_costs_no_answer() {
    let fleet = split().await;
    let odd = of(&KINDS, &UNARY);
    ask(
        fleet.address(),
        fleet.engine("p0"),
        Leg::Prefill,
        Times::Once,
        odd,
    )
    .await;
    all_is_well(fleet, "p0").await;
}

/// The engine holds KV for each of these prefills. What Baton cannot make use of, it counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_says_something_else_costs_no_answer_and_is_counted() {
    let fleet = split().await;
    ask(
        fleet.address(),
        fleet.engine("p0"),
        Leg::Prefill,
        Times::Once,
        prefills::cases(),
    )
    .await;
    fleet.quiet().await;
    let held = i64::try_from(fleet.engine("p0").holds()).unwrap();
    let stranded = fleet.stranded("p0").await;
    assert!(
        held <= stranded,
        "{held} prompts are held, {stranded} are counted"
    );
    all_is_well(fleet, "p0").await;
}

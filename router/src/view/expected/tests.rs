//! What is expected, and for how long.

use super::*;

const TTL: Duration = Duration::from_secs(120);

fn blocks(numbers: impl IntoIterator<Item = u64>) -> Arc<[u64]> {
    numbers.into_iter().collect()
}

fn expected() -> Arc<Expected> {
    Expected::new(TTL)
}

/// A moment before this much time has passed.
fn just_before(time: Duration) -> Duration {
    time.checked_sub(Duration::from_millis(1)).unwrap()
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_on_its_way_is_expected_and_one_that_failed_is_not() {
    let expected = expected();
    let sent = expected.expect(&blocks([1, 2, 3])).unwrap();
    assert_eq!(expected.matching(&[1, 2, 9]), 2);
    assert_eq!(expected.matching(&[8, 9]), 0);
    pass(TTL * 10).await;
    assert_eq!(expected.matching(&[1, 2, 3]), 3, "it may wait for long");
    drop(sent);
    assert_eq!(expected.matching(&[1, 2, 3]), 0);
}

#[tokio::test(start_paused = true)]
async fn shared_prefixes_stay_as_long_as_one_request_counts() {
    let expected = expected();
    let one = expected.expect(&blocks([1, 2, 3])).unwrap();
    let other = expected.expect(&blocks([1, 2, 4, 5])).unwrap();
    drop(one);
    assert_eq!(expected.matching(&[1, 2, 3]), 2);
    assert_eq!(expected.matching(&[1, 2, 4, 5]), 4);
    drop(other);
    assert_eq!(expected.matching(&[1]), 0);
}

#[tokio::test(start_paused = true)]
async fn exact_events_get_a_moment_to_tell() {
    let expected = expected();
    let mut long = expected.expect(&blocks([1])).unwrap();
    long.computed(true);
    pass(just_before(GRACE)).await;
    assert_eq!(expected.matching(&[1]), 1);
    pass(Duration::from_millis(1)).await;
    assert_eq!(expected.matching(&[1]), 0, "though the request still runs");
    drop(long);

    let mut short = expected.expect(&blocks([2])).unwrap();
    short.computed(true);
    pass(Duration::from_secs(2)).await;
    drop(short);
    assert_eq!(expected.matching(&[2]), 1, "its events may be under way");
    pass(LINGER).await;
    assert_eq!(expected.matching(&[2]), 0);

    let mut late = expected.expect(&blocks([3])).unwrap();
    late.computed(true);
    pass(just_before(GRACE)).await;
    drop(late);
    pass(Duration::from_millis(1)).await;
    assert_eq!(
        expected.matching(&[3]),
        0,
        "the end of the request puts nothing off"
    );
}

#[tokio::test(start_paused = true)]
async fn where_events_do_not_tell_a_prompt_counts_for_a_while() {
    let expected = expected();
    let mut sent = expected.expect(&blocks([1, 2])).unwrap();
    sent.computed(false);
    drop(sent);
    pass(just_before(TTL)).await;
    assert_eq!(expected.matching(&[1, 2]), 2);
    let mut again = expected.expect(&blocks([1])).unwrap();
    again.computed(false);
    again.computed(true);
    drop(again);
    pass(Duration::from_millis(1)).await;
    assert_eq!(expected.matching(&[1, 2]), 1, "use renews");
    pass(TTL).await;
    assert_eq!(expected.matching(&[1, 2]), 0);
}

#[tokio::test(start_paused = true)]
async fn what_events_tell_now_or_an_engine_lost_is_forgotten() {
    let expected = expected();
    let running = expected.expect(&blocks([1])).unwrap();
    let mut approximate = expected.expect(&blocks([1, 2])).unwrap();
    approximate.computed(false);
    let mut exact = expected.expect(&blocks([1, 3])).unwrap();
    exact.computed(true);
    expected.forget_approximate();
    assert_eq!(expected.matching(&[1, 2]), 1);
    assert_eq!(expected.matching(&[1, 3]), 2);
    expected.forget();
    assert_eq!(
        expected.matching(&[1, 3]),
        1,
        "what is on its way is still to come"
    );
    drop((approximate, exact));
    assert_eq!(expected.matching(&[1, 3]), 1, "nothing is taken off twice");
    drop(running);
    expected.sweep();
    assert_eq!(expected.lock().counts.capacity(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_more_is_expected_than_fits() {
    let expected = expected();
    expected.bound(Some(10));
    let mut first = expected.expect(&blocks(0..4)).unwrap();
    first.computed(false);
    pass(Duration::from_secs(1)).await;
    let mut second = expected.expect(&blocks(10..14)).unwrap();
    second.computed(false);
    let third = expected.expect(&blocks(20..24)).unwrap();
    assert_eq!(expected.matching(&[0]), 0, "what ends first makes room");
    assert_eq!(expected.matching(&[10]), 1);
    assert!(expected.expect(&blocks(30..40)).is_none());
    assert_eq!(expected.matching(&[20]), 1, "what is on its way makes none");
    drop((first, second, third));
    assert!(expected.expect(&blocks([])).is_none());
    expected.bound(Some(u64::MAX));
    assert_eq!(expected.lock().most, MOST);
    expected.bound(None);
    assert_eq!(expected.lock().most, MOST_UNTOLD);
}

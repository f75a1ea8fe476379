//! What is missing, and what is of another start.

use super::*;

#[test]
fn who_begins_late_or_misses_something_is_uncertain() {
    let gap = recorded!("kv_events_overflow_gap.json");
    let mut late = Followed::sized();
    late.poll(&gap["body"]);
    assert_eq!(late.doubts(0), [Oddity::JoinedLate, Oddity::UnknownParent]);
    let mut followed = Followed::sized();
    followed.poll(&json!([
        created(0),
        stores(1, None, 1000..1032, 10_007_796_145_622_571_252),
        created(2),
        created(3),
        created(4)
    ]));
    let steps = followed.poll(&gap["body"]);
    let missed = Step::Missed {
        rank: 0,
        events: 14,
        how: Missed::Taken,
    };
    assert_eq!(
        steps[0], missed,
        "one event is less than was had at once before"
    );
    assert!(followed.doubts(0).contains(&Oddity::Gap));
    assert_eq!(followed.count(0, Oddity::Gap), 14);
}

#[test]
fn what_is_missing_has_a_reason() {
    let burst = |from: u64, count: u64| {
        Value::from((from..from + count).map(created).collect::<Vec<Value>>())
    };
    let how = |followed: &mut Followed, answer: &Value| match &followed.poll(answer)[0] {
        Step::Missed { how, .. } => *how,
        other => panic!("{other:?}"),
    };
    let known = Known {
        buffer: Some(4),
        ..Known::default()
    };
    let mut followed = Followed::new(Known {
        block_size: Some(SIZE),
        ..known
    });
    followed.poll(&burst(0, 2));
    assert_eq!(how(&mut followed, &burst(10, 4)), Missed::Dropped);
    assert_eq!(how(&mut followed, &burst(20, 3)), Missed::Taken);
    followed.tracker.lost();
    assert_eq!(how(&mut followed, &burst(30, 3)), Missed::Lost);
    assert_eq!(how(&mut followed, &burst(40, 3)), Missed::Taken);
    let mut unknown = Followed::sized();
    unknown.poll(&burst(0, 3));
    assert_eq!(how(&mut unknown, &burst(10, 3)), Missed::Dropped);
    assert_eq!(how(&mut unknown, &burst(20, 2)), Missed::Taken);
}

#[test]
fn numbers_that_begin_anew_are_another_start_and_nothing_of_them_is_read() {
    let mut followed = Followed::sized();
    let polls = recorded!("kv_events_v1_polls.json");
    for poll in &polls["polls"].as_array().unwrap()[..2] {
        followed.poll(&poll["body"]);
    }
    assert_eq!(
        followed.try_poll(&recorded!("kv_events_restart.json")["body"]),
        Err(AnotherStart)
    );
    let half = json!([created(2), created(1)]);
    assert_eq!(followed.try_poll(&half), Err(AnotherStart));
    assert_eq!(followed.held(0, Tier::Device), blocks(2));
    let mut next = Followed::sized();
    next.poll(&recorded!("kv_events_restart.json")["body"]);
    assert_eq!(next.doubts(0), []);
}

#[test]
fn what_cannot_be_read_empties_the_view() {
    let mut followed = Followed::sized();
    let polls = recorded!("kv_events_v1_polls.json");
    for poll in &polls["polls"].as_array().unwrap()[..2] {
        followed.poll(&poll["body"]);
    }
    let steps =
        followed.poll(&json!([{"event_id": 2, "data": {"type": "new"}, "window_size": 4096}]));
    assert!(steps.contains(&Step::Odd(Odd::UnknownEvent)));
    assert_eq!(
        followed.doubts(0),
        [],
        "what is of an unknown kind is passed over"
    );
    followed.poll(&json!([{"event_id": 3, "data": {"type": "removed"}, "window_size": 4096}]));
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (vec![], vec![Oddity::Unreadable])
    );
}

proptest! {
    /// Whatever numbers come, what is applied is in order, and every gap is named.
    #[test]
    fn numbers_of_any_kind_are_survived(numbers in proptest::collection::vec(0u64..40, 1..30)) {
        let mut tracker = Tracker::new(Known { block_size: Some(SIZE), ..Known::default() });
        let mut last = None;
        for number in numbers {
            let event = decode_one(&created(number));
            match tracker.read(vec![event]) {
                Err(AnotherStart) => prop_assert!(last.is_some_and(|last| number <= last)),
                Ok(steps) => {
                    let missing = last.map_or(0, |last| number - last - 1);
                    prop_assert_eq!(steps.len(), 1 + usize::from(missing > 0));
                    last = Some(number);
                }
            }
        }
    }
}

fn decode_one(event: &Value) -> Event {
    let answer = json!([event]).to_string();
    decode(answer.as_bytes()).unwrap().events.remove(0).0
}

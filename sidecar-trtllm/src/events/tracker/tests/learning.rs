//! How large blocks are, where nobody says so (1.2).

use super::*;

fn unsized_one() -> Followed {
    let mut followed = Followed::new(Known::default());
    followed.mirror = Mirror::new("m", None);
    followed
}

#[test]
fn a_block_with_another_behind_it_is_a_whole_one() {
    let mut followed = unsized_one();
    let polls = recorded!("kv_events_v1_polls.json");
    for poll in &polls["polls"].as_array().unwrap()[..4] {
        followed.poll(&poll["body"]);
    }
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (blocks(2), vec![])
    );
}

#[test]
fn until_one_is_seen_all_is_kept_back() {
    let mut followed = unsized_one();
    let short = name(1..5, None);
    let first = name(1000..1032, None);
    let steps = followed.poll(&json!([created(0), stores(1, None, 1..5, short)]));
    assert_eq!(steps, [Step::Odd(Odd::UnknownBlockSize)]);
    followed.poll(&json!([stores(2, None, 1000..1032, first)]));
    assert!(followed.mirror.rank(0).is_none());
    followed.poll(&json!([stores(
        3,
        Some(first),
        1032..1036,
        name(1032..1036, Some(first))
    )]));
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (blocks(1), vec![])
    );
}

#[test]
fn it_is_not_kept_back_for_ever() {
    let mut followed = unsized_one();
    let first = name(1000..1032, None);
    followed.poll(&json!([created(0), stores(1, None, 1000..1032, first)]));
    let more: Vec<Value> = (2..MOST_WAITING as u64).map(created).collect();
    followed.poll(&json!(more));
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (blocks(1), vec![])
    );
}

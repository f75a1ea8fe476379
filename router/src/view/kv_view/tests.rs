//! Views and scripted streams: what is believed, what is given up, and why.

mod property;

use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::SequenceHash;
use baton_proto::watch::ViewDigest;
use baton_proto::worker::TierBlocks;

use super::*;
use crate::view::tests::info;

pub(super) const EXACT: ViewState = ViewState {
    uncertain: false,
    broken: false,
};

pub(super) fn blocks(numbers: impl IntoIterator<Item = u64>) -> Blocks {
    Blocks(numbers.into_iter().map(SequenceHash).collect())
}

pub(super) fn chunk(
    seq: u64,
    rank: u32,
    tier: Tier,
    held: impl IntoIterator<Item = u64>,
    last: bool,
) -> WatchFrame {
    let (state, blocks) = (EXACT, blocks(held));
    WatchFrame::Snapshot {
        seq,
        rank,
        state,
        tier,
        blocks,
        last,
    }
}

fn described(seq: u64, state: ViewState) -> WatchFrame {
    let (tier, blocks) = (Device, blocks([1, 2]));
    WatchFrame::Snapshot {
        seq,
        rank: 0,
        state,
        tier,
        blocks,
        last: true,
    }
}

pub(super) fn event(seq: u64, rank: u32, event: KvEvent) -> WatchFrame {
    WatchFrame::Event { seq, rank, event }
}

pub(super) fn stored(tier: Tier, numbers: impl IntoIterator<Item = u64>) -> KvEvent {
    let blocks = blocks(numbers);
    KvEvent::Stored { blocks, tier }
}

pub(super) fn removed(tier: Tier, numbers: impl IntoIterator<Item = u64>) -> KvEvent {
    let blocks = blocks(numbers);
    KvEvent::Removed { blocks, tier }
}

/// A heartbeat that says that these ranks hold these blocks in these tiers.
pub(super) fn beat(seq: u64, held: &[(u32, Tier, &[u64])]) -> WatchFrame {
    let digests = held.iter().map(|(rank, tier, held)| {
        let digest: BlockSetDigest = held.iter().copied().map(SequenceHash).collect();
        ViewDigest {
            rank: *rank,
            tier: *tier,
            digest: digest.value(),
            blocks: held.len() as u64,
        }
    });
    WatchFrame::Heartbeat {
        seq,
        digests: digests.collect(),
    }
}

fn view() -> KvView {
    KvView::new(Arc::default())
}

/// A view that took these frames.
fn after(frames: impl IntoIterator<Item = WatchFrame>) -> KvView {
    let mut view = view();
    for frame in frames {
        view.take(frame).unwrap();
    }
    view
}

/// Of each rank: its number, whether it is certain, and which of these blocks the index finds there.
fn seen(view: &KvView, prompt: &[u64]) -> Vec<(u32, bool, u32)> {
    let mut found = baton_index::Found::new();
    view.index.find(prompt, &mut found);
    let ranks = view.known();
    let seen = ranks.iter().map(|rank| {
        let mut matches = found.matches().iter();
        let held = matches.find(|held| held.target == rank.target.target());
        let blocks = held.map_or(0, baton_index::Match::blocks);
        (rank.rank, rank.certain, blocks)
    });
    seen.collect()
}

/// What the index holds of a rank, by tier.
fn held(view: &KvView, rank: u32) -> [u64; TIERS.len()] {
    let target = view.ranks[&rank].target().target();
    TIERS.map(|(_, tier, _)| view.index.blocks(target, tier))
}

use Tier::{Device, Disk, External, Host};

#[test]
fn a_snapshot_and_the_journal_behind_it_are_the_view() {
    let view = after([
        chunk(7, 0, Device, [1, 2], false),
        chunk(7, 1, Device, [1], true),
        event(8, 0, stored(Device, [3])),
        event(9, 1, removed(Device, [1])),
        beat(9, &[(0, Device, &[3, 1, 2])]),
    ]);
    assert_eq!(seen(&view, &[1, 2, 3]), [(0, true, 3), (1, true, 0)]);
    assert_eq!(view.resume_after(), Some(9));
}

#[test]
fn all_tiers_are_kept_apart_and_found_together() {
    let view = after([
        chunk(0, 0, Device, [1], false),
        chunk(0, 0, Host, [1, 2], false),
        chunk(0, 0, Disk, [3], false),
        chunk(0, 0, External, [4], true),
        beat(
            0,
            &[
                (0, External, &[4]),
                (0, Device, &[1]),
                (0, Host, &[2, 1]),
                (0, Disk, &[3]),
            ],
        ),
        event(1, 0, removed(Device, [1])),
        event(2, 0, KvEvent::Cleared { tier: Some(Disk) }),
    ]);
    assert_eq!(held(&view, 0), [0, 2, 0, 1]);
    assert_eq!(view.blocks(), [0, 2, 0, 1]);
    assert_eq!(seen(&view, &[1, 2, 3, 4]), [(0, true, 2)]);
    let mut view = view;
    view.take(event(3, 0, KvEvent::Cleared { tier: None }))
        .unwrap();
    view.take(beat(3, &[])).unwrap();
    assert_eq!(held(&view, 0), [0; 4]);
}

#[test]
fn a_journal_without_a_snapshot_begins_where_it_begins() {
    let first = after([
        event(1, 0, stored(Device, [1])),
        beat(1, &[(0, Device, &[1])]),
    ]);
    assert_eq!(seen(&first, &[1]), [(0, true, 1)]);
    let later = after([beat(40, &[]), event(41, 3, KvEvent::Uncertain)]);
    assert_eq!(seen(&later, &[1]), [(3, false, 0)]);
}

#[test]
fn a_sidecar_without_events_tells_of_no_rank() {
    let view = after([beat(0, &[]), beat(0, &[])]);
    assert!(view.known().is_empty());
}

#[test]
fn ranks_say_whether_they_are_exact_and_whole() {
    let uncertain = ViewState {
        uncertain: true,
        ..EXACT
    };
    let broken = ViewState {
        broken: true,
        ..EXACT
    };
    let mut view = after([described(5, uncertain)]);
    assert_eq!(seen(&view, &[1, 2]), [(0, false, 2)]);
    assert!(view.take(event(6, 0, KvEvent::Certain)).unwrap());
    assert_eq!(seen(&view, &[1, 2]), [(0, true, 2)]);
    view.take(event(7, 0, KvEvent::Broken)).unwrap();
    assert_eq!(view.shown()["ranks"][0]["whole"], false);
    view.take(event(8, 0, KvEvent::Whole)).unwrap();
    assert_eq!(view.shown()["ranks"][0]["whole"], true);
    assert!(view.take(event(9, 0, KvEvent::Uncertain)).unwrap());
    assert_eq!(seen(&view, &[1, 2]), [(0, false, 2)]);
    assert!(!after([described(5, broken)]).ranks[&0].whole());
}

#[test]
fn half_a_snapshot_is_not_certain() {
    let mut view = after([chunk(7, 0, Device, [1, 2], false)]);
    assert_eq!(seen(&view, &[1, 2]), [(0, false, 2)]);
    assert_eq!(view.resume_after(), None);
    view.take(beat(6, &[])).unwrap();
    view.take(chunk(7, 0, Device, [3], true)).unwrap();
    assert_eq!(seen(&view, &[1, 2, 3]), [(0, true, 3)]);
}

/// What is taken after `frames`, and the reason for which the view is given up.
fn given_up(frames: impl IntoIterator<Item = WatchFrame>, next: WatchFrame) -> Resync {
    let mut view = after(frames);
    let reason = view.take(next).unwrap_err();
    view.give_up();
    assert_eq!(
        view.resume_after(),
        None,
        "a view that is wrong is not gone on with"
    );
    assert_eq!(view.blocks(), [0; 4]);
    assert!(view.known().iter().all(|rank| !rank.certain));
    assert!(view.ranks.keys().all(|rank| held(&view, *rank) == [0; 4]));
    assert_eq!(view.shown()["resyncs"], 1);
    view.take(chunk(90, 0, Device, [5], true)).unwrap();
    view.take(beat(90, &[(0, Device, &[5])])).unwrap();
    assert_eq!(seen(&view, &[5]), [(0, true, 1)], "and it comes back");
    reason
}

#[test]
fn entries_out_of_order_are_a_reason() {
    let begun = || [chunk(7, 0, Device, [1], true)];
    for seq in [7, 6, 9, u64::MAX] {
        assert_eq!(
            given_up(begun(), event(seq, 0, KvEvent::Certain)),
            Resync::Order,
            "{seq}"
        );
    }
    let old = beat(6, &[(0, Device, &[1])]);
    assert_eq!(given_up(begun(), old), Resync::Order);
    assert_eq!(
        given_up(begun(), chunk(6, 0, Device, [1], true)),
        Resync::Order
    );
    let full = [chunk(u64::MAX, 0, Device, [1], true)];
    assert_eq!(given_up(full, event(0, 0, KvEvent::Certain)), Resync::Order);
}

#[test]
fn a_snapshot_that_is_interrupted_is_a_reason() {
    let begun = || [chunk(7, 0, Device, [1], false)];
    assert_eq!(
        given_up(begun(), chunk(8, 0, Device, [2], true)),
        Resync::Snapshot
    );
    assert_eq!(
        given_up(begun(), event(8, 0, KvEvent::Certain)),
        Resync::Snapshot
    );
}

#[test]
fn an_event_that_nobody_knows_is_a_reason() {
    let begun = [chunk(7, 0, Device, [1], true)];
    assert_eq!(
        given_up(begun, event(8, 0, KvEvent::Unknown)),
        Resync::UnknownEvent
    );
}

#[test]
fn a_digest_that_differs_is_a_reason() {
    let begun = || {
        [
            chunk(7, 0, Device, [1, 2], false),
            chunk(7, 0, Host, [1], true),
        ]
    };
    after(begun())
        .take(beat(7, &[(0, Host, &[1]), (0, Device, &[2, 1])]))
        .unwrap();
    let wrong: [&[(u32, Tier, &[u64])]; 7] = [
        &[],
        &[(0, Device, &[1, 2])],
        &[(0, Device, &[1, 3]), (0, Host, &[1])],
        &[(0, Device, &[1]), (0, Host, &[1])],
        &[(0, Device, &[1, 2]), (0, Disk, &[1])],
        &[(0, Device, &[1, 2]), (0, Host, &[1]), (1, Host, &[1])],
        &[(0, Device, &[1, 2]), (0, Host, &[1]), (0, Host, &[1])],
    ];
    for digests in wrong {
        assert_eq!(
            given_up(begun(), beat(7, digests)),
            Resync::Digest,
            "{digests:?}"
        );
    }
    let more_than_all = event(8, 0, removed(Device, [1, 2, 3]));
    assert_eq!(given_up(begun(), more_than_all), Resync::Digest);
}

#[test]
fn a_heartbeat_ahead_of_what_came_is_a_reason() {
    let begun = [chunk(7, 0, Device, [1], true)];
    let ahead = beat(8, &[(0, Device, &[1])]);
    assert_eq!(given_up(begun, ahead), Resync::Ahead);
    let of_nothing = beat(8, &[(0, Device, &[1])]);
    assert_eq!(given_up([], of_nothing), Resync::Ahead);
}

/// Such sums agree, for the sidecar makes the same mistake; the index counts a block once.
#[test]
fn a_block_that_came_twice_is_a_reason() {
    let twice = [
        chunk(7, 0, Device, [1, 2], true),
        event(8, 0, stored(Device, [2])),
    ];
    let sums = beat(8, &[(0, Device, &[1, 2, 2])]);
    assert_eq!(given_up(twice, sums), Resync::Index);
    let never_there = [
        chunk(7, 0, Device, [1, 2], true),
        event(8, 0, removed(Device, [9])),
        event(9, 0, stored(Device, [9])),
    ];
    let sums = beat(9, &[(0, Device, &[1, 2])]);
    assert_eq!(given_up(never_there, sums), Resync::Index);
}

#[test]
fn more_than_an_engine_can_hold_is_a_reason() {
    let mut told = info(16);
    let (tier, most) = (Device, 500);
    told.capacity = vec![TierBlocks { tier, blocks: most }];
    let bounds = Bounds::of(&told);
    let most = bounds.tiers[0];
    assert_eq!(most, 2 * 500 + 1024);
    let mut view = view();
    view.bound(bounds);
    view.take(chunk(1, 0, Device, 0..most, false)).unwrap();
    view.take(chunk(1, 1, Device, 0..most, true)).unwrap();
    view.take(event(2, 0, removed(Device, [0]))).unwrap();
    view.take(event(3, 0, stored(Device, [most]))).unwrap();
    assert_eq!(
        view.take(event(4, 0, stored(Device, [most + 1]))),
        Err(Resync::Bounds)
    );
    assert_eq!(
        held(&view, 0)[0],
        most,
        "what is too much does not reach the index"
    );
    for rank in 2..8 {
        view.take(event(u64::from(rank) + 2, rank, KvEvent::Certain))
            .unwrap();
    }
    assert_eq!(
        view.take(event(10, 8, KvEvent::Certain)),
        Err(Resync::Bounds)
    );
    assert_eq!(view.ranks.len(), 8);
}

#[test]
fn a_whole_worker_is_bounded_whatever_it_tells() {
    let mut boastful = info(16);
    boastful.ranks = u32::MAX;
    let blocks = u64::MAX;
    boastful.capacity = TIERS.map(|(tier, ..)| TierBlocks { tier, blocks }).into();
    let bounds = Bounds::of(&boastful);
    let default = Bounds::default();
    assert_eq!(
        (bounds.ranks, bounds.worker),
        (default.ranks, default.worker)
    );
    assert!(bounds.tiers.iter().all(|most| *most <= default.worker));
    let mut view = view();
    view.bound(Bounds {
        worker: 5,
        ..bounds
    });
    view.take(chunk(1, 0, Device, 0..3, true)).unwrap();
    view.take(event(2, 1, stored(Host, 0..2))).unwrap();
    assert_eq!(
        view.take(event(3, 2, stored(Disk, [1]))),
        Err(Resync::Bounds)
    );
    view.give_up();
    assert_eq!(
        view.take(chunk(1, 0, Device, 0..6, true)),
        Err(Resync::Bounds)
    );
}

#[test]
fn a_lost_connection_leaves_what_was_true() {
    let mut view = after([
        chunk(7, 0, Device, [1, 2], true),
        event(8, 0, stored(Device, [3])),
    ]);
    view.lost();
    assert_eq!(seen(&view, &[1, 2, 3]), [(0, false, 3)]);
    assert_eq!(view.resume_after(), Some(8));
    assert!(
        view.take(event(9, 0, removed(Device, [3]))).unwrap(),
        "certain again"
    );
    assert_eq!(seen(&view, &[1, 2, 3]), [(0, true, 2)]);
    view.lost();
    assert!(view.take(beat(9, &[(0, Device, &[1, 2])])).unwrap());
    assert_eq!(seen(&view, &[1, 2, 3]), [(0, true, 2)]);
    assert_eq!(view.shown()["resyncs"], 0);
}

#[test]
fn what_does_not_go_on_where_it_ended_is_found_out() {
    let begun = || after([chunk(7, 0, Device, [1, 2], true)]);
    let mut view = begun();
    view.lost();
    assert_eq!(view.take(event(9, 0, KvEvent::Certain)), Err(Resync::Order));
    let mut view = begun();
    view.lost();
    view.take(chunk(30, 1, Device, [5], true)).unwrap();
    assert_eq!(
        seen(&view, &[5]),
        [(1, true, 1)],
        "a snapshot is all there is"
    );
    assert_eq!(view.resume_after(), Some(30));
}

#[test]
fn a_snapshot_that_a_lost_connection_cut_is_forgotten() {
    let mut view = after([
        chunk(7, 0, Device, [1, 2], false),
        chunk(7, 1, Device, [1], false),
    ]);
    view.lost();
    assert_eq!(view.resume_after(), None);
    assert_eq!(seen(&view, &[1]), [(0, false, 0), (1, false, 0)]);
    view.take(chunk(9, 1, Device, [1], false)).unwrap();
    view.take(chunk(9, 1, Device, [2], true)).unwrap();
    view.take(beat(9, &[(1, Device, &[1, 2])])).unwrap();
    assert_eq!(
        seen(&view, &[1, 2]),
        [(1, true, 2)],
        "the other rank is gone"
    );
}

#[test]
fn a_watcher_that_lagged_gets_a_snapshot_in_midstream() {
    let view = after([
        chunk(7, 0, Device, [1, 2], true),
        chunk(9, 0, Device, [1], false),
        chunk(9, 0, Host, [2], true),
        beat(9, &[(0, Device, &[1]), (0, Host, &[2])]),
    ]);
    assert_eq!(held(&view, 0), [1, 1, 0, 0]);
}

#[test]
fn a_tier_of_a_newer_peer_is_not_looked_at_but_may_hold_what_comes_before() {
    let mut view = after([
        chunk(7, 0, Device, [2], false),
        chunk(7, 0, Tier::Unknown, [1], true),
        event(8, 0, stored(Tier::Unknown, [3])),
        event(9, 0, removed(Tier::Unknown, [3, 4])),
    ]);
    view.take(beat(9, &[(0, Tier::Unknown, &[1]), (0, Device, &[2])]))
        .unwrap();
    assert_eq!(seen(&view, &[2]), [(0, true, 1)]);
    assert!(!view.ranks[&0].whole());
}

#[test]
fn places_in_the_index_are_given_back_when_nobody_speaks_of_them() {
    let index: Arc<Index> = Arc::default();
    let mut view = KvView::new(Arc::clone(&index));
    view.take(chunk(1, 0, Device, [1, 2], true)).unwrap();
    let planning = view.known();
    view.leave();
    assert!(view.known().is_empty());
    let taken = planning[0].target.target();
    assert_ne!(index.add_target(), taken, "somebody still plans with it");
    drop(planning);
    let mut found = baton_index::Found::new();
    index.find(&[1, 2], &mut found);
    assert!(found.matches().is_empty(), "{found:?}");
}

#[test]
fn operators_see_numbers_and_digests() {
    let view = after([chunk(7, 3, Device, [1, 2], true)]);
    let digest: BlockSetDigest = [1, 2].map(SequenceHash).into_iter().collect();
    let expected = json!({
        "seq": 7, "resyncs": 0,
        "ranks": [{
            "rank": 3, "certain": true, "whole": true,
            "blocks": {"device": 2, "host": 0, "disk": 0, "external": 0},
            "digest": {"device": format!("{:016x}", digest.value())},
        }],
    });
    assert_eq!(view.shown(), expected);
}

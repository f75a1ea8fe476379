//! Every reason for which a view is given up.

use baton_proto::worker::TierBlocks;

use super::*;
use crate::view::tests::info;

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

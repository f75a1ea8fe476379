//! Views and scripted streams: what is believed, what is given up, and why.

mod property;
mod resyncs;

use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::SequenceHash;
use baton_proto::watch::ViewDigest;

use super::*;

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
        event(2, 0, KvEvent::Broken),
        event(3, 0, KvEvent::Cleared { tier: Some(Disk) }),
    ]);
    assert_eq!(held(&view, 0), [0, 2, 0, 1]);
    assert_eq!(view.blocks(), [0, 2, 0, 1]);
    assert_eq!(seen(&view, &[1, 2, 3, 4]), [(0, true, 2)]);
    let mut view = view;
    view.take(event(4, 0, KvEvent::Cleared { tier: None }))
        .unwrap();
    view.take(beat(4, &[])).unwrap();
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

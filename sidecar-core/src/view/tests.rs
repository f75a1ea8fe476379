//! The view with its watchers, by what they can read.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::digest::BlockSetDigest;
use baton_proto::frame::FrameReader;
use baton_proto::worker::{EngineKind, Role};
use proptest::prelude::*;

use super::*;
use crate::mirror::event::{Content, EngineHash, Removed, Stored, Told};

const BLOCK: u32 = 2;

fn info() -> WorkerInfo {
    WorkerInfo {
        models: vec!["tiny".to_owned()],
        block_size: Some(BLOCK),
        ..WorkerInfo::unknown(EngineKind::Vllm, Role::Any)
    }
}

fn view() -> Arc<KvView> {
    KvView::new(ViewMetrics::default(), None)
}

/// Tells of one block behind another, named by their first tokens; 0 is no block.
fn store(feed: &Feed, rank: u32, seq: u64, block: u32, parent: u32) {
    let tokens = [block, 7];
    let told = Told {
        parent: (parent != 0).then_some(EngineHash(parent.into())),
        tokens: &tokens,
        block_size: BLOCK,
        lora: "",
        salt: "",
        items: &[],
        understood: 1,
    };
    let event = BlockEvent::Stored(Stored {
        hashes: &[EngineHash(block.into())],
        tier: Tier::Device,
        group: 0,
        whole_prefix: true,
        content: Content::Told(told),
    });
    feed.apply(rank, Stamp { seq, time: 1.0 }, [event]);
}

fn remove(feed: &Feed, rank: u32, seq: u64, block: u32) {
    let event = BlockEvent::Removed(Removed {
        hashes: &[EngineHash(block.into())],
        tier: Tier::Device,
        group: 0,
    });
    feed.apply(rank, Stamp { seq, time: 1.0 }, [event]);
}

/// What a router makes of what it is told.
#[derive(Debug, Default, PartialEq)]
struct Watcher {
    seq: Option<u64>,
    ranks: BTreeMap<u32, (ViewState, BTreeSet<SequenceHash>)>,
}

impl Watcher {
    fn read(&mut self, bytes: &[Bytes]) {
        let mut reader = FrameReader::default();
        for part in bytes {
            reader.push(part);
        }
        while let Some(frame) = reader.next::<WatchFrame>().unwrap() {
            self.take(frame);
        }
    }

    fn take(&mut self, frame: WatchFrame) {
        match frame {
            WatchFrame::Snapshot {
                seq,
                rank,
                state,
                blocks,
                last,
                ..
            } => {
                let held = self.ranks.entry(rank).or_default();
                held.0 = state;
                held.1.extend(blocks.0);
                self.seq = last.then_some(seq);
            }
            WatchFrame::Event { seq, rank, event } => {
                assert_eq!(seq, self.seq.unwrap() + 1);
                self.seq = Some(seq);
                let (state, held) = self.ranks.entry(rank).or_default();
                match event {
                    KvEvent::Stored { blocks, .. } => held.extend(blocks.0),
                    KvEvent::Removed { blocks, .. } => {
                        blocks
                            .0
                            .iter()
                            .for_each(|block| assert!(held.remove(block)));
                    }
                    KvEvent::Cleared { .. } => held.clear(),
                    KvEvent::Uncertain => state.uncertain = true,
                    KvEvent::Certain => state.uncertain = false,
                    KvEvent::Broken => state.broken = true,
                    KvEvent::Whole => state.broken = false,
                    KvEvent::Unknown => panic!("no such event"),
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn digests(&self) -> Vec<(u32, u64)> {
        let held = self.ranks.iter().filter(|(_, held)| !held.1.is_empty());
        let digest =
            |held: &BTreeSet<SequenceHash>| held.iter().copied().collect::<BlockSetDigest>();
        held.map(|(rank, held)| (*rank, digest(&held.1).value()))
            .collect()
    }

    /// Goes on from where it stands, or anew.
    fn catch_up(&mut self, view: &KvView, most: usize) {
        let more = self.seq.and_then(|seq| view.after(seq, most));
        let Some(mut more) = more else {
            *self = Self::default();
            let snapshot: Vec<Bytes> = view.snapshot().collect();
            return self.read(&snapshot);
        };
        loop {
            self.read(&more.entries);
            if let Some(digests) = more.digests {
                let digests: Vec<_> = digests
                    .iter()
                    .map(|told| (told.rank, told.digest))
                    .collect();
                assert_eq!(self.digests(), digests);
                return;
            }
            more = view.after(more.last, most).unwrap();
        }
    }
}

#[test]
fn before_an_engine_is_seen_there_is_nothing_to_tell() {
    let view = view();
    assert_eq!(view.snapshot().count(), 0);
    assert!(!view.wants_reports());
    let more = view.after(0, 1).unwrap();
    assert_eq!((more.last, more.digests), (0, Some(vec![])));
}

#[test]
fn a_new_life_holds_nothing_and_the_old_one_is_not_heard_any_more() {
    let view = view();
    let old = view.begin(&info());
    old.watch(0);
    old.silent(0);
    store(&old, 0, 0, 1, 0);
    let mut watcher = Watcher::default();
    watcher.catch_up(&view, 1000);
    assert_eq!(watcher.ranks[&0].1.len(), 1);
    let new = view.begin(&info());
    new.watch(0);
    store(&old, 0, 1, 2, 1);
    watcher.catch_up(&view, 1000);
    let uncertain = ViewState {
        uncertain: true,
        broken: false,
    };
    assert_eq!(watcher.ranks[&0], (uncertain, BTreeSet::new()));
    store(&new, 0, 0, 3, 0);
    watcher.catch_up(&view, 1000);
    assert_eq!(watcher.ranks[&0].0, ViewState::default());
    assert_eq!(watcher.ranks[&0].1.len(), 1);
}

#[test]
fn reports_are_asked_for_while_something_was_lost_and_expected_for_a_while_after() {
    let view = view();
    let feed = view.begin(&info());
    feed.watch(0);
    assert!(
        !view.wants_reports(),
        "an engine that was not heard yet may hold nothing"
    );
    store(&feed, 0, 5, 1, 0);
    assert!(view.wants_reports());
    drop(view.ask_for_reports());
    let clear = [BlockEvent::Cleared { tier: None }];
    feed.apply(0, Stamp { seq: 6, time: 1.0 }, clear);
    let doubts = view.ranks()[0].doubts;
    assert!(!doubts.is_empty(), "reports may be under way");
    assert!(!view.wants_reports(), "then no others are asked for");
}

#[test]
fn what_an_unheard_engine_holds_is_taken_back_until_it_is_heard_again() {
    let view = view();
    let feed = view.begin(&info());
    feed.watch(0);
    store(&feed, 0, 0, 1, 0);
    let mut watcher = Watcher::default();
    watcher.catch_up(&view, 1000);
    assert_eq!(watcher.ranks[&0].0, ViewState::default());
    feed.deafen(0);
    feed.deafen(0);
    watcher.catch_up(&view, 1000);
    let uncertain = ViewState {
        uncertain: true,
        broken: false,
    };
    assert_eq!(watcher.ranks[&0], (uncertain, BTreeSet::new()));
    // What was missed is told again before all of it is.
    store(&feed, 0, 1, 2, 1);
    remove(&feed, 0, 2, 2);
    store(&feed, 0, 3, 3, 1);
    watcher.catch_up(&view, 1000);
    assert_eq!(watcher.ranks[&0], (uncertain, BTreeSet::new()));
    assert!(!view.wants_reports(), "nothing is lost yet");
    feed.hear(0);
    feed.hear(0);
    watcher.catch_up(&view, 1000);
    let (state, held) = &watcher.ranks[&0];
    assert_eq!((*state, held.len()), (ViewState::default(), 2));
}

proptest! {
    #[test]
    fn a_watcher_that_comes_and_goes_knows_what_a_new_one_does(
        steps in prop::collection::vec((0u32..2, 1u32..9, 0u32..9, 0u8..27), 1..150),
        most in 1usize..400,
    ) {
        let view = view();
        let mut feed = view.begin(&info());
        let mut watcher = Watcher::default();
        let mut seq = [0; 2];
        for (rank, block, parent, what) in steps {
            let next = seq[rank as usize];
            seq[rank as usize] += 1;
            match what {
                0 => {
                    feed = view.begin(&info());
                    seq = [0; 2];
                    feed.watch(rank);
                }
                1 => feed.lose(rank),
                2 => {
                    feed.restart(rank);
                    seq[rank as usize] = 0;
                }
                3..6 => watcher.catch_up(&view, most),
                24 => feed.deafen(rank),
                25..27 => feed.hear(rank),
                6..15 => remove(&feed, rank, next, block),
                _ => store(&feed, rank, next, block, parent),
            }
        }
        watcher.catch_up(&view, most);
        let mut new = Watcher::default();
        new.catch_up(&view, most);
        let ranks: BTreeSet<u32> = new.ranks.keys().copied().collect();
        watcher.ranks.retain(|rank, held| {
            // A rank that a life does not have is told as empty and uncertain.
            let gone = !ranks.contains(rank);
            assert!(!gone || (held.1.is_empty() && held.0.uncertain && !held.0.broken));
            !gone
        });
        if !new.ranks.is_empty() {
            prop_assert_eq!(watcher, new);
        }
    }
}

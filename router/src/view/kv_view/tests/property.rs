//! Any story, cut into snapshot and journal anywhere, with connections lost anywhere, ends in the view that all of its
//! events make.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const RANKS: u32 = 3;

/// Blocks that stories are about.
const BLOCKS: u64 = 12;

/// What an oracle knows of a rank: nothing but sets.
#[derive(Debug, Clone, Default, PartialEq)]
struct Truth {
    tiers: [BTreeSet<u64>; TIERS.len()],
    state: ViewState,
}

/// All ranks that were heard of, after some of the story.
type World = BTreeMap<u32, Truth>;

/// What an engine would do next, if it can.
#[derive(Debug, Clone)]
enum Wish {
    Store(usize, BTreeSet<u64>),
    Remove(usize, BTreeSet<u64>),
    Clear(Option<usize>),
    Doubt(bool),
    Break(bool),
}

fn wish() -> impl Strategy<Value = Wish> {
    let blocks = || prop::collection::btree_set(0..BLOCKS, 0..6);
    let tier = || 0..TIERS.len();
    prop_oneof![
        8 => (tier(), blocks()).prop_map(|(tier, blocks)| Wish::Store(tier, blocks)),
        6 => (tier(), blocks()).prop_map(|(tier, blocks)| Wish::Remove(tier, blocks)),
        1 => prop::option::of(tier()).prop_map(Wish::Clear),
        1 => any::<bool>().prop_map(Wish::Doubt),
        1 => any::<bool>().prop_map(Wish::Break),
    ]
}

/// A change as a mirror tells it: only blocks that were not there are stored, and only such that were are removed.
fn apply(truth: &mut Truth, wish: &Wish) -> KvEvent {
    let tier = |at: usize| TIERS[at].0;
    let those = |blocks: &BTreeSet<u64>, mut changed: Box<dyn FnMut(&u64) -> bool + '_>| {
        let those = blocks.iter().filter(|block| changed(block));
        those.copied().collect::<Vec<u64>>()
    };
    match wish {
        Wish::Store(at, blocks) => {
            let held = &mut truth.tiers[*at];
            let new = those(blocks, Box::new(|block| held.insert(*block)));
            stored(tier(*at), new)
        }
        Wish::Remove(at, blocks) => {
            let held = &mut truth.tiers[*at];
            let gone = those(blocks, Box::new(|block| held.remove(block)));
            removed(tier(*at), gone)
        }
        Wish::Clear(at) => {
            let tiers = truth.tiers.iter_mut().enumerate();
            tiers
                .filter(|(place, _)| at.is_none_or(|at| at == *place))
                .for_each(|(_, held)| held.clear());
            KvEvent::Cleared { tier: at.map(tier) }
        }
        Wish::Doubt(uncertain) => {
            truth.state.uncertain = *uncertain;
            if *uncertain {
                KvEvent::Uncertain
            } else {
                KvEvent::Certain
            }
        }
        Wish::Break(broken) => {
            truth.state.broken = *broken;
            if *broken {
                KvEvent::Broken
            } else {
                KvEvent::Whole
            }
        }
    }
}

/// One of the connections over which a watcher hears the story.
#[derive(Debug, Clone)]
struct Connection {
    /// How many entries come over it before it is lost.
    entries: usize,
    /// It begins with a snapshot though the journal would do.
    snapshot: bool,
    /// After how many parts the snapshot breaks off.
    cut: Option<usize>,
    /// Blocks of a part of the snapshot.
    part: usize,
}

fn connection() -> impl Strategy<Value = Connection> {
    let cut = prop::option::weighted(0.3, 0..4usize);
    let all = (0..12usize, any::<bool>(), cut, 1..5usize);
    all.prop_map(|(entries, snapshot, cut, part)| Connection {
        entries,
        snapshot,
        cut,
        part,
    })
}

fn snapshot(world: &World, seq: u64, part: usize) -> Vec<WatchFrame> {
    let mut parts = Vec::new();
    for (rank, truth) in world {
        let mut say = |tier, held: &[u64]| {
            parts.push(WatchFrame::Snapshot {
                seq,
                rank: *rank,
                state: truth.state,
                tier,
                blocks: blocks(held.iter().copied()),
                last: false,
            });
        };
        say(Device, &[]);
        for ((tier, ..), held) in TIERS.iter().zip(&truth.tiers) {
            let held: Vec<u64> = held.iter().copied().collect();
            held.chunks(part).for_each(|some| say(*tier, some));
        }
    }
    if let Some(WatchFrame::Snapshot { last, .. }) = parts.last_mut() {
        *last = true;
    }
    parts
}

fn heartbeat(world: &World, seq: u64) -> WatchFrame {
    let mut held = Vec::new();
    for (rank, truth) in world {
        for ((tier, ..), blocks) in TIERS.iter().zip(&truth.tiers) {
            if !blocks.is_empty() {
                let blocks: Vec<u64> = blocks.iter().copied().collect();
                held.push((*rank, *tier, blocks));
            }
        }
    }
    let held = held
        .iter()
        .map(|(rank, tier, blocks)| (*rank, *tier, &blocks[..]));
    beat(seq, &held.collect::<Vec<_>>())
}

fn assert_equal(view: &KvView, world: &World) -> Result<(), TestCaseError> {
    let heard: Vec<u32> = view.ranks.keys().copied().collect();
    prop_assert_eq!(heard, world.keys().copied().collect::<Vec<_>>());
    for (known, (rank, truth)) in view.known().iter().zip(world) {
        prop_assert_eq!(known.certain, !truth.state.uncertain);
        prop_assert_eq!(view.ranks[rank].whole(), !truth.state.broken);
        let sums = view.ranks[rank].sums();
        let sizes = held(view, *rank);
        for ((held, sums), size) in truth.tiers.iter().zip(sums).zip(sizes) {
            let digest: BlockSetDigest = held.iter().copied().map(SequenceHash).collect();
            prop_assert_eq!((size, sums.digest), (held.len() as u64, digest));
        }
        // One block at a time, for the index finds prefixes.
        for block in 0..BLOCKS {
            let there = truth.tiers.iter().any(|held| held.contains(&block));
            let target = known.target.target();
            let mut found = baton_index::Found::new();
            view.index.find(&[block], &mut found);
            let finds = found.matches().iter().any(|held| held.target == target);
            prop_assert_eq!(finds, there, "rank {} block {}", rank, block);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_story_cut_anywhere_is_the_view_of_all_its_events(
        story in prop::collection::vec((0..RANKS, wish()), 1..40),
        connections in prop::collection::vec(connection(), 0..8),
    ) {
        let mut worlds = vec![World::new()];
        let mut journal = Vec::new();
        for (seq, (rank, wish)) in (1..).zip(&story) {
            let mut world = worlds.last().unwrap().clone();
            journal.push(event(seq, *rank, apply(world.entry(*rank).or_default(), wish)));
            worlds.push(world);
        }
        let mut view = view();
        // How far the sidecar is.
        let mut now = 0;
        let last = Connection { entries: story.len(), snapshot: false, cut: None, part: 2 };
        for connection in connections.iter().chain([&last]) {
            view.lost();
            let known = view.resume_after().filter(|_| !connection.snapshot);
            let at = match known {
                Some(seq) => usize::try_from(seq).unwrap(),
                None => {
                    let parts = snapshot(&worlds[now], now as u64, connection.part);
                    let sent = connection.cut.unwrap_or(parts.len()).min(parts.len());
                    let all = sent == parts.len();
                    for part in parts.into_iter().take(sent) {
                        view.take(part).unwrap();
                    }
                    if !all {
                        continue;
                    }
                    now
                }
            };
            now = (now + connection.entries).min(story.len());
            for entry in &journal[at..now] {
                view.take(entry.clone()).unwrap();
            }
            view.take(heartbeat(&worlds[now], now as u64)).unwrap();
            assert_equal(&view, &worlds[now])?;
        }
        prop_assert_eq!(view.resume_after(), Some(story.len() as u64));
        prop_assert_eq!(&view.shown()["resyncs"], 0);
    }
}

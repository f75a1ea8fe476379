//! Any story told to the mirror and to a naive one.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::digest::BlockSetDigest;
use baton_proto::event::{KvEvent, ViewState};
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;
use proptest::prelude::*;

use super::naive::Naive;
use super::{BASE, BLOCK, Bench, bench, stored, told};
use crate::mirror::TIERS;
use crate::mirror::event::{BlockEvent, Content, EngineHash, Removed, Stored, Told};

/// Blocks of a sequence, from one of its blocks to its end.
#[derive(Debug, Clone)]
struct Store {
    path: Vec<bool>,
    from: usize,
    variant: u64,
    tier: Tier,
    /// From which of these blocks on they are not understood.
    strange: Option<usize>,
}

/// What an engine may say in the property test: blocks of a binary tree of sequences, each under one of two names.
#[derive(Debug, Clone)]
enum Said {
    Store(Store),
    Named {
        path: Vec<bool>,
        variant: u64,
        tier: Tier,
    },
    Remove {
        path: Vec<bool>,
        variant: u64,
        tier: Tier,
    },
    Clear(Option<Tier>),
    Unreadable,
    Lost,
}

fn said() -> impl Strategy<Value = Said> {
    let path = || prop::collection::vec(any::<bool>(), 1..5);
    let tier = || prop::sample::select(vec![Tier::Device, Tier::Device, Tier::Device, Tier::Host]);
    let store = (
        path(),
        0..4usize,
        0..2u64,
        tier(),
        prop::option::weighted(0.1, 0..4usize),
    )
        .prop_map(|(path, from, variant, tier, strange)| {
            Said::Store(Store {
                from: from % path.len(),
                path,
                variant,
                tier,
                strange,
            })
        });
    prop_oneof![
        40 => store,
        8 => (path(), 0..2u64, tier()).prop_map(|(path, variant, tier)| Said::Named { path, variant, tier }),
        40 => (path(), 0..2u64, tier()).prop_map(|(path, variant, tier)| Said::Remove { path, variant, tier }),
        1 => prop::option::of(tier()).prop_map(Said::Clear),
        1 => Just(Said::Unreadable),
        1 => Just(Said::Lost),
    ]
}

fn name(path: &[bool], variant: u64) -> EngineHash {
    let bits = path.iter().fold(1, |bits, bit| bits << 1 | u64::from(*bit));
    EngineHash(bits << 1 | variant)
}

fn tokens(path: &[bool]) -> Vec<u32> {
    path.iter().flat_map(|bit| [u32::from(*bit), 9]).collect()
}

fn tell_store(bench: &mut Bench, naive: &mut Naive, store: &Store) -> Vec<KvEvent> {
    let (path, from) = (&store.path, store.from);
    let names: Vec<EngineHash> = (from..path.len())
        .map(|at| name(&path[..=at], store.variant))
        .collect();
    let parent = (from > 0).then(|| name(&path[..from], store.variant));
    let understood = store.strange.unwrap_or(usize::MAX);
    let text = |at: usize| (at < understood).then(|| tokens(&path[from + at..=from + at]));
    let blocks: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (*name, text(at)))
        .collect();
    naive.store(parent, &blocks, store.tier);
    let tokens = tokens(&path[from..]);
    let told = Told {
        understood,
        ..told(parent, &tokens)
    };
    bench.say(BlockEvent::Stored(Stored {
        tier: store.tier,
        ..stored(&names, told)
    }))
}

/// Says it to both.
fn tell(bench: &mut Bench, naive: &mut Naive, said: &Said) -> Vec<KvEvent> {
    match said {
        Said::Store(store) => tell_store(bench, naive, store),
        Said::Named {
            path,
            variant,
            tier,
        } => {
            let names = [name(path, *variant)];
            naive.store_named(&names, *tier);
            let stored = stored(&names, told(None, &[]));
            bench.say(BlockEvent::Stored(Stored {
                tier: *tier,
                content: Content::Named,
                ..stored
            }))
        }
        Said::Remove {
            path,
            variant,
            tier,
        } => {
            let hashes = [name(path, *variant)];
            naive.remove(hashes[0], *tier);
            bench.say(BlockEvent::Removed(Removed {
                hashes: &hashes,
                tier: *tier,
                group: 0,
            }))
        }
        Said::Clear(tier) => {
            naive.clear(*tier);
            bench.say(BlockEvent::Cleared { tier: *tier })
        }
        Said::Unreadable => {
            naive.lose();
            bench.say(BlockEvent::Unreadable)
        }
        Said::Lost => {
            naive.lose();
            bench.seq += 1;
            // The message after the gap changes nothing itself.
            bench.say(BlockEvent::Cleared {
                tier: Some(Tier::External),
            })
        }
    }
}

/// What a watcher makes of the changes. Each must be a real one.
fn watch(
    view: &mut BTreeMap<Tier, BTreeSet<SequenceHash>>,
    said: &mut ViewState,
    changes: &[KvEvent],
) {
    for change in changes {
        match change {
            KvEvent::Stored { blocks, tier } => {
                for block in &blocks.0 {
                    assert!(
                        view.entry(*tier).or_default().insert(*block),
                        "stored twice"
                    );
                }
            }
            KvEvent::Removed { blocks, tier } => {
                for block in &blocks.0 {
                    assert!(
                        view.entry(*tier).or_default().remove(block),
                        "removed twice"
                    );
                }
            }
            KvEvent::Cleared { tier } => view.retain(|of, _| tier.is_some_and(|tier| *of != tier)),
            KvEvent::Uncertain => assert!(!std::mem::replace(&mut said.uncertain, true)),
            KvEvent::Certain => assert!(std::mem::replace(&mut said.uncertain, false)),
            KvEvent::Broken => assert!(!std::mem::replace(&mut said.broken, true)),
            KvEvent::Whole => assert!(std::mem::replace(&mut said.broken, false)),
            KvEvent::Unknown => panic!("no such change"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn equals_a_naive_mirror(story in prop::collection::vec(said(), 1..120)) {
        let (mut bench, mut naive) = (bench(), Naive::default());
        let (mut watched, mut state) = (BTreeMap::new(), ViewState::default());
        for said in &story {
            let changes = tell(&mut bench, &mut naive, said);
            watch(&mut watched, &mut state, &changes);
            prop_assert_eq!(state.uncertain, naive.uncertain);
            prop_assert_eq!(bench.mirror.rank(0).unwrap().state(), state);
            // A view may be called broken that is not: a block that was told without its parent is not looked after.
            prop_assert!(state.broken || !naive.is_broken(BLOCK as usize));
            for tier in TIERS {
                let held = bench.blocks(tier);
                prop_assert_eq!(&held, &naive.blocks(&BASE, BLOCK as usize, tier));
                prop_assert_eq!(&held, watched.entry(tier).or_default());
                let digest: BlockSetDigest = held.iter().copied().collect();
                let told = bench.mirror.digests().into_iter().find(|digest| digest.tier == tier);
                let told = told.map_or((0, 0), |told| (told.blocks, told.digest));
                prop_assert_eq!(told, (held.len() as u64, digest.value()));
            }
        }
    }
}

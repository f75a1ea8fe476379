//! One test for each row of what an engine may say of its blocks. Others are in the modules.

use std::collections::BTreeSet;

use baton_proto::event::{Blocks, KvEvent};
use baton_proto::hash::{MultimodalItem, Namespace, SequenceHash, sequence_hashes};
use baton_proto::worker::Tier;

use super::Mirror;
use super::event::{BlockEvent, BlockItem, Content, EngineHash, Removed, Stored, Told};
use super::oddity::Oddity;
use super::order::Stamp;

mod naive;
mod order;
mod property;

const BLOCK: u32 = 2;
const BASE: Namespace<'_> = Namespace {
    model: "tiny",
    lora: "",
    salt: "",
};

/// A mirror of one rank, with a number for each message.
struct Bench {
    mirror: Mirror,
    seq: u64,
}

fn bench() -> Bench {
    Bench {
        mirror: Mirror::new("tiny", Some(BLOCK)),
        seq: 0,
    }
}

impl Bench {
    fn say(&mut self, event: BlockEvent<'_>) -> Vec<KvEvent> {
        let applied = self.mirror.apply(0, stamp(self.seq), [event]);
        self.seq += 1;
        applied.changes
    }

    fn store(&mut self, parent: Option<u64>, hashes: &[u64], tokens: &[u32]) -> Vec<KvEvent> {
        let hashes = names(hashes);
        self.say(BlockEvent::Stored(stored(
            &hashes,
            told(parent.map(EngineHash), tokens),
        )))
    }

    fn remove(&mut self, hash: u64) -> Vec<KvEvent> {
        self.say(removed(&[EngineHash(hash)]))
    }

    fn count(&self, reason: Oddity) -> u64 {
        self.mirror.rank(0).unwrap().tally().count(reason)
    }

    fn doubts(&self) -> Vec<Oddity> {
        self.mirror.rank(0).unwrap().doubts().iter().collect()
    }

    fn blocks(&self, tier: Tier) -> BTreeSet<SequenceHash> {
        self.mirror.rank(0).unwrap().blocks(tier).collect()
    }
}

fn stamp(seq: u64) -> Stamp {
    Stamp { seq, time: 1.0 }
}

fn names(hashes: &[u64]) -> Vec<EngineHash> {
    hashes.iter().copied().map(EngineHash).collect()
}

fn told(parent: Option<EngineHash>, tokens: &[u32]) -> Told<'_> {
    Told {
        parent,
        tokens,
        block_size: BLOCK,
        lora: "",
        salt: "",
        items: &[],
        understood: usize::MAX,
    }
}

fn stored<'a>(hashes: &'a [EngineHash], told: Told<'a>) -> Stored<'a> {
    Stored {
        hashes,
        tier: Tier::Device,
        group: 0,
        whole_prefix: true,
        content: Content::Told(told),
    }
}

fn removed(hashes: &[EngineHash]) -> BlockEvent<'_> {
    BlockEvent::Removed(Removed {
        hashes,
        tier: Tier::Device,
        group: 0,
    })
}

fn chain(namespace: Namespace<'_>, tokens: &[u32]) -> Vec<SequenceHash> {
    sequence_hashes(namespace.root().unwrap(), tokens, BLOCK as usize)
}

fn stores(blocks: &[SequenceHash]) -> KvEvent {
    KvEvent::Stored {
        blocks: Blocks(blocks.to_vec()),
        tier: Tier::Device,
    }
}

fn removes(blocks: &[SequenceHash]) -> KvEvent {
    KvEvent::Removed {
        blocks: Blocks(blocks.to_vec()),
        tier: Tier::Device,
    }
}

#[test]
fn blocks_are_named_by_their_tokens_and_parents() {
    let mut bench = bench();
    let expected = chain(BASE, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(
        bench.store(None, &[10, 11], &[1, 2, 3, 4]),
        [stores(&expected[..2])]
    );
    assert_eq!(
        bench.store(Some(11), &[12], &[5, 6]),
        [stores(&expected[2..])]
    );
    assert_eq!(bench.remove(12), [removes(&expected[2..])]);
    assert_eq!(
        bench.blocks(Tier::Device),
        expected[..2].iter().copied().collect()
    );
    assert_eq!(
        bench.mirror.rank(0).unwrap().sequence_of(EngineHash(11)),
        Some(expected[1])
    );
    assert_eq!(bench.doubts(), []);
}

#[test]
fn evictions_one_by_one_become_one_change() {
    let mut bench = bench();
    let expected = chain(BASE, &[1, 2, 3, 4]);
    bench.store(None, &[10, 11], &[1, 2, 3, 4]);
    let hashes = names(&[11, 10]);
    let events = hashes.chunks(1).map(removed);
    let applied = bench.mirror.apply(0, stamp(1), events);
    assert_eq!(applied.changes, [removes(&[expected[1], expected[0]])]);
}

#[test]
fn a_block_leaves_with_its_last_copy_under_its_last_name() {
    let mut bench = bench();
    let expected = chain(BASE, &[1, 2]);
    assert_eq!(bench.store(None, &[10], &[1, 2]), [stores(&expected)]);
    assert_eq!(bench.store(None, &[10], &[1, 2]), [], "a second copy");
    assert_eq!(bench.store(None, &[20], &[1, 2]), [], "a second name");
    assert_eq!(bench.count(Oddity::SecondCopy), 1);
    assert_eq!(bench.remove(10), []);
    assert_eq!(bench.remove(20), []);
    assert_eq!(
        bench.store(Some(10), &[11], &[3, 4]),
        [stores(&chain(BASE, &[1, 2, 3, 4])[1..])]
    );
    assert_eq!(
        bench.remove(10),
        [KvEvent::Broken, removes(&expected)],
        "the block behind it is still there"
    );
    assert_eq!(bench.remove(10), []);
    assert_eq!(bench.count(Oddity::UnknownRemoval), 1);
    let last = removes(&chain(BASE, &[1, 2, 3, 4])[1..]);
    assert_eq!(bench.remove(11), [last, KvEvent::Whole]);
}

#[test]
fn a_block_that_is_reported_again_while_uncertain_is_no_second_copy() {
    let mut bench = bench();
    bench.seq = 5;
    bench.store(None, &[10], &[1, 2]);
    bench.store(None, &[10], &[1, 2]);
    assert_eq!(bench.doubts(), [Oddity::JoinedLate]);
    assert_eq!(bench.remove(10), [removes(&chain(BASE, &[1, 2]))]);
}

#[test]
fn a_block_without_its_parent_is_not_guessed() {
    let mut bench = bench();
    assert_eq!(
        bench.store(Some(99), &[10, 11], &[1, 2, 3, 4]),
        [KvEvent::Uncertain]
    );
    assert_eq!(bench.store(Some(11), &[12], &[1, 2]), []);
    assert_eq!(bench.count(Oddity::UnknownParent), 3);
    assert_eq!(bench.doubts(), [Oddity::UnknownParent]);
    assert_eq!(bench.blocks(Tier::Device), BTreeSet::new());
    // Reported with all that comes before it, it has its place.
    assert_eq!(
        bench.store(None, &[99, 10], &[7, 8, 1, 2]),
        [stores(&chain(BASE, &[7, 8, 1, 2]))]
    );
}

#[test]
fn namespaces_do_not_mix() {
    let mut bench = bench();
    for (place, (lora, salt)) in [("", ""), ("ada", ""), ("", "tenant"), ("ada", "tenant")]
        .into_iter()
        .enumerate()
    {
        let hashes = names(&[place as u64 * 10, place as u64 * 10 + 1]);
        let mut told = told(None, &[1, 2, 3, 4]);
        (told.lora, told.salt) = (lora, salt);
        let namespace = Namespace { lora, salt, ..BASE };
        let changes = bench.say(BlockEvent::Stored(stored(&hashes, told)));
        assert_eq!(changes, [stores(&chain(namespace, &[1, 2, 3, 4]))]);
    }
    assert_eq!(bench.blocks(Tier::Device).len(), 8);
    let zero = Told {
        lora: "a\0b",
        ..told(None, &[1, 2])
    };
    assert_eq!(
        bench.say(BlockEvent::Stored(stored(&[EngineHash(50)], zero))),
        []
    );
    assert_eq!(bench.count(Oddity::UnknownNamespace), 1);
}

#[test]
fn unknown_namespaces_stay_out_with_all_that_follows() {
    let mut bench = bench();
    let hashes = names(&[10, 11]);
    let half = Told {
        understood: 1,
        ..told(None, &[1, 2, 3, 4])
    };
    let expected = chain(BASE, &[1, 2]);
    assert_eq!(
        bench.say(BlockEvent::Stored(stored(&hashes, half))),
        [stores(&expected)]
    );
    assert_eq!(bench.store(Some(11), &[12], &[5, 6]), []);
    assert_eq!(bench.count(Oddity::UnknownNamespace), 2);
    assert_eq!(bench.doubts(), [], "they are no loss");
    for hash in [12, 11] {
        assert_eq!(bench.remove(hash), []);
    }
    assert_eq!(bench.count(Oddity::UnknownRemoval), 0);
    assert_eq!(
        bench.store(Some(11), &[12], &[5, 6]),
        [KvEvent::Uncertain],
        "forgotten with its last copy"
    );
}

#[test]
fn multimodal_items_make_other_blocks() {
    let mut bench = bench();
    let hashes = names(&[10, 11, 12]);
    let item = |identifier, offset| MultimodalItem { identifier, offset };
    let items = [
        BlockItem {
            block: 0,
            item: item("cat", 1),
        },
        BlockItem {
            block: 1,
            item: item("cat", -1),
        },
        BlockItem {
            block: 1,
            item: item("dog", 1),
        },
    ];
    let with = Told {
        items: &items,
        ..told(None, &[1, 2, 3, 4, 5, 6])
    };
    let first = BASE.root().unwrap().child(&[1, 2], &[item("cat", 1)]);
    let second = first.child(&[3, 4], &[item("cat", -1), item("dog", 1)]);
    let third = second.child(&[5, 6], &[]);
    assert_eq!(
        bench.say(BlockEvent::Stored(stored(&hashes, with))),
        [stores(&[first, second, third])]
    );
}

#[test]
fn partial_blocks_never_enter() {
    let mut bench = bench();
    let partial = Told {
        block_size: 1,
        ..told(None, &[1])
    };
    assert_eq!(
        bench.say(BlockEvent::Stored(stored(&[EngineHash(10)], partial))),
        []
    );
    assert_eq!(bench.count(Oddity::PartialBlock), 1);
    assert_eq!(bench.doubts(), []);
    assert_eq!(bench.remove(10), []);
    assert_eq!(bench.count(Oddity::UnknownRemoval), 0);
}

#[test]
fn tokens_that_do_not_fit_their_blocks_are_a_loss() {
    for tokens in [&[1, 2, 3][..], &[1, 2, 3, 4, 5], &[]] {
        let mut bench = bench();
        assert_eq!(bench.store(None, &[10, 11], tokens), [KvEvent::Uncertain]);
        assert_eq!(bench.count(Oddity::TokenCount), 2);
    }
    let mut mirror = Mirror::new("tiny", None);
    let nothing = Told {
        block_size: 0,
        ..told(None, &[])
    };
    let applied = mirror.apply(
        0,
        stamp(0),
        [BlockEvent::Stored(stored(&[EngineHash(1)], nothing))],
    );
    assert_eq!(applied.changes, [KvEvent::Uncertain]);
}

#[test]
fn one_name_for_two_contents_is_believed_of_neither() {
    let mut bench = bench();
    let expected = chain(BASE, &[1, 2]);
    bench.store(None, &[10], &[1, 2]);
    assert_eq!(
        bench.store(None, &[10, 11], &[3, 4, 5, 6]),
        [KvEvent::Uncertain, removes(&expected)]
    );
    assert_eq!(bench.count(Oddity::Conflict), 1);
    assert_eq!(bench.blocks(Tier::Device), BTreeSet::new());
    assert_eq!(
        bench.store(Some(10), &[12], &[7, 8]),
        [],
        "nor of what follows it"
    );
}

#[test]
fn blocks_told_by_name_alone_are_found_by_name() {
    let mut bench = bench();
    let expected = chain(BASE, &[1, 2]);
    bench.store(None, &[10], &[1, 2]);
    let hashes = names(&[10, 77]);
    let offloaded = BlockEvent::Stored(Stored {
        hashes: &hashes,
        tier: Tier::Host,
        group: 0,
        whole_prefix: true,
        content: Content::Named,
    });
    let changes = bench.say(offloaded);
    assert!(
        matches!(&changes[..], [KvEvent::Stored { tier: Tier::Host, blocks }] if blocks.0 == expected)
    );
    assert_eq!(bench.count(Oddity::UntoldTokens), 1);
    assert_eq!(
        bench.doubts(),
        [],
        "lower tiers are told incompletely by nature"
    );
    assert_eq!(bench.remove(10), [removes(&expected)]);
    assert_eq!(bench.blocks(Tier::Host).len(), 1);
    // The name lives on in the lower tier.
    assert_eq!(
        bench.store(Some(10), &[11], &[3, 4]),
        [stores(&chain(BASE, &[1, 2, 3, 4])[1..])]
    );
}

#[test]
fn other_caches_of_the_engine_do_not_decide() {
    let mut bench = bench();
    let window = Stored {
        group: 0,
        whole_prefix: false,
        ..stored(&[EngineHash(10)], told(None, &[1, 2]))
    };
    assert_eq!(bench.say(BlockEvent::Stored(window)), []);
    let full = Stored {
        group: 1,
        ..stored(&[EngineHash(10)], told(None, &[1, 2]))
    };
    assert_eq!(bench.say(BlockEvent::Stored(full)).len(), 1);
    assert_eq!(
        bench.say(BlockEvent::Stored(Stored { group: 2, ..full })),
        []
    );
    assert_eq!(bench.remove(10), [], "of group 0");
    assert_eq!(bench.count(Oddity::OtherGroup), 3);
    assert_eq!(bench.doubts(), []);
}

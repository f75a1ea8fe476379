//! Messages that come late, again, not at all, or from a new life.

use std::collections::BTreeMap;

use baton_proto::event::KvEvent;
use baton_proto::worker::Tier;

use super::{BASE, BLOCK, Bench, bench, chain, names, stamp, stored, stores, told};
use crate::mirror::event::{BlockEvent, EngineHash, Told};
use crate::mirror::oddity::Oddity;
use crate::mirror::order::{Arrival, Stamp};
use crate::mirror::{Applied, Mirror};

#[test]
fn clearing_makes_certain_again() {
    let mut bench = bench();
    bench.seq = 3;
    assert_eq!(bench.store(None, &[10], &[1, 2])[0], KvEvent::Uncertain);
    let cleared = |tier| BlockEvent::Cleared { tier };
    assert_eq!(bench.say(cleared(Some(Tier::Host))), []);
    assert_eq!(
        bench.say(cleared(None)),
        [KvEvent::Cleared { tier: None }, KvEvent::Certain]
    );
    assert_eq!(bench.say(cleared(None)), []);
    assert_eq!(bench.mirror.digests(), []);
}

#[test]
fn after_a_loss_the_view_begins_anew_but_names_keep_their_meaning() {
    for lose in [
        (|bench: &mut Bench| {
            bench.seq += 2;
            bench.say(BlockEvent::Cleared {
                tier: Some(Tier::Disk),
            })
        }) as fn(&mut Bench) -> Vec<KvEvent>,
        |bench| bench.say(BlockEvent::Unreadable),
        |bench| {
            let changes = bench.mirror.undecoded(0, stamp(bench.seq)).changes;
            bench.seq += 1;
            changes
        },
    ] {
        let mut bench = bench();
        let expected = chain(BASE, &[1, 2, 3, 4, 5, 6]);
        bench.store(None, &[10, 11], &[1, 2, 3, 4]);
        assert_eq!(
            lose(&mut bench),
            [KvEvent::Uncertain, KvEvent::Cleared { tier: None }]
        );
        assert_eq!(bench.mirror.rank(0).unwrap().unconfirmed(), 2);
        assert_eq!(
            bench.store(Some(11), &[12], &[5, 6]),
            [KvEvent::Broken, stores(&expected[2..])]
        );
        assert_eq!(bench.remove(11), []);
        assert_eq!(bench.count(Oddity::UnknownRemoval), 0);
        assert_eq!(bench.store(None, &[10], &[1, 2]), [stores(&expected[..1])]);
        assert_eq!(bench.mirror.rank(0).unwrap().unconfirmed(), 0);
    }
}

#[test]
fn each_arrival_does_what_it_must() {
    let mut mirror = Mirror::new("tiny", Some(BLOCK));
    let block = [EngineHash(10)];
    let mut say = |seq, time| {
        let event = BlockEvent::Stored(stored(&block, told(None, &[1, 2])));
        mirror.apply(3, Stamp { seq, time }, [event])
    };
    let held = stores(&chain(BASE, &[1, 2]));
    let cleared = || KvEvent::Cleared { tier: None };
    let applied = |arrival, changes| Applied { arrival, changes };
    assert_eq!(say(0, 1.0), applied(Arrival::First, vec![held.clone()]));
    assert_eq!(say(1, 2.0), applied(Arrival::Next, vec![]));
    assert_eq!(say(1, 2.0), applied(Arrival::Older, vec![]));
    assert_eq!(say(0, 1.0), applied(Arrival::Older, vec![]));
    let gap = Arrival::Gap { missing: 2 };
    assert_eq!(
        say(4, 3.0),
        applied(gap, vec![KvEvent::Uncertain, cleared(), held.clone()])
    );
    let restart = vec![cleared(), held.clone(), KvEvent::Certain];
    assert_eq!(say(0, 4.0), applied(Arrival::Restart, restart));
    let late = vec![KvEvent::Uncertain, cleared(), held];
    assert_eq!(say(0, 5.0).arrival, Arrival::Restart);
    assert_eq!(say(1, 6.0).arrival, Arrival::Next);
    assert_eq!(say(1, 7.0), applied(Arrival::Restart, late));
    let view = mirror.rank(3).unwrap();
    let counted: BTreeMap<&str, u64> = view
        .tally()
        .iter()
        .map(|(reason, count)| (reason.name(), count))
        .collect();
    let expected = [
        ("gap", 2),
        ("joined_late", 1),
        ("older", 2),
        ("restart", 3),
        ("second_copy", 2),
    ];
    assert_eq!(counted, expected.into());
    assert_eq!(view.last_seq(), Some(1));
}

#[test]
fn ranks_are_apart() {
    let mut mirror = Mirror::new("tiny", None);
    for rank in [0, 7] {
        let tokens = [rank, 2, 3, 4];
        let hashes = names(&[10]);
        let block = Told {
            block_size: 4,
            ..told(None, &tokens)
        };
        mirror.apply(rank, stamp(0), [BlockEvent::Stored(stored(&hashes, block))]);
    }
    let digests = mirror.digests();
    assert_eq!(
        digests.iter().map(|digest| digest.rank).collect::<Vec<_>>(),
        [0, 7]
    );
    assert_ne!(digests[0].digest, digests[1].digest);
    assert_eq!(
        mirror
            .ranks()
            .map(|(_, view)| view.block_size())
            .collect::<Vec<_>>(),
        [Some(4); 2]
    );
}

#[test]
fn a_rank_is_uncertain_until_it_is_heard_or_known_to_be_silent() {
    let mut mirror = Mirror::new("tiny", None);
    assert_eq!(mirror.watch(0), [KvEvent::Uncertain]);
    assert_eq!(mirror.watch(1), [KvEvent::Uncertain]);
    assert_eq!(mirror.silent(0), [KvEvent::Certain]);
    assert_eq!(mirror.apply(1, stamp(0), []).changes, [KvEvent::Certain]);
    assert_eq!(mirror.restart(1), [KvEvent::Uncertain]);
    let doubts = |mirror: &Mirror| mirror.rank(1).unwrap().doubts().iter().collect::<Vec<_>>();
    assert_eq!(doubts(&mirror), [Oddity::Unheard]);
    assert_eq!(mirror.apply(1, stamp(3), []).changes, []);
    assert_eq!(doubts(&mirror), [Oddity::JoinedLate]);
    assert_eq!(mirror.lose(0), [KvEvent::Uncertain]);
}

#[test]
fn a_cache_cleared_amid_reports_of_reused_blocks_stays_uncertain() {
    let mut bench = bench();
    bench.store(None, &[10], &[1, 2]);
    bench.mirror.expect_reports(0, true);
    let clear = BlockEvent::Cleared { tier: None };
    let cleared = KvEvent::Cleared { tier: None };
    assert_eq!(bench.say(clear), [KvEvent::Uncertain, cleared]);
    assert_eq!(bench.doubts(), [Oddity::Reports]);
    bench.mirror.expect_reports(0, false);
    assert_eq!(bench.say(clear), [KvEvent::Certain]);
}

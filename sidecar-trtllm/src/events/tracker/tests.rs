use baton_proto::event::KvEvent;
use baton_proto::hash::{Namespace, SequenceHash};
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::Mirror;
use baton_sidecar_core::mirror::event::EngineHash;
use baton_sidecar_core::mirror::oddity::Oddity;
use baton_sidecar_core::mirror::order::Stamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::decode::decode;
use super::super::v1_hash;
use super::*;

macro_rules! recorded {
    ($name:literal) => {{
        let text = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../integration/recordings/trtllm/",
            $name
        ));
        serde_json::from_str::<Value>(text).unwrap()
    }};
}

mod learning;
mod losses;

const SIZE: u32 = 32;

/// A tracker and the mirror that it feeds.
struct Followed {
    tracker: Tracker,
    mirror: Mirror,
}

impl Followed {
    fn new(known: Known) -> Self {
        Self {
            tracker: Tracker::new(known),
            mirror: Mirror::new("m", Some(SIZE)),
        }
    }

    fn sized() -> Self {
        Self::new(Known {
            block_size: Some(SIZE),
            ..Known::default()
        })
    }

    fn try_poll(&mut self, answer: &Value) -> Result<Vec<Step>, AnotherStart> {
        let answer = answer.to_string();
        let batch = decode(answer.as_bytes()).unwrap();
        let events = batch.events.into_iter().map(|(event, _)| event).collect();
        let steps = self.tracker.read(events)?;
        for step in &steps {
            match step {
                Step::Apply { rank, id, pieces } => {
                    let stamp = Stamp {
                        seq: *id,
                        time: f64::NAN,
                    };
                    self.mirror
                        .apply(*rank, stamp, pieces.iter().map(Piece::event));
                }
                Step::Lose { rank } => {
                    let _: Vec<KvEvent> = self.mirror.lose(*rank);
                }
                Step::Missed { .. } | Step::Odd(_) => {}
            }
        }
        Ok(steps)
    }

    fn poll(&mut self, answer: &Value) -> Vec<Step> {
        self.try_poll(answer).unwrap()
    }

    fn held(&self, rank: u32, tier: Tier) -> Vec<SequenceHash> {
        let view = self.mirror.rank(rank).unwrap();
        let mut blocks: Vec<SequenceHash> = view.blocks(tier).collect();
        blocks.sort_unstable();
        blocks
    }

    fn doubts(&self, rank: u32) -> Vec<Oddity> {
        self.mirror.rank(rank).unwrap().doubts().iter().collect()
    }

    fn count(&self, rank: u32, oddity: Oddity) -> u64 {
        self.mirror.rank(rank).unwrap().tally().count(oddity)
    }
}

/// The first blocks of the prompt that is recorded.
fn blocks(count: u32) -> Vec<SequenceHash> {
    let namespace = Namespace {
        model: "m",
        lora: "",
        salt: "",
    };
    let mut before = namespace.root().unwrap();
    let mut blocks: Vec<SequenceHash> = (0..count)
        .map(|block| {
            let tokens: Vec<u32> = (0..SIZE).map(|token| 1000 + block * SIZE + token).collect();
            before = before.child(&tokens, &[]);
            before
        })
        .collect();
    blocks.sort_unstable();
    blocks
}

fn created(id: u64) -> Value {
    json!({"event_id": id, "data": {"type": "created", "num_blocks_per_cache_level": [1024, 0]}, "window_size": 4096})
}

/// An event that stores these tokens as one block.
fn stores(id: u64, parent: Option<u64>, tokens: std::ops::Range<u32>, hash: u64) -> Value {
    let tokens: Vec<Value> = tokens
        .map(|id| json!({"token_id": id, "token_extra_id": 0}))
        .collect();
    let block = json!({"block_hash": hash, "tokens": tokens, "cache_level": 0});
    json!({"event_id": id, "data": {"type": "stored", "parent_hash": parent, "blocks": [block]}, "window_size": 4096})
}

fn name(tokens: std::ops::Range<u32>, parent: Option<u64>) -> u64 {
    let tokens: Vec<u32> = tokens.collect();
    v1_hash::plain(&tokens, parent.map(EngineHash)).0
}

#[test]
fn polls_of_one_life_come_to_the_exact_view() {
    let mut followed = Followed::sized();
    let polls = recorded!("kv_events_v1_polls.json");
    let polls = polls["polls"].as_array().unwrap();
    for poll in &polls[..4] {
        followed.poll(&poll["body"]);
    }
    assert_eq!(
        followed.held(0, Tier::Device),
        blocks(2),
        "partial blocks are not told"
    );
    followed.poll(&polls[4]["body"]);
    assert_eq!(followed.held(0, Tier::Device), blocks(1));
    assert_eq!(followed.doubts(0), []);
    assert_eq!(
        followed.count(0, Oddity::UnknownRemoval),
        0,
        "partial ones went unseen"
    );
    assert_eq!(
        followed.tracker.names(),
        Names {
            plain: 2,
            strange: 0
        }
    );
}

#[test]
fn ranks_are_numbered_apart() {
    let mut followed = Followed::sized();
    let steps = followed.poll(&recorded!("kv_events_attention_dp.json"));
    assert!(
        !steps.iter().any(|step| matches!(step, Step::Missed { .. })),
        "{steps:?}"
    );
    for rank in [0, 1] {
        assert_eq!(followed.held(rank, Tier::Device), blocks(2));
        assert_eq!(followed.doubts(rank), []);
    }
}

#[test]
fn of_several_caches_the_widest_decides() {
    let mut followed = Followed::sized();
    followed.poll(&recorded!("kv_events_vswa.json"));
    assert_eq!(
        followed.held(0, Tier::Device),
        blocks(2),
        "a removal elsewhere is none here"
    );
    assert_eq!(followed.doubts(0), []);
    assert!(followed.count(0, Oddity::OtherGroup) > 0);
}

#[test]
fn a_wider_cache_that_is_heard_of_late_voids_what_was_told() {
    let mut followed = Followed::sized();
    let all = recorded!("kv_events_vswa.json");
    let narrow = all.as_array().unwrap()[2].clone();
    let wide = all.as_array().unwrap()[3].clone();
    followed.poll(&json!([narrow]));
    assert_eq!(followed.held(0, Tier::Device), blocks(2));
    let steps = followed.poll(&json!([wide]));
    assert!(steps.contains(&Step::Lose { rank: 0 }), "{steps:?}");
    assert_eq!(
        followed.held(0, Tier::Device),
        blocks(2),
        "of the wider one"
    );
    assert!(followed.doubts(0).contains(&Oddity::JoinedLate));
}

#[test]
fn a_block_that_is_moved_is_where_it_is() {
    let mut followed = Followed::sized();
    let events = recorded!("kv_events_offload_updated.json");
    let events = events.as_array().unwrap();
    followed.poll(&json!(events[..3]));
    assert_eq!(
        (
            followed.held(0, Tier::Device).len(),
            followed.held(0, Tier::Host)
        ),
        (1, blocks(1))
    );
    followed.poll(&json!(events[3..]));
    assert_eq!(
        (followed.held(0, Tier::Device), followed.held(0, Tier::Host)),
        (blocks(1), vec![])
    );
    assert_eq!(followed.doubts(0), []);
}

#[test]
fn a_removal_is_from_where_the_block_was() {
    let mut followed = Followed::sized();
    let events = recorded!("kv_events_offload_updated.json");
    followed.poll(&json!(events.as_array().unwrap()[..3]));
    let first = 10_007_796_145_622_571_252_u64;
    let removed = json!([{"event_id": 3, "data": {"type": "removed", "block_hashes": [first]}, "window_size": 4096}]);
    followed.poll(&removed);
    assert_eq!(
        (
            followed.held(0, Tier::Device).len(),
            followed.held(0, Tier::Host).len()
        ),
        (1, 0)
    );
    assert_eq!(followed.count(0, Oddity::UnknownRemoval), 0);
}

#[test]
fn both_managers_of_the_cache_tell_the_same() {
    let events = recorded!("kv_events_v2_v1algo.json");
    let mut followed = Followed::sized();
    followed.poll(&events);
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (blocks(2), vec![])
    );
    let mut followed = Followed::sized();
    followed.poll(&recorded!("kv_events_v2_sha256.json"));
    assert_eq!(
        (followed.held(0, Tier::Device), followed.doubts(0)),
        (blocks(1), vec![])
    );
    assert_eq!(
        followed.tracker.names(),
        Names::default(),
        "these names are not compared"
    );
}

#[test]
fn whatever_is_in_a_namespace_that_is_not_told_stays_out_with_all_behind_it() {
    let of_adapter = recorded!("hash_vectors_v1_block_key.json")["vectors"][3]["hash"].clone();
    let known = Known {
        block_size: Some(4),
        ..Known::default()
    };
    let events = json!([
        created(0),
        stores(1, None, 1..5, of_adapter.as_u64().unwrap()),
        stores(2, of_adapter.as_u64(), 5..9, 77),
        stores(
            3,
            of_adapter.as_u64(),
            5..9,
            name(5..9, of_adapter.as_u64())
        )
    ]);
    let mut followed = Followed::new(known);
    followed.mirror = Mirror::new("m", Some(4));
    followed.poll(&events);
    assert_eq!(followed.held(0, Tier::Device), []);
    assert_eq!(
        (
            followed.count(0, Oddity::UnknownNamespace),
            followed.doubts(0)
        ),
        (3, vec![])
    );
    assert_eq!(followed.tracker.names().strange, 1);
    let mut trusting = Followed::new(Known {
        trust_names: true,
        ..known
    });
    trusting.mirror = Mirror::new("m", Some(4));
    trusting.poll(&events);
    assert_eq!(trusting.held(0, Tier::Device).len(), 2);
}

#[test]
fn a_salt_that_is_told_is_a_namespace_where_it_can_be_checked() {
    let tokens: Vec<u32> = (1000..1032).collect();
    let salted = Namespace {
        model: "m",
        lora: "",
        salt: "tenant-a",
    };
    let expected = salted.root().unwrap().child(&tokens, &[]);
    for name in v1_hash::salted(&tokens, "tenant-a") {
        let mut followed = Followed::sized();
        let mut stores = stores(1, None, 1000..1032, name.0);
        stores["data"]["blocks"][0]["cache_salt"] = "tenant-a".into();
        followed.poll(&json!([created(0), stores]));
        assert_eq!(followed.held(0, Tier::Device), [expected]);
    }
}

#[test]
fn images_are_no_namespace_and_neither_is_a_salt_of_another_making() {
    let mut followed = Followed::sized();
    followed.poll(&json!([created(0)]));
    followed.poll(&recorded!("kv_events_mm_and_salt.json"));
    assert_eq!(followed.held(0, Tier::Device), []);
    let outside = followed.count(0, Oddity::UnknownNamespace);
    assert_eq!((outside, followed.doubts(0)), (2, vec![]));
}

proptest! {
    /// However one stream of events is cut into polls, the view is the same.
    #[test]
    fn cuts_between_polls_do_not_matter(cuts in proptest::collection::vec(1usize..4, 0..8)) {
        let all = recorded!("kv_events_vswa.json");
        let all = all.as_array().unwrap();
        let (mut whole, mut cut) = (Followed::sized(), Followed::sized());
        whole.poll(&json!(all));
        let mut rest = &all[..];
        for size in cuts {
            let (now, later) = rest.split_at(size.min(rest.len()));
            cut.poll(&json!(now));
            rest = later;
        }
        cut.poll(&json!(rest));
        prop_assert_eq!(whole.held(0, Tier::Device), cut.held(0, Tier::Device));
        prop_assert_eq!(whole.doubts(0), cut.doubts(0));
    }
}

//! Answers of TensorRT-LLM to polls for KV events and for statistics, against what serde_json alone makes of them, and the mirror
//! that they build.

#![no_main]

use baton_sidecar_core::mirror::Mirror;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_trtllm::events::decode::{Change, decode};
use baton_sidecar_trtllm::events::tracker::{Known, Piece, Step, Tracker};
use baton_sidecar_trtllm::load;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// What each event says it is, by serde_json alone; nothing if the answer is no list.
fn reference(answer: &[u8]) -> Option<Vec<Value>> {
    serde_json::from_slice(answer).ok()
}

fn numbered(events: &[Value]) -> usize {
    events.iter().filter(|event| event.get("event_id").is_some_and(Value::is_u64)).count()
}

/// Reads the events, twice if they are of another start.
fn follow(answer: &[u8], known: Known) {
    let Ok(batch) = decode(answer) else { return };
    let events: Vec<_> = batch.events.into_iter().map(|(event, _)| event).filter(|event| event.rank < 4).collect();
    let mut tracker = Tracker::new(known);
    let mut mirror = Mirror::new("m", known.block_size);
    let Ok(steps) = tracker.read(events.clone()) else { unreachable!("nothing was heard before") };
    for step in &steps {
        if let Step::Apply { rank, id, pieces } = step {
            mirror.apply(*rank, Stamp { seq: *id, time: f64::NAN }, pieces.iter().map(Piece::event));
        }
    }
    for (_, view) in mirror.ranks() {
        assert!(view.digests(0).all(|digest| digest.blocks > 0));
    }
    let again = tracker.read(events.clone());
    assert_eq!(again.is_err(), !events.is_empty(), "the same numbers are of another start");
}

fuzz_target!(|answer: &[u8]| {
    let expected = reference(answer);
    match decode(answer) {
        Ok(batch) => {
            // Numbers too large for serde_json's tree are lists for ours all the same.
            if let Some(expected) = expected {
                let read = batch.events.len() as u64 + batch.nameless;
                assert!(read <= expected.len() as u64 && batch.events.len() <= numbered(&expected));
            }
            for (event, raw) in &batch.events {
                let whole = serde_json::from_str::<Value>(raw);
                assert!(event.change == Change::Unreadable || whole.is_ok());
            }
        }
        Err(why) => assert!(expected.is_none(), "{why}"),
    }
    follow(answer, Known { block_size: Some(32), ..Known::default() });
    follow(answer, Known::default());
    let _ = load::read(answer);
});

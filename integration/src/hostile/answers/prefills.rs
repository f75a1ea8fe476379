//! The answer to a prefill, changed in one place: every member of it and of its transfer parameters missing, or of every
//! other type. The engine holds the KV whatever it says of it.

use serde_json::{Value, json};

use super::{Odd, Outcome, Question, Shape};
use crate::emulated::vllm::script::Fault;

/// Places in the answer, as JSON pointers.
#[rustfmt::skip]
const PLACES: &[&str] = &[
    "/id", "/choices", "/choices/0", "/choices/0/finish_reason", "/usage", "/usage/prompt_tokens", "/kv_transfer_params",
    "/kv_transfer_params/do_remote_prefill", "/kv_transfer_params/do_remote_decode", "/kv_transfer_params/remote_block_ids",
    "/kv_transfer_params/remote_block_ids/0", "/kv_transfer_params/remote_block_ids/0/0",
    "/kv_transfer_params/remote_engine_id", "/kv_transfer_params/remote_request_id", "/kv_transfer_params/remote_host",
    "/kv_transfer_params/remote_port", "/kv_transfer_params/tp_size", "/kv_transfer_params/remote_num_tokens",
    "/kv_transfer_params/transfer_mode", "/kv_transfer_params/remote_prefill_cached_tokens",
];

/// All cases of this page. The client notices none of it.
pub fn cases() -> Vec<Odd> {
    let strangers = json!([
        null, true, false, 0, -1, 1.5, 18_446_744_073_709_551_615_u64, "", "x", "\u{0}", [], {}, [[]], [null], [[0]],
        [[4_294_967_296_u64]], {"do_remote_prefill": true}
    ]);
    let strangers = strangers.as_array().cloned().unwrap_or_default();
    let mut cases = Vec::new();
    for (at, place) in PLACES.iter().enumerate() {
        for (number, stranger) in strangers.iter().enumerate() {
            // Each stranger at every third place keeps the engine's memory from running out.
            if (at + number) % 3 == 0 {
                let name = format!("{place} is {stranger}");
                cases.push(changed(name, place, Some(stranger.clone())));
            }
        }
        cases.push(changed(format!("no {place}"), place, None));
    }
    cases
}

fn changed(name: String, place: &'static str, stranger: Option<Value>) -> Odd {
    let question = Question::new(Shape::ALL[0]);
    let fault = Fault::answer(move |answer| match &stranger {
        Some(stranger) => {
            if let Some(value) = answer.pointer_mut(place) {
                *value = stranger.clone();
            }
        }
        None => remove(answer, place),
    });
    Odd::new(name, &question, fault, Outcome::Useless)
}

fn remove(answer: &mut Value, place: &str) {
    let Some((holder, name)) = place.rsplit_once('/') else {
        return;
    };
    match answer.pointer_mut(holder) {
        Some(Value::Object(members)) => drop(members.remove(name)),
        Some(Value::Array(items)) => items.clear(),
        _ => {}
    }
}

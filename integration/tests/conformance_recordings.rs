//! The conformance suite against the recordings themselves: two of one kind satisfy each other's masks, and all are used.

use std::collections::BTreeSet;

use baton_integration::conformance::answer::Body;
use baton_integration::conformance::cases::{self, Case};
use baton_integration::conformance::events::{self, Hashes};
use baton_integration::conformance::mask::When;
use baton_integration::conformance::recording::{self, Source};
use baton_integration::conformance::{left_out, shape};
use serde_json::Value;

/// Recorded exchanges that must satisfy each other's masks: two of one kind.
const ALIKE: &[(&str, &str, &[When])] = &[
    ("models", "c5_models_P", &[When::OtherFlags]),
    ("c5_models_P", "c5_models_D", &[]),
    ("c5_kv_event_sources_P", "c5_kv_event_sources_P", &[]),
    ("c1_prefill_length_plain", "c3_plain_1_prefill", &[]),
    ("c3_plain_1_prefill", "c3_seed_t1_1_prefill", &[]),
    ("c3_plain_1_prefill", "c3_user_field_1_prefill", &[]),
    ("c3_plain_2_decode", "c3_plain_3_aggregated", &[]),
    ("c3_plain_2_decode", "c3_penalties_3_aggregated", &[]),
    ("c3_logprobs3_2_decode", "c3_logprobs3_3_aggregated", &[]),
    ("c3_logprobs0_2_decode", "c3_logprobs0_3_aggregated", &[]),
    (
        "c3_echo_logprobs_2_decode",
        "c3_echo_logprobs_3_aggregated",
        &[],
    ),
    (
        "c3_prompt_logprobs2_2_decode",
        "c3_prompt_logprobs2_3_aggregated",
        &[],
    ),
    (
        "c3_chat_plain_1_prefill",
        "c3_chat_n2_prefill_n1_1_prefill",
        &[],
    ),
    ("c3_chat_plain_2_decode", "c3_chat_tools_none_2_decode", &[]),
    (
        "c3_chat_logprobs_top3_2_decode",
        "c3_chat_logprobs_top3_3_aggregated",
        &[When::OtherFlags],
    ),
    (
        "c3_chat_prompt_logprobs_2_decode",
        "c3_chat_prompt_logprobs_3_aggregated",
        &[],
    ),
    (
        "c3_chat_tools_named_2_decode",
        "c3_chat_tools_named_3_aggregated",
        &[When::OtherFlags],
    ),
    (
        "c3_structured_choice_2_decode",
        "c3_structured_regex_3_aggregated",
        &[When::Grammar],
    ),
    ("c3_n2_1_prefill", "c3_chat_n2_1_prefill", &[]),
    (
        "c1_prefill_stop_string",
        "c1_prefill_stop_string_include",
        &[],
    ),
    (
        "c8_cold_P_cold_D_1_prefill",
        "c8_cold_P_warm_D_1_prefill",
        &[],
    ),
    (
        "c8_warm_P_cold_D_2_decode",
        "c8_warm_P_warm_D_2_decode",
        &[],
    ),
    ("pd_2_decode", "pd_3_aggregated_reference", &[]),
    ("err_first_use_ok", "err_lease_expired", &[]),
    ("err_first_use_ok", "err_wrong_prompt_same_len", &[]),
    (
        "err_too_few_block_ids",
        "err_prompt_longer_than_prefilled",
        &[],
    ),
    ("err_block_ids_out_of_range", "err_wrong_engine_id", &[]),
    (
        "err_first_use_ok",
        "recompute_prefill_killed_between_steps",
        &[],
    ),
    ("oot_base", "oot_cached_usage", &[When::OtherFlags]),
];

#[test]
fn recordings_of_one_kind_satisfy_each_others_masks() {
    for (one, other, circumstances) in ALIKE {
        for (one, other) in [(one, other), (other, one)] {
            let answer = |name: &str| {
                let recording = recording::named(name);
                let mut answer = recording.answer.clone();
                if recording.source == Source::Oot {
                    // Block ids of a connector of its own.
                    if let Body::Json(body) = &mut answer.body {
                        body["kv_transfer_params"] = Value::Null;
                    }
                }
                answer
            };
            let differences = shape::answers(&answer(one), &answer(other), circumstances);
            assert_eq!(differences, [], "{one} and {other}");
        }
    }
}

#[test]
fn logs_are_compared_by_which_block_is_which() {
    let recorded = &events::recorded()["agg"][0];
    assert_eq!(events::compare(recorded, recorded, Hashes::Equal), []);
    let mut renamed = recorded.clone();
    for batch in &mut renamed {
        for event in &mut batch.events {
            for hash in event["block_hashes"].as_array_mut().into_iter().flatten() {
                *hash = (hash.as_u64().unwrap() ^ 0xff00).into();
            }
            let parent = event["parent_block_hash"].as_u64();
            if let Some(parent) = parent {
                event["parent_block_hash"] = (parent ^ 0xff00).into();
            }
        }
    }
    assert_eq!(events::compare(recorded, &renamed, Hashes::Renamed), []);
    assert!(!events::compare(recorded, &renamed, Hashes::Equal).is_empty());
    // Another block is evicted first.
    renamed[10].events.swap(0, 1);
    assert!(!events::compare(recorded, &renamed, Hashes::Renamed).is_empty());
}

#[test]
fn no_recording_is_left_out_silently() {
    let cases = cases::all();
    let used: BTreeSet<&str> = cases.iter().flat_map(Case::recordings).collect();
    let left: BTreeSet<&str> = left_out::EXCHANGES.iter().map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = recording::all().keys().map(String::as_str).collect();
    let accounted: BTreeSet<&str> = used.union(&left).copied().collect();
    assert_eq!(accounted, known);
    assert_eq!(used.intersection(&left).count(), 0, "left out and used");
    for (name, why) in left_out::EXCHANGES.iter().chain(left_out::NOT_TAKEN) {
        assert!(why.split(' ').count() > 3, "{name}: {why}");
    }
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
}

/// What Baton must refuse is what was recorded here.
#[test]
fn refused_bodies_are_the_recorded_ones() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/refused");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let refused: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let name = format!("err_{}", path.file_stem().unwrap().to_str().unwrap());
        let recording = recording::named(&name);
        assert_eq!(recording.request.as_ref(), Some(&refused["body"]), "{name}");
        assert_eq!(refused["engine_status"], recording.answer.status, "{name}");
        files += 1;
    }
    assert!(files >= 20, "{files}");
}

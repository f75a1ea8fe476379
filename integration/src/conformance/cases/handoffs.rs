//! Prefill on one engine, decode on another, and the same request on an aggregated one.

use super::{Case, Part, Step, ask, prefill, recorded};
use crate::conformance::target::{Role, Setup};

/// Requests whose split was recorded as `c3_…_1_prefill`, `_2_decode`, `_3_aggregated`, as far as they got.
const SPLIT: [&str; 27] = [
    "plain",
    "seed_t1",
    "seed_t1_topp",
    "noseed_t1",
    "penalties",
    "logprobs0",
    "logprobs3",
    "prompt_logprobs2",
    "echo",
    "echo_logprobs",
    "truncate",
    "truncate_chat",
    "user_field",
    "best_of2",
    "best_of2_n1_t1",
    "beam",
    "n2",
    "n2_seed",
    "n2_prefill_n1",
    "suffix",
    "json_schema_bad",
    "chat_plain",
    "chat_logprobs_top3",
    "chat_prompt_logprobs",
    "chat_continue_final",
    "chat_n2",
    "chat_n2_prefill_n1",
];

/// The same, with answers that a grammar or a tool parser shapes.
const BY_GRAMMAR: [&str; 10] = [
    "cmpl_json_schema",
    "guided_choice_legacy",
    "structured_choice",
    "structured_regex",
    "chat_json_object",
    "chat_json_schema",
    "chat_tools_auto",
    "chat_tools_named",
    "chat_tools_none",
    "chat_tools_required",
];

/// Ends of an answer, recorded as `c1_prefill_…`, `c1_decode_…`, `c1_agg_…`.
const ENDS: [&str; 5] = [
    "length_plain",
    "eos_logit_bias",
    "eos_logit_bias_ignore_eos",
    "stop_string_in_prompt_last_char",
    "max_tokens_0",
];

/// Ends by what the model says first, which must be learnt from the target.
const ENDS_BY_TEXT: [&str; 4] = [
    "stop_string",
    "stop_string_include",
    "stop_string_partial_prefix",
    "stop_token_ids",
];

/// Limits on the prefill leg.
const LIMITS: [&str; 13] = [
    "c2_chat_prefill_both_mt16_mct1",
    "c2_chat_prefill_both_mt1_mct16",
    "c2_chat_prefill_max_completion_only",
    "c2_chat_prefill_max_tokens_0",
    "c2_chat_prefill_max_tokens_only",
    "c2_chat_prefill_min_tokens5_mt1",
    "c2_chat_prefill_stop_eos",
    "c2_chat_prefill_stream_options_no_stream",
    "c2_chat_prefill_stream_options_null",
    "c2_cmpl_prefill_max_completion_tokens",
    "c2_cmpl_prefill_min_tokens1_eos",
    "c2_cmpl_prefill_min_tokens5_mt1",
    "c2_cmpl_prefill_stream_options_no_stream",
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = first_pair();
    cases.extend(ENDS.map(|end| Case::new(format!("c1_{end}"), Setup::Split, ends(end))));
    cases.extend(ENDS_BY_TEXT.map(|end| {
        let mut steps = vec![Step::Learn("c1_agg_length_plain", "cus", 830)];
        steps.extend(ends(end));
        Case::new(format!("c1_{end}"), Setup::Split, steps)
    }));
    cases.extend(LIMITS.map(|name| Case::new(name, Setup::Split, [ask(name)])));
    let legs = |stem: &str| Case::new(format!("c3_{stem}"), Setup::Split, legs(stem));
    cases.extend(SPLIT.map(legs));
    cases.extend(BY_GRAMMAR.map(|stem| legs(stem).shaped_by_a_grammar()));
    cases.extend(streamed_whole_and_several());
    cases.extend(warm_and_cold());
    cases.extend(aborts());
    cases
}

fn ends(end: &str) -> Vec<Step> {
    recorded(&["prefill", "decode", "agg"].map(|leg| format!("c1_{leg}_{end}")))
}

fn legs(stem: &str) -> Vec<Step> {
    recorded(&["1_prefill", "2_decode", "3_aggregated"].map(|leg| format!("c3_{stem}_{leg}")))
}

fn first_pair() -> Vec<Case> {
    let local = "pd_partial_local_hit";
    let case = |name, steps: Vec<Step>| Case::new(name, Setup::First, steps);
    let whole = ["pd_1_prefill", "pd_2_decode", "pd_3_aggregated_reference"];
    let chat = ["pd_chat_1_prefill", "pd_chat_2_decode_stream"];
    let short = ["pd_short_prompt_prefill", "pd_short_prompt_decode"];
    let partly = [
        Step::Before(Role::Decode, local.to_owned(), Part::First(64)),
        prefill(local),
        ask(local),
    ];
    vec![
        case("pd", whole.map(ask).into()),
        case("pd_chat", chat.map(ask).into()),
        case("pd_short_prompt", short.map(ask).into()),
        case(local, partly.into()),
        case("pd_prefill_stream", vec![ask("pd_prefill_stream")]),
        case(
            "pd_prefill_with_prefix_hit",
            vec![ask("pd_prefill_with_prefix_hit")],
        ),
        case("handshake_prefill", vec![Step::Handshake(Role::Prefill)]),
        case("handshake_decode", vec![Step::Handshake(Role::Decode)]),
    ]
}

/// Streamed decode legs, prompts that fill their last block, and two prompts at once: the ticket is for the first one.
fn streamed_whole_and_several() -> [Case; 4] {
    let case = |name: &str, steps: &[&str]| {
        let steps = steps.iter().map(|step| ask(&format!("{name}_{step}")));
        Case::new(name, Setup::Split, steps.collect::<Vec<_>>())
    };
    let again = [
        "prefill",
        "decode",
        "aggregated",
        "again_prefill",
        "again_decode",
    ];
    [
        case("s1", &["prefill", "decode_stream", "aggregated_stream"]),
        case(
            "s2_chat",
            &["prefill", "decode_stream", "aggregated_stream"],
        ),
        case("s3_whole_blocks", &again),
        case("s4_batch", &["prefill", "aggregated"]),
    ]
}

/// Where the prompt's tokens came from, as both engines count them.
fn warm_and_cold() -> [Case; 5] {
    let histories: [(&'static str, Option<Part>); 5] = [
        ("cold_P_cold_D", None),
        ("cold_P_warm_D", Some(Part::Whole)),
        ("cold_P_partial128_D", Some(Part::First(128))),
        ("warm_P_cold_D", None),
        ("warm_P_warm_D", Some(Part::Whole)),
    ];
    histories.map(|(name, decode)| {
        let legs = ["1_prefill", "2_decode"].map(|leg| format!("c8_{name}_{leg}"));
        let mut steps = Vec::new();
        if name.starts_with("warm_P") {
            steps.push(Step::Before(Role::Prefill, legs[0].clone(), Part::Whole));
        }
        steps.extend(decode.map(|part| Step::Before(Role::Decode, legs[1].clone(), part)));
        steps.push(Step::Count);
        steps.extend(legs.map(Step::Ask));
        steps.push(Step::Grew(name));
        Case::new(format!("c8_{name}"), Setup::Split, steps)
    })
}

/// What an abort call does: nothing to a finished prefill, everything to a running one of exactly this id.
fn aborts() -> Vec<Case> {
    let alone = [
        "c4_abort_empty",
        "c4_abort_missing",
        "c4_abort_on_decode_unknown",
        "c4_abort_string",
        "c4_abort_unknown",
    ];
    let case =
        |name: String, steps: Vec<Step>| Case::new(name, Setup::Split, steps).with_scale_out(true);
    let mut cases: Vec<Case> = alone
        .map(|name| case(name.to_owned(), vec![ask(name)]))
        .into();
    let held = [
        ("c4_abort_held_cmpl", "hdcm2614"),
        ("c4_abort_held_remote_request_id", "hdre2624"),
    ];
    cases.extend(held.map(|(name, id)| {
        // The KV is still there: decode gets the right tokens from it.
        let legs = ["c3_plain_2_decode", "c3_plain_3_aggregated"].map(ask);
        let mut steps = vec![Step::PrefillAs(id, "c3_plain_1_prefill"), ask(name)];
        steps.extend(legs);
        case(name.to_owned(), steps)
    }));
    cases.extend(["base", "dash0"].map(|id| {
        let name = format!("c4_abort_running_{id}");
        let [prefill, call] = ["prefill", "call"].map(|part| format!("{name}_{part}"));
        case(name, vec![Step::Interrupt(prefill, call)])
    }));
    cases
}

//! One exchange a case: what an engine answers without a peer.

use super::{Case, Part, Step, ask};
use crate::conformance::target::{Role, Setup};

/// Asked of any engine.
const ALONE: [&str; 16] = [
    "health",
    "version",
    "models",
    "load",
    "tokenize",
    "tokenize_chat",
    "detokenize",
    "completion",
    "completion_token_ids_in",
    "completion_stream",
    "completion_long",
    "chat",
    "chat_stream",
    "chat_cache_salt",
    "err_model",
    "err_badjson",
];

/// Depend on flags that an engine which runs already may not have.
const WITH_RECORDED_FLAGS: [&str; 2] = ["err_too_long", "reset_prefix_cache"];

/// Streams of every kind, and what is refused before anything is computed.
const MORE: [&str; 10] = [
    "s5_plain_stream",
    "s5_logprobs_stream",
    "s6_chat_plain_stream",
    "s6_chat_logprobs_stream",
    "s6_chat_n2",
    "s7_empty_messages",
    "s7_no_prompt",
    "s7_empty_prompt",
    "s7_temperature",
    "s7_no_json",
];

pub(super) fn cases() -> Vec<Case> {
    let single = |name: &str| Case::new(name, Setup::First, [ask(name)]);
    let mut cases: Vec<Case> = ALONE.map(single).into();
    cases.extend(WITH_RECORDED_FLAGS.map(|name| single(name).with_recorded_flags()));
    let closed = ["render_chat", "inference_generate"];
    cases.extend(closed.map(|name| single(name).with_scale_out(false)));
    let split = |name: &str| Case::new(name, Setup::Split, [ask(name)]);
    cases.extend(["c5_models_P", "c5_models_D"].map(split));
    let sources = ["c5_kv_event_sources_P", "c5_kv_event_sources_D"];
    cases.extend(sources.map(|name| split(name).with_recorded_flags()));
    let open = ["oot_render_chat", "oot_render_completion"];
    cases.extend(open.map(|name| split(name).with_scale_out(true)));
    let generate = ["oot_generate", "oot_generate_stream"].map(ask);
    cases.push(Case::new("generate", Setup::Split, generate).with_scale_out(true));
    cases.extend(MORE.map(split));
    let reported = ["completion_xargs_a", "completion_xargs_b"].map(ask);
    cases.push(Case::new("completion_xargs", Setup::First, reported));
    cases.extend(metrics());
    cases
}

fn metrics() -> [Case; 3] {
    let pages = [
        (Role::Aggregated, "aggregated"),
        (Role::Prefill, "prefill"),
        (Role::Decode, "decode"),
    ];
    pages.map(|(role, page)| {
        let used = Step::Before(role, "pd_1_prefill".to_owned(), Part::Whole);
        let steps = [used, Step::Families(role, page)];
        Case::new(format!("metrics_{page}"), Setup::First, steps)
    })
}

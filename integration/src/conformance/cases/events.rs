//! Requests in the recorded order on engines that have seen nothing else, and the event logs that come of it.

use serde_json::{Value, json};

use super::{Case, Log, Step, ask};
use crate::conformance::events::Hashes;
use crate::conformance::target::{Role, Setup};

pub(super) fn cases() -> [Case; 5] {
    let named = ["dp_rank_1", "dp_rank_out_of_range", "dp_rank_no_number"];
    let named = Case::new("ranks_by_name", Setup::Ranks, named.map(ask));
    [evictions(), ranks(), adapters(), handoff(), named]
}

fn one_token(prompt: impl Iterator<Item = u64>) -> Value {
    let prompt: Vec<u64> = prompt.collect();
    json!({"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0})
}

fn many_tokens(prompt: impl Iterator<Item = u64>, count: u64) -> Value {
    let mut body = one_token(prompt);
    body["max_tokens"] = count.into();
    body["ignore_eos"] = true.into();
    body["return_token_ids"] = true.into();
    body
}

/// 64 blocks: what was used last is evicted last, each sequence from its tail; a reset is told with the next request only.
fn evictions() -> Case {
    let asked = [
        "kv_event_sources",
        "completion",
        "completion_token_ids_in",
        "completion_stream",
        "chat",
        "chat_stream",
        "chat_cache_salt",
        "completion_long",
    ];
    let role = Role::Aggregated;
    let mut steps: Vec<Step> = asked.map(ask).into();
    steps.extend((0..6).map(|number| {
        let prompt = (0..500).map(|at| (number * 131 + at * 7) % 900 + 50);
        Step::Send(role, None, one_token(prompt))
    }));
    steps.push(ask("reset_prefix_cache"));
    steps.push(Step::Send(role, None, one_token(300..364)));
    steps.push(Step::Log(role, Log::of("agg", 13, Hashes::Renamed)));
    steps.push(Step::Replay(role));
    // Not recorded, but by law: 63 computed tokens fill one block, 64 fill two.
    steps.push(Step::Send(role, None, many_tokens(400..420, 44)));
    steps.push(Step::Send(role, None, many_tokens(500..520, 45)));
    steps.push(Step::Lawful(role));
    steps.push(Step::Heard(role));
    Case::new("events_evictions", Setup::SmallCache, steps).on_engines_of_its_own(&[role])
}

/// Two ranks, one log each; hashes that anybody can compute.
fn ranks() -> Case {
    let role = Role::Aggregated;
    // The recorded blocks' tokens, and one token more.
    let prompt = |first: u64, step: u64| {
        let ids = (0..65).map(|at| (first - 50 + at * step) % 900 + 50);
        Step::Send(role, Some(0), one_token(ids))
    };
    let steps = [
        ask("dp_kv_event_sources"),
        prompt(50, 13),
        prompt(84, 13),
        prompt(50, 19),
        ask("dp_reset_prefix_cache"),
        prompt(55, 13),
        Step::Log(role, Log::of("dp_rank0_sha256cbor_bytes", 4, Hashes::Equal)),
    ];
    Case::new("events_ranks", Setup::Ranks, steps).on_engines_of_its_own(&[role])
}

/// Namespaces: an adapter, a salt, both; a session; a report of what is cached already.
fn adapters() -> Case {
    let asked = [
        "oot_kv_event_sources",
        "oot_models",
        "oot_base",
        "oot_lora",
        "oot_salt",
        "oot_lora_salt",
        "oot_cached_usage",
        "oot_report_full",
        "oot_kvparams_passthrough",
        "oot_n2",
    ];
    let role = Role::Aggregated;
    let mut steps: Vec<Step> = asked.map(ask).into();
    let log = Log::of("lora_salt_session_bytes_hash", 6, Hashes::Renamed);
    steps.push(Step::Log(role, log));
    Case::new("events_adapters", Setup::Lora, steps).on_engines_of_its_own(&[role])
}

/// Both sides of the first handoffs: decode tells received blocks as if it had computed them.
fn handoff() -> Case {
    let asked = [
        "pd_1_prefill",
        "pd_2_decode",
        "pd_chat_1_prefill",
        "pd_chat_2_decode_stream",
        "pd_prefill_stream",
    ];
    let mut steps: Vec<Step> = asked.map(ask).into();
    let (prefill, decode) = (Role::Prefill, Role::Decode);
    steps.push(Step::Log(prefill, Log::of("prefill", 3, Hashes::Renamed)));
    steps.push(Step::Log(decode, Log::of("decode", 3, Hashes::Renamed)));
    steps.push(Step::Heard(decode));
    Case::new("events_handoff", Setup::First, steps).on_engines_of_its_own(&[prefill, decode])
}

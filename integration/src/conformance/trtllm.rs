//! What was read in TensorRT-LLM's sources, compared with an emulated engine.
//!
//! **Nothing here was recorded**: the shapes are generated (`recordings/trtllm`), so an engine that conforms does as was
//! understood, and no more. What may differ is listed in [`MASKS`], what is not compared in [`LEFT_OUT`].

use std::sync::LazyLock;

use serde_json::Value;

use super::answer::Answer;
use super::mask::{Mask, Masks, Rule, When, always, mask};
use super::shape::{self, Difference};

macro_rules! shapes {
    ($($name:literal),* $(,)?) => {
        /// All shapes, by the names of their files.
        pub const SHAPES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../recordings/trtllm/", $name)))),*
        ];
    };
}

shapes! {
    "cluster_storage_http.json",
    "completion_stream_error.sse",
    "ctx_chat_request.json",
    "ctx_chat_response.json",
    "ctx_chat_response_b64_ids.json",
    "ctx_completion_request.json",
    "ctx_completion_response.json",
    "ctx_completion_response_1_2.json",
    "ctx_completion_response_finished_early.json",
    "disagg_auth_vector.json",
    "disagg_request_id.json",
    "errors.json",
    "gen_chat_request.json",
    "gen_chat_stream.sse",
    "gen_completion_request.json",
    "gen_completion_response.json",
    "gen_completion_stream.sse",
    "gen_completion_stream_1_2.sse",
    "generation_first_pair.json",
    "hash_vectors_v1_block_key.json",
    "kv_events_attention_dp.json",
    "kv_events_mm_and_salt.json",
    "kv_events_offload_updated.json",
    "kv_events_overflow_gap.json",
    "kv_events_restart.json",
    "kv_events_serializer_eras.json",
    "kv_events_v1_polls.json",
    "kv_events_v2_sha256.json",
    "kv_events_v2_v1algo.json",
    "kv_events_vswa.json",
    "logprobs_first_gen.json",
    "metrics_iteration_stats.json",
    "perf_metrics.json",
    "prometheus.txt",
    "small_endpoints.json",
}

/// The text of a shape.
pub fn text(name: &str) -> &'static str {
    let found = SHAPES.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("there is no shape {name}"))
        .1
}

/// The same as JSON.
pub fn json(name: &str) -> Value {
    serde_json::from_str(text(name)).unwrap_or_else(|error| panic!("{name} is no JSON: {error}"))
}

/// A list of small numbers, such as tokens.
pub fn numbers(list: &Value) -> Vec<u32> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|number| u32::try_from(number.as_u64()?).ok())
        .collect()
}

const GENERATED: &str =
    "the generator's own value; that there is one, and of which kind, is compared";
const MODEL: &str = "what a model says, and there is none";
const PROMPT: &str =
    "the prompt of a chat is the template's, and templates differ; that it is told is compared";
const OPAQUE: &str = "only the engine that wrote it can read it";
const COUNTS: &str = "what a scheduler has done so far; that it is told is compared";
const HANDED_OVER: &str = "it is there where a request was handed over";
const IDS: &str = "ids follow each other; that they do is a law";
const DIGEST: &str = "how tokens are written before they are hashed is not known";

/// What may differ, each with its reason.
pub const MASKS: &[Mask] = &[
    always("**.id", Rule::Text, GENERATED),
    always("**.created", Rule::Number, GENERATED),
    always("**.model", Rule::Text, GENERATED),
    always("choices.*.text", Rule::Text, MODEL),
    always("choices.*.message.content", Rule::Text, MODEL),
    always("choices.*.delta.content", Rule::Text, MODEL),
    always("**.first_gen_tokens.*", Rule::Number, MODEL),
    always("**.encoded_opaque_state", Rule::Text, OPAQUE),
    always("**.ctx_info_endpoint.*", Rule::Text, OPAQUE),
    always("**.receive_ts", Rule::Number, GENERATED),
    always("**.transmit_ts", Rule::Number, GENERATED),
    always("**.max_batch_size", Rule::Number, GENERATED),
    always("**.event_id", Rule::Number, IDS),
    // A chat's prompt.
    chat("prompt_token_ids", Rule::Numbers),
    chat("prompt_token_ids_b64", Rule::Text),
    chat("usage.prompt_tokens", Rule::Number),
    chat("usage.total_tokens", Rule::Number),
    chat("usage.prompt_tokens_details.cached_tokens", Rule::Number),
];

const fn chat(at: &'static str, rule: Rule) -> Mask {
    mask(at, rule, When::OtherTokenizer, PROMPT)
}

/// What may differ in statistics, beside every number.
pub const COUNT_MASKS: &[Mask] = &[
    always("**.timestamp", Rule::Text, COUNTS),
    always("**.ctx_request_id", Rule::Ignored, HANDED_OVER),
];

/// What may differ where blocks are named by digests.
pub const DIGEST_MASKS: &[Mask] = &[
    always("**.event_id", Rule::Number, IDS),
    always("**.block_hash", Rule::Text, DIGEST),
    always("**.block_hashes.*", Rule::Text, DIGEST),
];

/// Shapes, or parts of them, that nothing is compared with: name, reason.
pub const LEFT_OUT: &[(&str, &str)] = &[
    (
        "cluster_storage_http.json",
        "the orchestrator's registry, which no worker has",
    ),
    (
        "disagg_request_id.json",
        "ids are made by whoever routes, not by an engine",
    ),
    (
        "logprobs_first_gen.json",
        "logits of the first token are the model's; an emulated engine has none to hand over",
    ),
    (
        "errors.json disagg_server",
        "what the orchestrator says, which no worker does",
    ),
    (
        "errors.json missing ctx params",
        "the orchestrator's judgement of an answer that an emulated engine never gives",
    ),
    (
        "errors.json /health with fatal engine error (then SIGINT self)",
        "the process is gone before it can be asked for certain",
    ),
    (
        "errors.json /health_generate",
        "an emulated engine that lives can generate one token",
    ),
    (
        "small_endpoints.json GET /v1/data_transceiver_state",
        "an emulated engine has no such state to tell; its 404 is compared",
    ),
    (
        "small_endpoints.json POST /_internal/tokenize",
        "another tokenizer cuts other tokens; its keys are compared by a law",
    ),
    (
        "kv_events_mm_and_salt.json multimodal",
        "multimodal content is not emulated",
    ),
    (
        "kv_events_offload_updated.json priority",
        "priorities of blocks are not emulated",
    ),
    (
        "kv_events_serializer_eras.json 1.0-1.1",
        "releases before 1.2 are not emulated",
    ),
    (
        "hash_vectors_v1_block_key.json extra ids and multimodal",
        "token_extra_id and multimodal content are not emulated",
    ),
];

static PLAIN: LazyLock<Masks> = LazyLock::new(|| Masks::new(MASKS));

/// Compares a document with a shape under [`MASKS`].
pub fn compare(name: &str, shape: &Value, seen: &Value, circumstances: &[When]) -> Vec<Difference> {
    of(
        name,
        shape::documents_under(&PLAIN, shape, seen, circumstances),
    )
}

/// Compares statistics with a shape: where there are numbers, and what stands beside them.
pub fn compare_counts(name: &str, shape: &Value, seen: &Value) -> Vec<Difference> {
    let masks = Masks::new(COUNT_MASKS);
    let (shape, seen) = (without_numbers(shape), without_numbers(seen));
    of(name, shape::documents_under(&masks, &shape, &seen, &[]))
}

/// The same with every number 0.
fn without_numbers(value: &Value) -> Value {
    match value {
        Value::Number(_) => 0.into(),
        Value::Array(items) => items.iter().map(without_numbers).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), without_numbers(value)));
            fields.collect::<serde_json::Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

/// Compares events whose blocks are named by digests with a shape.
pub fn compare_digests(name: &str, shape: &Value, seen: &Value) -> Vec<Difference> {
    of(
        name,
        shape::documents_under(&Masks::new(DIGEST_MASKS), shape, seen, &[]),
    )
}

/// Compares a stream with a shape, frame by frame.
pub fn compare_stream(name: &str, seen: &str) -> Vec<Difference> {
    let kind = Some("text/event-stream".to_owned());
    let read = |text: &str| Answer::read(200, kind.clone(), text);
    of(
        name,
        shape::answers_under(&PLAIN, &read(text(name)), &read(seen), &[]),
    )
}

fn of(name: &str, found: Vec<Difference>) -> Vec<Difference> {
    let found = found.into_iter();
    found.map(|difference| difference.of(name)).collect()
}

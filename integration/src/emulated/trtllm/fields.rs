//! Which fields a body may have: `extra="forbid"` on every model, so that any other one is refused.

use serde_json::Value;

use super::config::Era;
use super::request::{Refused, Route};

/// What both routes know.
const COMMON: &[&str] = &[
    "model",
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
    "lora_request",
    "prompt_ignore_length",
    "use_beam_search",
    "top_k",
    "top_p_min",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "early_stopping",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "add_special_tokens",
    "response_format",
    "disaggregated_params",
];

const COMPLETIONS: &[&str] = &["prompt", "suffix", "return_context_logits", "detokenize"];

const CHAT: &[&str] = &[
    "messages",
    "prompt_token_ids",
    "top_logprobs",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "add_generation_prompt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "cache_salt",
];

/// What came after 1.2.
const LATER: &[&str] = &["thinking_token_budget", "priority", "conversation_params"];

const PARAMS: &[&str] = &[
    "request_type",
    "first_gen_tokens",
    "ctx_request_id",
    "encoded_opaque_state",
    "draft_tokens",
    "disagg_request_id",
    "ctx_dp_rank",
    "ctx_info_endpoint",
    "schedule_style",
];

const LATER_PARAMS: &[&str] = &[
    "first_gen_log_probs",
    "first_gen_logits",
    "ctx_usage",
    "return_prompt_token_ids_b64",
    "resolved_thinking",
];

/// Fields of `disaggregated_params`.
pub(super) fn of_params(era: Era) -> impl Iterator<Item = &'static str> {
    let later = match era {
        Era::V12 => &[],
        Era::Main => LATER_PARAMS,
    };
    PARAMS.iter().chain(later).copied()
}

/// Refuses a body that has a field too many, or one that must be there too few.
pub(super) fn check(body: &Value, route: Route, era: Era) -> Result<(), Refused> {
    let (own, wanted) = match route {
        Route::Completions => (COMPLETIONS, "prompt"),
        Route::Chat => (CHAT, "messages"),
    };
    let later = match era {
        Era::V12 => &[],
        Era::Main => LATER,
    };
    let known: Vec<&str> = COMMON.iter().chain(own).chain(later).copied().collect();
    forbid(body, &known, &["body"])?;
    require(body, "model", &["body"])?;
    require(body, wanted, &["body"])?;
    let params = &body["disaggregated_params"];
    if params.is_null() {
        return Ok(());
    }
    let within = ["body", "disaggregated_params"];
    let known: Vec<&str> = of_params(era).collect();
    forbid(params, &known, &within)?;
    require(params, "request_type", &within)
}

fn forbid(object: &Value, known: &[&str], within: &[&str]) -> Result<(), Refused> {
    let Some(fields) = object.as_object() else {
        return Err(invalid(
            "model_attributes_type",
            within,
            "Input should be a valid dictionary or object to extract fields from",
            object,
        ));
    };
    let extra = fields
        .iter()
        .find(|(name, _)| !known.contains(&name.as_str()));
    match extra {
        None => Ok(()),
        Some((name, value)) => {
            let path = [within, &[name.as_str()]].concat();
            Err(invalid(
                "extra_forbidden",
                &path,
                "Extra inputs are not permitted",
                value,
            ))
        }
    }
}

fn require(object: &Value, name: &str, within: &[&str]) -> Result<(), Refused> {
    match object.get(name) {
        Some(_) => Ok(()),
        None => {
            let path = [within, &[name]].concat();
            Err(invalid("missing", &path, "Field required", object))
        }
    }
}

/// What is told of a body that is not valid.
pub(super) fn invalid(kind: &str, path: &[&str], message: &str, input: &Value) -> Refused {
    let path: Vec<String> = path.iter().map(|part| format!("'{part}'")).collect();
    let (path, input) = (path.join(", "), python(input));
    Refused::bad(format!(
        "[{{'type': '{kind}', 'loc': ({path}), 'msg': '{message}', 'input': {input}}}]"
    ))
}

/// A value as Python writes it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{text}'"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("'{name}': {}", python(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

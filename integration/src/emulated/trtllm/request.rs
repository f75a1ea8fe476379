//! What a body asks for, and the bodies that are refused before a token is computed.

use serde_json::{Value, json};

use super::super::core::Sampling;
use super::super::pool::CacheKeys;
use super::super::tokenizer::Tokenizer;
use super::super::wishes::{self, count, tokens};
use super::config::Config;
use super::fields;
use super::params::{Params, RequestType};

/// Which route a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Completions,
    Chat,
}

/// A request, understood.
#[expect(clippy::struct_excessive_bools, reason = "the API's own flags")]
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) route: Route,
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    /// Text is wanted, not token ids.
    pub(super) detokenize: bool,
    /// Of each prompt so many.
    pub(super) n: usize,
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) sampling: Sampling,
    pub(super) keys: CacheKeys,
    pub(super) params: Option<Params>,
}

impl Ask {
    pub(super) fn is_context_only(&self) -> bool {
        let params = self.params.as_ref();
        params.is_some_and(|params| params.request_type == RequestType::ContextOnly)
    }
}

/// An answer in place of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) message: String,
}

impl Refused {
    /// Whatever goes wrong is the client's fault, as far as the status says.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            message: message.into(),
        }
    }

    pub(super) fn body(&self) -> Value {
        json!({
            "object": "error", "message": self.message, "type": "BadRequestError", "param": null,
            "code": self.status,
        })
    }
}

/// Reads a body.
pub(super) fn read(
    body: &Value,
    route: Route,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Ask, Refused> {
    fields::check(body, route, config.era)?;
    stream_options(body, route)?;
    let params = match &body["disaggregated_params"] {
        Value::Null => None,
        params => Some(Params::read(params)?),
    };
    let prompts = match route {
        Route::Completions => prompts(&body["prompt"], tokenizer),
        Route::Chat => chat(body, tokenizer).map(|prompt| vec![prompt]),
    };
    let prompts = prompts.filter(|prompts| prompts.iter().all(|prompt| !prompt.is_empty()));
    let prompts = prompts.ok_or_else(|| Refused::bad("The prompt must not be empty."))?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let options = &body["stream_options"];
    Ok(Ask {
        route,
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        stream: body["stream"] == true,
        // Whoever gives options wants the usage, unless they say otherwise.
        include_usage: options.is_object() && options["include_usage"] != false,
        logprobs: body["logprobs"] == true || body["logprobs"].as_u64().is_some_and(|n| n > 0),
        detokenize: body["detokenize"] != false,
        n: count(&body["n"]).unwrap_or(1).max(1),
        prompts,
        sampling: sampling(body, longest, config, tokenizer)?,
        keys: keys(body),
        params,
    })
}

fn stream_options(body: &Value, route: Route) -> Result<(), Refused> {
    let message = match route {
        Route::Completions => "Stream options can only be defined when stream is true.",
        Route::Chat => "stream_options can only be set if stream is true",
    };
    if body["stream_options"].is_null() || body["stream"] == true {
        return Ok(());
    }
    let message = format!("Value error, {message}");
    Err(fields::invalid("value_error", &["body"], &message, body))
}

fn prompts(given: &Value, tokenizer: &Tokenizer) -> Option<Vec<Vec<u32>>> {
    let prompt = |given: &Value| wishes::prompt(given, tokenizer);
    match wishes::several(given) {
        Some(items) => items.iter().map(prompt).collect(),
        None => prompt(given).map(|prompt| vec![prompt]),
    }
}

/// A chat's tokens: those that context has found, or its own.
fn chat(body: &Value, tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    if !body["prompt_token_ids"].is_null() {
        return tokens(&body["prompt_token_ids"]);
    }
    let rendered = tokenizer.render_chat(&body["messages"])?;
    Some(tokenizer.encode(&rendered))
}

fn sampling(
    body: &Value,
    prompt: usize,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Sampling, Refused> {
    let longest = config.max_seq_len;
    let asked = ["max_completion_tokens", "max_tokens"];
    let asked = asked.iter().find_map(|name| count(&body[*name]));
    let limit = asked.unwrap_or(longest.saturating_sub(prompt));
    if limit == 0 || prompt + limit > longest {
        // The real one's words were not read.
        return Err(Refused::bad(format!(
            "The sum of prompt length ({prompt}) and max_tokens ({limit}) should not exceed max_seq_len ({longest})"
        )));
    }
    Ok(Sampling {
        limit,
        min_tokens: count(&body["min_tokens"]).unwrap_or(0),
        seed: wishes::sampling_seed(&body["temperature"], body["seed"].as_u64()),
        stop: wishes::stop_texts(&body["stop"]),
        include_stop: body["include_stop_str_in_output"] == true,
        stop_tokens: wishes::stop_tokens(&body["stop_token_ids"]),
        ignore_end: body["ignore_eos"] == true,
        always: None,
        one_of: one_of(body, tokenizer),
    })
}

/// Texts that a grammar allows: a few, so that the KV still decides.
fn one_of(body: &Value, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
    let kind = body["response_format"]["type"].as_str();
    let grammar = kind.is_some_and(|kind| kind.starts_with("json"));
    let texts = wishes::objects("value").into_iter();
    texts
        .filter(|_| grammar)
        .map(|text| tokenizer.encode(&text))
        .collect()
}

fn keys(body: &Value) -> CacheKeys {
    let lora = &body["lora_request"];
    let name = ["lora_name", "name"]
        .iter()
        .find_map(|key| lora[*key].as_str());
    let id = ["lora_int_id", "id"]
        .iter()
        .find_map(|key| lora[*key].as_u64());
    CacheKeys {
        lora: name.map(|name| (name.to_owned(), id.unwrap_or(1))),
        salt: body["cache_salt"].as_str().map(str::to_owned),
        ..CacheKeys::default()
    }
}

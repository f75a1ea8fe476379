//! What a body asks for, and the bodies that vLLM refuses before a token is computed. The messages are the recorded ones.

use serde_json::Value;

use super::super::core::{Handoff, Remote, Sampling};
use super::super::pool::CacheKeys;
use super::super::tokenizer::{self, Tokenizer};
use super::super::wishes::{self, count, objects, token};
use super::config::Config;

/// A completion or a chat, understood.
#[expect(clippy::struct_excessive_bools, reason = "the API's own flags")]
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) chat: bool,
    pub(super) model: String,
    /// Several for a batch.
    pub(super) prompts: Vec<Vec<u32>>,
    /// Choices per prompt.
    pub(super) n: usize,
    pub(super) beam: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) sampling: Sampling,
    pub(super) return_token_ids: bool,
    /// How many alternatives per token; `None` for no logprobs.
    pub(super) logprobs: Option<usize>,
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) echo: bool,
    /// Text of each prompt token, where the answer tells it.
    pub(super) echoed: Vec<Vec<String>>,
    /// The function that the answer must call.
    pub(super) tool: Option<String>,
    pub(super) keys: CacheKeys,
    pub(super) handoff: Handoff,
    pub(super) report_hits: bool,
}

impl Ask {
    /// Its prompt is computed from the beginning, for its logits.
    pub(super) fn wants_prompt_logits(&self) -> bool {
        self.prompt_logprobs.is_some() || (self.echo && self.logprobs.is_some())
    }
}

/// An answer in place of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) param: Option<&'static str>,
}

impl Refused {
    fn bad(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self {
            status: 400,
            kind: "BadRequestError",
            message: message.into(),
            param,
        }
    }
}

/// Reads a body of `/v1/completions` or `/v1/chat/completions`.
pub(super) fn read(
    body: &Value,
    chat: bool,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Ask, Refused> {
    if !body.is_object() {
        return Err(no_object(body));
    }
    let model = known_model(body, config)?;
    let mut prompts = if chat {
        vec![chat_prompt(body, tokenizer)?]
    } else {
        completion_prompts(body, tokenizer)?
    };
    truncate(&mut prompts, body);
    let stream = body["stream"] == true;
    if !body["stream_options"].is_null() && !stream {
        return Err(Refused::bad(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            Some("stream_options"),
        ));
    }
    if !body["suffix"].is_null() && !body["prompt"].is_string() {
        let message = "suffix requires text prompt input for FIM completion rendering";
        return Err(Refused::bad(message, Some("suffix")));
    }
    if let Some(temperature) = body["temperature"].as_f64().filter(|degree| *degree < 0.0) {
        let message = format!(
            "temperature must be non-negative, got {temperature:?}. (parameter=temperature, value={temperature:?})"
        );
        return Err(Refused::bad(message, Some("temperature")));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let sampling = sampling(body, chat, longest, config, tokenizer)?;
    let beam = body["use_beam_search"] == true;
    let n = count(&body["n"]).unwrap_or(1);
    if n > 1 && !beam && body["temperature"] == 0 {
        let message = format!("n must be 1 when using greedy sampling, got {n}.");
        return Err(Refused::bad(message, None));
    }
    let (tool, sampling) = with_tool(body, sampling, tokenizer);
    let echo = body["echo"] == true;
    let pieces = |prompt: &Vec<u32>| prompt.iter().map(|token| tokenizer.text(*token)).collect();
    Ok(Ask {
        echo,
        echoed: if echo {
            prompts.iter().map(pieces).collect()
        } else {
            Vec::new()
        },
        chat,
        keys: keys(body, &model, config),
        model,
        prompts,
        n,
        beam,
        stream,
        include_usage: body["stream_options"]["include_usage"] == true,
        continuous_usage: body["stream_options"]["continuous_usage_stats"] == true,
        sampling,
        return_token_ids: body["return_token_ids"] == true,
        logprobs: logprobs(body, chat),
        prompt_logprobs: count(&body["prompt_logprobs"]),
        tool,
        // Without a connector nobody looks at what is asked of it.
        handoff: if beam || config.role.is_none() {
            Handoff::None
        } else {
            handoff(&body["kv_transfer_params"])
        },
        report_hits: body["vllm_xargs"]["kv_cache_report_mode"] == "full",
    })
}

/// A body that is JSON, but no object.
fn no_object(body: &Value) -> Refused {
    let input = match body {
        Value::String(text) => format!("'{text}'"),
        Value::Null => "None".to_owned(),
        other => other.to_string(),
    };
    let message = format!(
        "1 validation error:\n  {{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid \
         dictionary or object to extract fields from', 'input': {input}}}"
    );
    Refused {
        kind: "Bad Request",
        ..Refused::bad(message, Some("body"))
    }
}

fn known_model(body: &Value, config: &Config) -> Result<String, Refused> {
    let Some(model) = body["model"].as_str() else {
        return Ok(config.served_model_name.clone());
    };
    let known = std::iter::once(&config.served_model_name).chain(&config.loras);
    if known.clone().any(|known| known == model) {
        return Ok(model.to_owned());
    }
    let aliases: Vec<&str> = known.map(String::as_str).collect();
    let aliases = aliases.join(", ");
    Err(Refused {
        status: 404,
        kind: "NotFoundError",
        message: format!("The model `{model}` does not exist. Valid aliases: {aliases}."),
        param: Some("model"),
    })
}

/// A chat's tokens.
pub(super) fn chat_prompt(body: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, Refused> {
    let continued = body["continue_final_message"] == true;
    let generation = body["add_generation_prompt"] != false && !continued;
    if body["messages"].as_array().is_some_and(Vec::is_empty) {
        let message =
            "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(Refused::bad(message, None));
    }
    let rendered = tokenizer::render_chat(&body["messages"], generation);
    let mut rendered = rendered
        .filter(|_| body["messages"].is_array())
        .ok_or_else(|| Refused::bad("Input should be a valid list", Some("messages")))?;
    if continued {
        rendered.truncate(rendered.len() - "<|im_end|>\n".len());
    }
    Ok(tokenizer.encode(&rendered))
}

fn completion_prompts(body: &Value, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, Refused> {
    let prompt = &body["prompt"];
    let nothing = prompt.is_null() || prompt == "" || prompt.as_array().is_some_and(Vec::is_empty);
    if nothing {
        let message =
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
        return Err(Refused::bad(message, Some("prompt")));
    }
    let several = match prompt {
        Value::Array(items) if items.iter().all(|item| !item.is_number()) => items.clone(),
        one => vec![one.clone()],
    };
    let tokens = several.iter().map(|prompt| {
        let tokens = wishes::prompt(prompt, tokenizer).filter(|tokens| !tokens.is_empty());
        tokens.ok_or_else(|| invalid_prompt(prompt))
    });
    let prompts: Vec<_> = tokens.collect::<Result<_, _>>()?;
    if prompts.is_empty() {
        Err(invalid_prompt(prompt))
    } else {
        Ok(prompts)
    }
}

/// The four forms that a prompt may have, and that it has none of them.
fn invalid_prompt(prompt: &Value) -> Refused {
    let input = match prompt {
        Value::Object(object) => format!("'<dict of {} items>'", object.len()),
        other => other.to_string(),
    };
    let list = ("list_type", "Input should be a valid list");
    let text = ("string_type", "Input should be a valid string");
    let errors = [list, list, text, list].map(|(kind, message)| {
        format!(
            "\n  {{'type': '{kind}', 'loc': 'body.prompt', 'msg': '{message}', 'input': {input}}}"
        )
    });
    let message = format!("4 validation errors:{}", errors.concat());
    Refused {
        kind: "Bad Request",
        ..Refused::bad(message, Some("body.prompt"))
    }
}

fn truncate(prompts: &mut [Vec<u32>], body: &Value) {
    if let Some(keep) = count(&body["truncate_prompt_tokens"]) {
        for prompt in prompts {
            prompt.drain(..prompt.len().saturating_sub(keep));
        }
    }
}

fn sampling(
    body: &Value,
    chat: bool,
    prompt: usize,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Sampling, Refused> {
    let limit = limit(body, chat, prompt, config)?;
    let min_tokens = count(&body["min_tokens"]).unwrap_or(0);
    if min_tokens > limit {
        let message = format!(
            "min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}."
        );
        return Err(Refused::bad(message, None));
    }
    Ok(Sampling {
        limit,
        min_tokens,
        seed: wishes::sampling_seed(&body["temperature"], body["seed"].as_u64()),
        stop: wishes::stop_texts(&body["stop"]),
        include_stop: body["include_stop_str_in_output"] == true,
        stop_tokens: wishes::stop_tokens(&body["stop_token_ids"]),
        ignore_end: body["ignore_eos"] == true,
        always: always(&body["logit_bias"]),
        one_of: grammar(body)?
            .iter()
            .map(|text| tokenizer.encode(text))
            .collect(),
    })
}

fn limit(body: &Value, chat: bool, prompt: usize, config: &Config) -> Result<usize, Refused> {
    let longest = config.max_model_len;
    if prompt >= longest {
        let message = format!(
            "This model's maximum context length is {longest} tokens. However, your prompt contains {prompt} input tokens, \
             which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
             (parameter=input_tokens, value={prompt})"
        );
        return Err(Refused::bad(message, Some("input_tokens")));
    }
    // In a chat both names exist, and the newer one wins.
    let asked = ["max_completion_tokens", "max_tokens"]
        .into_iter()
        .filter(|key| chat || *key == "max_tokens")
        .find_map(|key| body[key].as_u64());
    let asked = asked.map(|asked| usize::try_from(asked).unwrap_or(usize::MAX));
    match asked {
        Some(0) => Err(Refused::bad(
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            Some("max_tokens"),
        )),
        Some(asked) => Ok(asked.min(longest - prompt)),
        None if chat => Ok(longest - prompt),
        None => Ok(16.min(longest - prompt)),
    }
}

/// A bias of 100 leaves no choice.
fn always(bias: &Value) -> Option<u32> {
    let biases = bias.as_object()?;
    let (token, _) = biases
        .iter()
        .find(|(_, bias)| bias.as_f64() >= Some(100.0))?;
    token.parse().ok()
}

/// Texts that a grammar allows: a few, so that the KV still decides.
fn grammar(body: &Value) -> Result<Vec<String>, Refused> {
    let structured = &body["structured_outputs"];
    if let Some(choices) = structured["choice"].as_array() {
        return Ok(choices
            .iter()
            .filter_map(|choice| choice.as_str().map(str::to_owned))
            .collect());
    }
    let schema = match body["response_format"]["type"].as_str() {
        Some("json_schema") => &body["response_format"]["json_schema"]["schema"],
        Some("json_object") => return Ok(objects("value")),
        _ => &structured["json"],
    };
    if let Some(regex) = structured["regex"].as_str() {
        return Ok(vec![
            regex.chars().filter(char::is_ascii_alphanumeric).collect(),
        ]);
    }
    match schema["type"].as_str() {
        None => Ok(Vec::new()),
        Some(
            known @ ("object" | "string" | "integer" | "number" | "boolean" | "array" | "null"),
        ) => {
            let property = schema["properties"]
                .as_object()
                .and_then(|object| object.keys().next());
            Ok(objects(property.map_or(known, String::as_str)))
        }
        Some(unknown) => {
            let message = format!("Grammar error: Invalid type: {unknown}");
            Err(Refused::bad(message, None))
        }
    }
}

/// A tool that must be called is a grammar, too.
fn with_tool(
    body: &Value,
    mut sampling: Sampling,
    tokenizer: &Tokenizer,
) -> (Option<String>, Sampling) {
    let named = body["tool_choice"]["function"]["name"].as_str();
    let required = (body["tool_choice"] == "required")
        .then(|| body["tools"][0]["function"]["name"].as_str())
        .flatten();
    let tool = named.or(required).map(str::to_owned);
    if tool.is_some() {
        sampling.one_of = objects("argument")
            .iter()
            .map(|text| tokenizer.encode(text))
            .collect();
    }
    (tool, sampling)
}

fn logprobs(body: &Value, chat: bool) -> Option<usize> {
    if chat {
        let wanted = body["logprobs"] == true;
        wanted.then(|| count(&body["top_logprobs"]).unwrap_or(0))
    } else {
        count(&body["logprobs"])
    }
}

fn keys(body: &Value, model: &str, config: &Config) -> CacheKeys {
    let lora = config.loras.iter().position(|lora| lora == model);
    CacheKeys {
        lora: lora.map(|at| (model.to_owned(), at as u64 + 1)),
        salt: body["cache_salt"].as_str().map(str::to_owned),
        session: body["session_id"]
            .as_str()
            .or(body["vllm_xargs"]["session_id"].as_str())
            .map(str::to_owned),
        extra: None,
    }
}

/// What `kv_transfer_params` ask of the connector.
fn handoff(params: &Value) -> Handoff {
    if params["do_remote_prefill"] == true {
        let text = |key: &str| params[key].as_str().unwrap_or_default().to_owned();
        let groups = params["remote_block_ids"].as_array().into_iter().flatten();
        let blocks = groups.flat_map(|group| group.as_array().cloned().unwrap_or_default());
        let remote = Remote {
            engine_id: text("remote_engine_id"),
            host: text("remote_host"),
            port: params["remote_port"]
                .as_u64()
                .and_then(|port| u16::try_from(port).ok())
                .unwrap_or(0),
            request_id: text("remote_request_id"),
            blocks: blocks.filter_map(|id| token(&id)).collect(),
            keep_alive: !params["tp_size"].is_null(),
            cached: count(&params["remote_prefill_cached_tokens"]).unwrap_or(0),
            first_token: None,
        };
        let nameless = remote.request_id.is_empty() && !remote.blocks.is_empty();
        return if nameless {
            Handoff::FetchOfNothing
        } else {
            Handoff::Fetch(remote)
        };
    }
    if params["do_remote_decode"] == true {
        return Handoff::Hold;
    }
    Handoff::None
}

//! What a body asks for, and the bodies that SGLang refuses before a token is computed.

use serde_json::{Value, json};

use super::super::core::Sampling;
use super::super::pool::CacheKeys;
use super::super::tokenizer::Tokenizer;
use super::super::wishes::{self, count};
use super::config::{Config, Mode};
use super::leg::Bootstrap;

/// Which route a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Generate,
    Completions,
    Chat,
}

/// A request, understood.
#[expect(clippy::struct_excessive_bools, reason = "the API's own flags")]
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) route: Route,
    pub(super) model: String,
    /// The answer is a list.
    pub(super) batch: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    /// Of each prompt so many.
    pub(super) n: usize,
    pub(super) parts: Vec<Part>,
    pub(super) sampling: Sampling,
    pub(super) keys: CacheKeys,
    pub(super) routed_dp_rank: Option<u64>,
    pub(super) prefill_dp_rank: Option<u64>,
}

/// One prompt of it.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) prompt: Vec<u32>,
    pub(super) rid: String,
    pub(super) bootstrap: Option<Bootstrap>,
}

/// An answer in place of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) message: String,
    /// Found out by the scheduler only: a stream has begun by then.
    pub(super) late: bool,
}

impl Refused {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: "BadRequestError",
            message: message.into(),
            late: false,
        }
    }

    /// As this route says it.
    pub(super) fn body(&self, route: Route) -> Value {
        match route {
            Route::Generate => json!({"error": {"message": self.message}}),
            _ => error(self.status, self.kind, &self.message),
        }
    }
}

/// An error in the shape of the OpenAI routes.
pub(super) fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"object": "error", "message": message, "type": kind, "param": null, "code": status})
}

/// Reads a body.
pub(super) fn read(
    body: &Value,
    route: Route,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Ask, Refused> {
    if !body.is_object() {
        return Err(Refused {
            kind: "Bad Request",
            ..Refused::bad("Input should be a valid dictionary")
        });
    }
    let (prompts, batch) = prompts(body, route, config, tokenizer)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let sampling = sampling(body, route, longest, config, tokenizer)?;
    let n = match route {
        Route::Generate => count(&body["sampling_params"]["n"]),
        _ => count(&body["n"]),
    };
    let ask = Ask {
        route,
        model: body["model"]
            .as_str()
            .unwrap_or(&config.served_model_name)
            .to_owned(),
        batch,
        stream: body["stream"] == true,
        include_usage: body["stream_options"]["include_usage"] == true,
        logprobs: body["return_logprob"] == true || !body["logprobs"].is_null(),
        n: n.unwrap_or(1).max(1),
        parts: parts(body, prompts, config)?,
        sampling,
        keys: keys(body),
        routed_dp_rank: body["routed_dp_rank"]
            .as_u64()
            .or(body["data_parallel_rank"].as_u64()),
        prefill_dp_rank: body["disagg_prefill_dp_rank"].as_u64(),
    };
    without_room(&ask, config)?;
    Ok(ask)
}

/// A disaggregated engine does nothing without a room.
fn without_room(ask: &Ask, config: &Config) -> Result<(), Refused> {
    let lonely = ask.parts.iter().find(|part| part.bootstrap.is_none());
    match lonely.filter(|_| config.mode != Mode::Null) {
        None => Ok(()),
        Some(part) => Err(Refused {
            late: true,
            ..Refused::bad(format!(
                "Invalid request: Disaggregated request received without bootstrap room id. req.rid='{}'",
                part.rid
            ))
        }),
    }
}

fn prompts(
    body: &Value,
    route: Route,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<(Vec<Vec<u32>>, bool), Refused> {
    let given = match route {
        Route::Chat => return Ok((vec![chat_prompt(body, config, tokenizer)?], false)),
        Route::Completions => &body["prompt"],
        Route::Generate if body["input_ids"].is_null() => &body["text"],
        Route::Generate => &body["input_ids"],
    };
    let several = wishes::several(given);
    let prompt =
        |given: &Value| wishes::prompt(given, tokenizer).filter(|tokens| !tokens.is_empty());
    let prompts: Option<Vec<_>> = match several {
        Some(items) => items.iter().map(prompt).collect(),
        None => prompt(given).map(|prompt| vec![prompt]),
    };
    let prompts = prompts.ok_or_else(|| match route {
        Route::Generate => {
            Refused::bad("Either text, input_ids or input_embeds should be provided.")
        }
        _ => invalid_prompt(given),
    })?;
    Ok((prompts, several.is_some()))
}

/// The four forms that a prompt may have, and that it has none of them.
fn invalid_prompt(prompt: &Value) -> Refused {
    let forms = [
        ("list_type", "list[int]", "list"),
        ("list_type", "list[list[int]]", "list"),
        ("string_type", "str", "string"),
        ("list_type", "list[str]", "list"),
    ];
    let errors = forms.map(|(kind, form, wanted)| {
        format!(
            "\n  {{'type': '{kind}', 'loc': ('body', 'prompt', '{form}'), 'msg': 'Input should be a valid {wanted}', \
             'input': {prompt}}}"
        )
    });
    Refused {
        kind: "Bad Request",
        ..Refused::bad(format!("4 validation errors:{}", errors.concat()))
    }
}

/// What comes between the text parts of a message.
const PART_SEPARATOR: &str = " ";

/// The tokens of a chat that is to be answered.
fn chat_prompt(body: &Value, config: &Config, tokenizer: &Tokenizer) -> Result<Vec<u32>, Refused> {
    chat_tokens(body, true, config, tokenizer)
}

/// A chat's tokens.
pub(super) fn chat_tokens(
    body: &Value,
    answer_follows: bool,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, Refused> {
    let mut messages = body["messages"].clone();
    messages
        .as_array_mut()
        .into_iter()
        .flatten()
        .for_each(join_parts);
    let rendered = Some(&messages)
        .filter(|messages| messages.get(0).is_some())
        .and_then(|messages| tokenizer.render_messages(messages, answer_follows));
    let rendered = rendered.ok_or_else(|| Refused::bad("Messages cannot be empty."))?;
    let tools = Some(&body["tools"]).filter(|tools| config.own_way_with_tools && tools.is_array());
    let tools = tools.map(Value::to_string).unwrap_or_default();
    Ok(tokenizer.encode(&(tools + &rendered)))
}

/// A message's text parts become one text.
fn join_parts(message: &mut Value) {
    let parts = message["content"].as_array();
    let texts = parts.and_then(|parts| parts.iter().map(|part| part["text"].as_str()).collect());
    let texts: Option<Vec<&str>> = texts;
    if let Some(texts) = texts {
        message["content"] = texts.join(PART_SEPARATOR).into();
    }
}

fn sampling(
    body: &Value,
    route: Route,
    prompt: usize,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<Sampling, Refused> {
    let params = match route {
        Route::Generate => &body["sampling_params"],
        _ => body,
    };
    let names = match route {
        Route::Generate => ["max_new_tokens", "max_new_tokens"],
        _ => ["max_completion_tokens", "max_tokens"],
    };
    let longest = config.context_length;
    if prompt >= longest {
        return Err(Refused::bad(format!(
            "The input ({prompt} tokens) is longer than the model's context length ({longest} tokens)."
        )));
    }
    let asked = names.iter().find_map(|name| count(&params[*name]));
    let limit = asked.unwrap_or(match route {
        Route::Generate => 128.min(longest - prompt),
        Route::Completions => 16.min(longest - prompt),
        Route::Chat => longest - prompt,
    });
    if prompt + limit > longest {
        return Err(Refused::bad(format!(
            "Requested token count exceeds the model's maximum context length of {longest} tokens: {prompt} tokens of \
             input and {limit} of completion."
        )));
    }
    let min_tokens = [&params["min_new_tokens"], &params["min_tokens"]];
    Ok(Sampling {
        limit,
        min_tokens: min_tokens.into_iter().find_map(count).unwrap_or(0),
        seed: seed(params),
        stop: wishes::stop_texts(&params["stop"]),
        include_stop: params["no_stop_trim"] == true,
        stop_tokens: wishes::stop_tokens(&params["stop_token_ids"]),
        ignore_end: params["ignore_eos"] == true,
        always: None,
        one_of: one_of(params, tokenizer),
    })
}

fn seed(params: &Value) -> u64 {
    let seed = params["sampling_seed"].as_u64().or(params["seed"].as_u64());
    wishes::sampling_seed(&params["temperature"], seed)
}

/// Texts that a grammar allows: a few, so that the KV still decides.
fn one_of(params: &Value, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
    let grammar = !params["json_schema"].is_null()
        || params["response_format"]["type"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("json"));
    let texts = wishes::objects("value").into_iter();
    texts
        .filter(|_| grammar)
        .map(|text| tokenizer.encode(&text))
        .collect()
}

fn keys(body: &Value) -> CacheKeys {
    let text = |key: &str| body[key].as_str().map(str::to_owned);
    CacheKeys {
        lora: text("lora_path").map(|name| (name, 0)),
        salt: text("cache_salt"),
        extra: text("extra_key"),
        session: text("session_id"),
    }
}

/// Each prompt with its id and where its other leg is.
fn parts(body: &Value, prompts: Vec<Vec<u32>>, config: &Config) -> Result<Vec<Part>, Refused> {
    let batch = prompts.len();
    let of = |value: &Value, at: usize| match value {
        Value::Array(items) => items.get(at).cloned().unwrap_or_default(),
        other => other.clone(),
    };
    if let Some(rooms) = body["bootstrap_room"].as_array()
        && rooms.len() != batch
    {
        return Err(Refused::bad(
            "The length of bootstrap_room should be equal to the batch size.",
        ));
    }
    let scalar = !body["bootstrap_room"].is_array();
    let part = |(at, prompt): (usize, Vec<u32>)| {
        let room = of(&body["bootstrap_room"], at).as_u64();
        let host = of(&body["bootstrap_host"], at);
        let port = of(&body["bootstrap_port"], at).as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok());
        Part {
            prompt,
            rid: rid(&body["rid"], at, batch),
            bootstrap: room.map(|room| Bootstrap {
                host: host.as_str().unwrap_or_default().to_owned(),
                port: port.unwrap_or(config.bootstrap_port),
                room: if scalar { room + at as u64 } else { room },
            }),
        }
    };
    Ok(prompts.into_iter().enumerate().map(part).collect())
}

fn rid(given: &Value, at: usize, batch: usize) -> String {
    match given {
        Value::Array(ids) => ids.get(at).and_then(Value::as_str).map(str::to_owned),
        Value::String(id) if batch == 1 => Some(id.clone()),
        Value::String(id) => Some(format!("{id}_{at}")),
        _ => None,
    }
    .unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()))
}

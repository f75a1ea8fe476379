//! What must be new in a request before it is sent again, listed once, and what that changes in the answer that is expected.
//!
//! - The model is called what the target calls it.
//! - `cache_salt`: each case has one of its own, so no case finds what another one left in a cache. Cases about events keep
//!   the recorded one, on engines of their own.
//! - `kv_transfer_params` of a decode leg: those that the target's own prefill has just returned, changed as the case says.
//! - `X-Request-Id` and request ids in bodies: ids that were never used before.
//! - Stop strings and stop token ids that were taken from the recorded model's text: from the target's own text.
//! - Prompts of token ids are shifted where the case needs a first token that is whole text.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::{Answer, Body, Frame};
use super::http::Request;
use super::laws::BLOCK_SIZE;
use super::recording::{Recording, Source};

/// Ids that prompts are made of: above the special and single-byte tokens of both tokenizers, below their ends.
const PROMPT_IDS: std::ops::Range<u64> = 50..950;

/// What is new in a case.
#[derive(Debug, Clone, Default)]
pub struct Fresh {
    /// The target's name of the model.
    pub model: String,
    /// The case's own salt; `None` keeps what was recorded.
    pub salt: Option<String>,
    /// What the last prefill returned.
    pub ticket: Value,
    /// Ids, in the words of the recording and in the case's own.
    pub ids: BTreeMap<String, String>,
    /// Stop strings and stop token ids, as recorded (as JSON text) and the case's own.
    pub stops: BTreeMap<String, Value>,
    /// Added to each token id of a prompt.
    pub shift: u64,
}

impl Fresh {
    /// The recorded request, made fresh.
    pub fn request(&self, recording: &Recording) -> Request {
        let headers = recording.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), self.renamed(value)));
        Request {
            method: recording.method.clone(),
            path: recording.path.clone(),
            headers: headers.collect(),
            body: recording
                .request
                .as_ref()
                .map(|body| self.body(recording, body)),
        }
    }

    fn body(&self, recording: &Recording, recorded: &Value) -> Value {
        if !recorded.is_object() {
            return recorded.clone();
        }
        let mut body = recorded.clone();
        if body["model"] == "tiny" {
            body["model"] = self.model.as_str().into();
        }
        if let Some(salt) = self
            .salt
            .as_ref()
            .filter(|_| is_generation(&recording.path))
        {
            body["cache_salt"] = salt.as_str().into();
        }
        let decodes = body["kv_transfer_params"]["remote_request_id"].is_string();
        if decodes && !self.ticket.is_null() {
            body["kv_transfer_params"] = self.ticket.clone();
        }
        self.shift_prompt(&mut body);
        for key in ["stop", "stop_token_ids"] {
            for stop in body
                .get_mut(key)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                self.replace_stop(stop);
            }
        }
        for id in body
            .get_mut("request_ids")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            *id = self.renamed(id.as_str().unwrap_or_default()).into();
        }
        body
    }

    /// Shifts a prompt of token ids.
    pub fn shift_prompt(&self, body: &mut Value) {
        let span = PROMPT_IDS.end - PROMPT_IDS.start;
        for id in body
            .get_mut("prompt")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(number) = id
                .as_u64()
                .filter(|number| PROMPT_IDS.contains(number) && self.shift > 0)
            {
                *id = (PROMPT_IDS.start + (number - PROMPT_IDS.start + self.shift) % span).into();
            }
        }
    }

    fn replace_stop(&self, stop: &mut Value) {
        if let Some(own) = self.stops.get(&stop.to_string()) {
            *stop = own.clone();
        }
    }

    fn renamed(&self, text: &str) -> String {
        let found = self
            .ids
            .iter()
            .find(|(recorded, _)| text.contains(recorded.as_str()));
        found.map_or_else(
            || text.to_owned(),
            |(recorded, own)| text.replace(recorded, own),
        )
    }

    /// The answer that the recorded one becomes.
    pub fn expected(&self, recording: &Recording) -> Answer {
        let mut answer = recording.answer.clone();
        match &mut answer.body {
            Body::Json(document) => self.expect(recording, document),
            Body::Stream(frames) => {
                for frame in frames {
                    if let Frame::Data(document) = frame {
                        self.expect(recording, document);
                    }
                }
            }
            Body::Text(_) => {}
        }
        answer
    }

    fn expect(&self, recording: &Recording, document: &mut Value) {
        let rename = |value: &mut Value| {
            if value == "tiny" {
                *value = self.model.as_str().into();
            }
        };
        document.get_mut("model").map(rename);
        for model in document
            .get_mut("data")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            model.get_mut("id").map(rename);
            model.get_mut("parent").map(rename);
        }
        if let Some(id) = document.get("id").and_then(Value::as_str) {
            document["id"] = self.renamed(id).into();
        }
        for choice in document
            .get_mut("choices")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            choice
                .get_mut("stop_reason")
                .into_iter()
                .for_each(|stop| self.replace_stop(stop));
        }
        if recording.source == Source::Oot && document.get("kv_transfer_params").is_some() {
            // Another connector's, which no target has.
            document["kv_transfer_params"] = Value::Null;
        }
    }
}

/// True for the paths whose bodies take a `cache_salt`.
fn is_generation(path: &str) -> bool {
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/inference/v1/generate",
    ]
    .contains(&path)
}

/// What the target's `/tokenize` must be asked to count a request's prompt; `None` if the prompt is made of token ids.
pub fn tokenize_body(request: &Request) -> Option<Value> {
    let body = request
        .body
        .as_ref()
        .filter(|_| is_generation(&request.path))?;
    if let Some(prompt) = body["prompt"].as_str() {
        return Some(json!({"model": body["model"], "prompt": prompt}));
    }
    let mut asked = json!({"model": body["model"], "messages": body.get("messages")?});
    for key in ["add_generation_prompt", "continue_final_message", "tools"] {
        if let Some(value) = body.get(key) {
            asked[key] = value.clone();
        }
    }
    Some(asked)
}

/// Rewrites what an answer counts for a prompt that has `tokens` tokens on the target.
pub fn expect_prompt_of(tokens: u64, answer: &mut Answer) {
    let documents: Vec<&mut Value> = match &mut answer.body {
        Body::Json(document) => vec![document],
        Body::Stream(frames) => {
            let data = |frame| match frame {
                &mut Frame::Data(ref mut document) => Some(document),
                _ => None,
            };
            frames.iter_mut().filter_map(data).collect()
        }
        Body::Text(_) => Vec::new(),
    };
    for document in documents {
        let Some(recorded) = document["usage"]["prompt_tokens"]
            .as_u64()
            .filter(|recorded| *recorded != tokens)
        else {
            continue;
        };
        let whole = |tokens: u64| (tokens.max(1) - 1) / BLOCK_SIZE * BLOCK_SIZE;
        let moved = |value: &mut Value| {
            if let Some(number) = value.as_u64() {
                *value = (number + tokens).saturating_sub(recorded).into();
            }
        };
        let cached = |value: &mut Value| {
            if value.as_u64() == Some(whole(recorded)) {
                *value = whole(tokens).into();
            }
        };
        let created = |value: &mut Value| {
            // Whole blocks that were computed: all of the prompt's but those of the hit.
            if let Some(number) = value.as_u64().filter(|number| *number > 0) {
                let blocks = |tokens: u64| tokens / BLOCK_SIZE * BLOCK_SIZE;
                *value = (number + blocks(tokens))
                    .saturating_sub(blocks(recorded))
                    .into();
            }
        };
        moved(&mut document["usage"]["prompt_tokens"]);
        moved(&mut document["usage"]["total_tokens"]);
        document
            .pointer_mut("/usage/prompt_tokens_details/cached_tokens")
            .map(cached);
        document
            .pointer_mut("/usage/prompt_tokens_details/created_cache_tokens")
            .map(created);
        document
            .pointer_mut("/kv_transfer_params/remote_prefill_cached_tokens")
            .map(cached);
        if let Some(held) = document.pointer_mut("/kv_transfer_params/remote_num_tokens") {
            moved(held);
            let blocks = held.as_u64().unwrap_or_default().div_ceil(BLOCK_SIZE);
            let blocks: Vec<u64> = (0..blocks).collect();
            document["kv_transfer_params"]["remote_block_ids"] = json!([blocks]);
        }
    }
}

//! What TensorRT-LLM says, in its own shapes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::super::legs::{Ending, Said};
use super::super::tokenizer::Tokenizer;
use super::config::{Config, Era};
use super::request::{Ask, Route};

/// What every answer says of when it was made.
pub(super) const CREATED: u64 = 1_796_005_000;

/// All that an answer is made of.
pub(super) struct Answer<'a> {
    pub(super) ask: &'a Ask,
    pub(super) config: &'a Config,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) id: String,
    /// `disaggregated_params` of each choice, or null.
    pub(super) told: Vec<Value>,
}

/// A new id.
pub(super) fn id(route: Route) -> String {
    let prefix = match route {
        Route::Completions => "cmpl",
        Route::Chat => "chatcmpl",
    };
    format!("{prefix}-{:032x}", rand::random::<u128>())
}

impl Answer<'_> {
    /// An unary answer: all fields, whether they say something or not.
    pub(super) fn whole(&self, said: &[Said]) -> Value {
        let choices = said.iter().enumerate();
        let choices: Vec<Value> = choices.map(|(at, said)| self.choice(at, said)).collect();
        let chat = self.ask.route == Route::Chat;
        let mut whole = json!({
            "id": self.id, "object": if chat { "chat.completion" } else { "text_completion" },
            "created": CREATED, "model": self.ask.model, "choices": choices, "usage": self.usage(said),
            "prompt_token_ids": null,
        });
        if chat && self.config.era == Era::Main {
            whole["prompt_token_ids_b64"] = Value::Null;
        }
        self.put_prompt(&mut whole);
        whole
    }

    /// Context tells which tokens the prompt is, so that generation need not find out again.
    fn put_prompt(&self, whole: &mut Value) {
        let params = self.ask.params.as_ref();
        let Some(params) = params.filter(|_| self.ask.is_context_only()) else {
            return;
        };
        let prompt = &self.ask.prompts[0];
        if params.ids_in_base64 && self.ask.route == Route::Chat {
            let bytes: Vec<u8> = prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
            whole["prompt_token_ids_b64"] = BASE64_STANDARD.encode(bytes).into();
        } else {
            whole["prompt_token_ids"] = prompt.as_slice().into();
        }
    }

    fn choice(&self, index: usize, said: &Said) -> Value {
        let mut choice = json!({
            "index": index, "logprobs": self.logprobs(&said.tokens), "finish_reason": reason(said),
            "stop_reason": stop(said), "disaggregated_params": self.told[index],
            "avg_decoded_tokens_per_iter": 1.0,
        });
        if self.ask.is_context_only() {
            choice["disaggregated_params"]["first_gen_tokens"] = said.tokens.as_slice().into();
        }
        if self.ask.route == Route::Chat {
            choice["message"] = json!({
                "role": "assistant", "content": said.text, "reasoning_content": null, "reasoning": null,
                "tool_calls": [],
            });
            choice["mm_embedding_handle"] = Value::Null;
        } else {
            choice["context_logits"] = Value::Null;
            self.put_text(&mut choice, &said.text, &said.tokens);
        }
        choice
    }

    /// Either text or token ids.
    fn put_text(&self, choice: &mut Value, text: &str, tokens: &[u32]) {
        if self.ask.detokenize {
            choice["text"] = text.into();
            choice["token_ids"] = Value::Null;
        } else {
            choice["text"] = "".into();
            choice["token_ids"] = tokens.into();
        }
    }

    fn logprobs(&self, tokens: &[u32]) -> Value {
        if !self.ask.logprobs {
            return Value::Null;
        }
        let names: Vec<String> = tokens.iter().map(|id| self.tokenizer.text(*id)).collect();
        let values: Vec<f64> = tokens.iter().map(|id| logprob(*id)).collect();
        if self.ask.route == Route::Chat {
            let content = names.iter().zip(&values).map(|(token, logprob)| {
                json!({"token": token, "logprob": logprob, "bytes": token.as_bytes(), "top_logprobs": []})
            });
            return json!({"content": content.collect::<Vec<_>>()});
        }
        let offsets = names.iter().scan(0, |at, name| {
            let offset = *at;
            *at += name.len();
            Some(offset)
        });
        json!({
            "text_offset": offsets.collect::<Vec<_>>(), "token_logprobs": values, "tokens": names,
            "top_logprobs": [],
        })
    }

    /// The tokens that were used; generation counts the prompt as context did.
    pub(super) fn usage(&self, said: &[Said]) -> Value {
        let generated: usize = said.iter().map(|said| said.tokens.len()).sum();
        let prompts: usize = self.ask.prompts.iter().map(Vec::len).sum();
        let cached: usize = said.iter().map(|said| said.cached).sum();
        let (mut prompt, mut details) = (prompts as u64, json!({"cached_tokens": cached}));
        let context = self.ask.params.as_ref().map(|params| &params.ctx_usage);
        if let Some(told) = context.filter(|usage| usage.is_object()) {
            prompt = told["prompt_tokens"].as_u64().unwrap_or(0);
            details = told["prompt_tokens_details"].clone();
        }
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt + generated as u64,
            "completion_tokens": generated, "prompt_tokens_details": details,
        })
    }

    /// 1.2 gives every chunk an id of its own.
    fn chunk_id(&self, route: Route) -> String {
        match self.config.era {
            Era::V12 => id(route),
            Era::Main => self.id.clone(),
        }
    }

    fn chunk(&self, route: Route, choices: &[Value]) -> Value {
        let object = match route {
            Route::Completions => "text_completion",
            Route::Chat => "chat.completion.chunk",
        };
        json!({
            "id": self.chunk_id(route), "object": object, "created": CREATED, "model": self.ask.model,
            "choices": choices,
        })
    }

    /// What comes before the first token of a chat.
    pub(super) fn role_chunk(&self, index: usize) -> Value {
        let choice = json!({"index": index, "delta": {"role": "assistant"}});
        self.chunk(Route::Chat, &[choice])
    }

    /// The chunk of the last token; `text` is what it adds. Chats leave out what says nothing.
    pub(super) fn token_chunk(&self, index: usize, said: &Said, text: &str) -> Value {
        let last = said.tokens.last().map(std::slice::from_ref);
        let tokens = last.unwrap_or_default();
        let logprobs = self.logprobs(tokens);
        if self.ask.route == Route::Chat {
            let choice = json!({
                "index": index, "delta": {"content": text, "reasoning_content": ""}, "logprobs": logprobs,
                "finish_reason": reason(said), "stop_reason": stop(said),
            });
            return self.chunk(Route::Chat, &[without_nulls(choice)]);
        }
        let mut choice = json!({
            "index": index, "logprobs": logprobs, "finish_reason": reason(said), "stop_reason": stop(said),
            "avg_decoded_tokens_per_iter": 1.0,
        });
        self.put_text(&mut choice, text, tokens);
        let mut chunk = self.chunk(Route::Completions, &[choice]);
        chunk["usage"] = Value::Null;
        chunk
    }

    /// What `stream_options` ask for. 1.2 tells it of a completion as if it were a chat.
    pub(super) fn usage_chunk(&self, said: &[Said]) -> Value {
        let route = match self.config.era {
            Era::V12 => Route::Chat,
            Era::Main => self.ask.route,
        };
        let mut chunk = self.chunk(route, &[]);
        chunk["usage"] = self.usage(said);
        chunk
    }
}

fn reason(said: &Said) -> Value {
    match &said.finish {
        Some(Ending::Finished { reason, .. }) => (*reason).into(),
        _ => Value::Null,
    }
}

fn stop(said: &Said) -> Value {
    match &said.finish {
        Some(Ending::Finished { stop, .. }) => stop.clone(),
        _ => Value::Null,
    }
}

fn without_nulls(object: Value) -> Value {
    let Value::Object(fields) = object else {
        return object;
    };
    let told = fields.into_iter().filter(|(_, value)| !value.is_null());
    told.collect::<Map<_, _>>().into()
}

/// How a failure is told inside a stream.
pub(super) fn stream_error(message: &str) -> Value {
    json!({"error": {"message": message, "type": "server_error", "code": null, "param": null}})
}

/// Made up from the token alone: what matters about it is its shape.
fn logprob(token: u32) -> f64 {
    -1.0 - f64::from(token % 64) / 64.0
}

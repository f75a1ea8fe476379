//! What SGLang says, in its own shapes.

use serde_json::{Value, json};

use super::super::legs::{Abort, Ending, Said};
use super::config::{Config, Mode};
use super::request::{Ask, Part, Route, error};

/// What every answer says of when it was made.
const CREATED: u64 = 1_796_005_885;

/// The same where it is told in fractions of a second.
const TIME: f64 = 1_796_005_885.25;

fn reason(said: &Said) -> Value {
    match &said.finish {
        None => Value::Null,
        Some(Ending::Finished { reason, .. }) => (*reason).into(),
        Some(Ending::Aborted(_)) => "abort".into(),
    }
}

fn matched(said: &Said) -> Value {
    match &said.finish {
        Some(Ending::Finished { stop, .. }) => stop.clone(),
        _ => Value::Null,
    }
}

/// All that an answer is made of.
pub(super) struct Answer<'a> {
    pub(super) ask: &'a Ask,
    pub(super) config: &'a Config,
    pub(super) end: Option<u32>,
}

impl Answer<'_> {
    fn part(&self, index: usize) -> &Part {
        &self.ask.parts[index / self.ask.n]
    }

    fn id(&self) -> &str {
        &self.ask.parts[0].rid
    }

    /// An unary answer.
    pub(super) fn whole(&self, said: &[Said]) -> Value {
        if self.ask.route == Route::Generate {
            let parts = said.iter().enumerate();
            let mut parts: Vec<Value> = parts.map(|(at, said)| self.generated(at, said)).collect();
            return if self.ask.batch || parts.len() > 1 {
                parts.into()
            } else {
                parts.remove(0)
            };
        }
        let choices = said.iter().enumerate();
        let choices: Vec<Value> = choices.map(|(at, said)| self.choice(at, said)).collect();
        let tokens = said.first().map_or(0, |said| said.tokens.len());
        let mut usage = self.usage(said);
        usage["completion_tokens_details"] = Value::Null;
        json!({
            "id": self.id(), "object": self.object(), "created": CREATED, "model": self.ask.model,
            "choices": choices, "usage": usage,
            "metadata": {
                "weight_version": "default",
                "weight_versions": [{"version": "default", "start": 0, "end": tokens}],
            },
        })
    }

    fn object(&self) -> &'static str {
        match (self.ask.route, self.ask.stream) {
            (Route::Chat, true) => "chat.completion.chunk",
            (Route::Chat, false) => "chat.completion",
            _ => "text_completion",
        }
    }

    fn choice(&self, index: usize, said: &Said) -> Value {
        let mut choice = json!({
            "index": index, "logprobs": self.logprobs(said), "finish_reason": reason(said),
            "matched_stop": matched(said),
        });
        if self.ask.route == Route::Chat {
            choice["message"] =
                json!({"role": "assistant", "content": said.text, "reasoning_content": null});
        } else {
            choice["text"] = said.text.clone().into();
        }
        choice
    }

    fn logprobs(&self, said: &Said) -> Value {
        if !self.ask.logprobs {
            return Value::Null;
        }
        let content: Vec<Value> = said
            .tokens
            .iter()
            .map(|token| json!({"token": token.to_string(), "logprob": logprob(*token), "bytes": [], "top_logprobs": []}))
            .collect();
        json!({ "content": content })
    }

    /// The tokens that were used.
    pub(super) fn usage(&self, said: &[Said]) -> Value {
        let prompts: usize = self.ask.parts.iter().map(|part| part.prompt.len()).sum();
        let generated: usize = said.iter().map(|said| said.tokens.len()).sum();
        let cached: usize = said.iter().map(|said| said.cached).sum();
        let details = if self.config.cache_report {
            json!({ "cached_tokens": cached })
        } else {
            Value::Null
        };
        json!({
            "prompt_tokens": prompts, "total_tokens": prompts + generated, "completion_tokens": generated,
            "prompt_tokens_details": details, "reasoning_tokens": 0,
        })
    }

    /// One answer of `/generate`, or what of it there is so far.
    pub(super) fn generated(&self, index: usize, said: &Said) -> Value {
        let part = self.part(index);
        let cached = if said.cached > 0 {
            json!({"device": said.cached, "host": 0})
        } else {
            Value::Null
        };
        let mut meta = json!({
            "id": part.rid, "finish_reason": self.finish_reason(said), "prompt_tokens": part.prompt.len(),
            "weight_version": "default", "num_retractions": 0, "queue_time": 0.0, "reasoning_tokens": 0,
            "completion_tokens": said.tokens.len(), "cached_tokens": said.cached,
            "cached_tokens_details": cached, "dp_rank": null,
        });
        self.put_times(&mut meta, said);
        if self.ask.logprobs {
            let logprobs = said
                .tokens
                .iter()
                .map(|token| json!([logprob(*token), token, null]));
            meta["input_token_logprobs"] = json!([]);
            meta["output_token_logprobs"] = logprobs.collect();
            meta["output_token_logprobs_length"] = said.tokens.len().into();
        }
        json!({"text": said.text, "output_ids": said.tokens, "meta_info": meta})
    }

    /// When what happened. Times are made up: what matters about them is which there are.
    fn put_times(&self, meta: &mut Value, said: &Said) {
        let mut put = |name: &str, time: f64| meta[name] = time.into();
        if said.tokens.is_empty() {
            // It never began.
        } else if self.config.mode == Mode::Decode {
            put("forward_entry_time", TIME);
        } else {
            put("storage_prefetch_wait", 0.0);
            put("storage_staging_wait", 0.0);
            put("forward_entry_time", TIME);
            put("prefill_finished_time", TIME);
        }
        if said.finish.is_none() {
            return;
        }
        for name in ["e2e_latency", "first_token_latency"] {
            put(name, 0.02);
        }
        for name in [
            "request_received_ts",
            "api_server_dispatch_finish_ts",
            "request_finished_ts",
            "response_sent_to_client_ts",
        ] {
            put(name, TIME);
        }
        let several = said.tokens.len() > 1;
        if several && (self.config.mode == Mode::Null || self.ask.stream) {
            put("decode_throughput", 200.0);
        }
        meta["weight_versions"] =
            json!([{"version": "default", "start": 0, "end": said.tokens.len()}]);
    }

    fn finish_reason(&self, said: &Said) -> Value {
        match &said.finish {
            None => Value::Null,
            Some(Ending::Aborted(abort)) => json!({
                "type": "abort", "message": abort.message, "status_code": abort.status, "err_type": null,
            }),
            Some(Ending::Finished { reason, stop }) if *reason == "stop" => {
                let matched = match stop {
                    Value::Null => self.end.into(),
                    other => other.clone(),
                };
                json!({"type": "stop", "matched": matched})
            }
            // Prefill did not mean to say more.
            Some(Ending::Finished { .. }) => {
                let prefill = self.config.mode == Mode::Prefill;
                let length = if prefill { 0 } else { said.tokens.len() };
                json!({"type": "length", "length": length})
            }
        }
    }

    /// A chunk of an `OpenAI` stream.
    fn chunk(&self, choices: &[Value]) -> Value {
        let mut chunk = json!({
            "id": self.id(), "object": self.object(), "created": CREATED, "model": self.ask.model, "choices": choices,
        });
        if self.ask.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// What comes before the first token of a chat.
    pub(super) fn role_chunk(&self, index: usize) -> Value {
        self.chunk(&[json!({
            "index": index, "delta": {"reasoning_content": null, "role": "assistant", "content": ""},
            "logprobs": null, "finish_reason": null, "matched_stop": null,
        })])
    }

    /// The chunk of the last token; `text` is what it adds. A chat ends with a chunk of its own.
    pub(super) fn token_chunk(&self, index: usize, said: &Said, text: &str) -> Value {
        let mut choice = json!({
            "index": index, "logprobs": null, "finish_reason": reason(said), "matched_stop": matched(said),
        });
        if self.ask.route == Route::Chat {
            choice["delta"] = json!({"reasoning_content": null, "content": text});
            choice["finish_reason"] = Value::Null;
            choice["matched_stop"] = Value::Null;
        } else {
            choice["text"] = text.into();
        }
        self.chunk(&[choice])
    }

    /// The last chunk of a chat.
    pub(super) fn end_chunk(&self, index: usize, said: &Said) -> Value {
        self.chunk(&[json!({
            "index": index, "delta": {"reasoning_content": null}, "logprobs": null,
            "finish_reason": reason(said), "matched_stop": matched(said),
        })])
    }

    /// What `stream_options.include_usage` asks for.
    pub(super) fn usage_chunk(&self, said: &[Said]) -> Value {
        let mut chunk = self.chunk(&[]);
        chunk["usage"] = self.usage(said);
        chunk
    }
}

/// How an abort is told where nothing was said yet.
pub(super) fn abort_body(abort: &Abort) -> Value {
    let status = abort.status.unwrap_or(500);
    error(status, &status.to_string(), &abort.message)
}

/// How an abort is told inside an `OpenAI` stream.
pub(super) fn stream_error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "BAD_REQUEST",
        503 => "SERVICE_UNAVAILABLE",
        _ => "INTERNAL_SERVER_ERROR",
    };
    json!({ "error": error(status, kind, message) })
}

/// Made up from the token alone: what matters about it is its shape.
fn logprob(token: u32) -> f64 {
    -1.0 - f64::from(token % 64) / 64.0
}

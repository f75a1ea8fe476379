//! The engine's answers, with the key sets that were recorded.

use serde_json::{Value, json};

use super::config::Config;
use super::request::{Ask, Refused};
use crate::emulated::core::HeldKv;

/// When the engine said everything, in Unix seconds: a recorded instant, for no answer depends on it.
pub(super) const CREATED: u64 = 1_796_006_084;

/// One choice, as far as it has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    /// Text of each token.
    pub(super) pieces: Vec<String>,
    pub(super) finish: Option<&'static str>,
    pub(super) stop: Value,
    pub(super) cached: usize,
    /// Prompt tokens that were computed here.
    pub(super) computed: usize,
    pub(super) held: Option<HeldKv>,
}

/// What all answers to one request share.
#[derive(Debug, Clone)]
pub(super) struct Answer<'a> {
    pub(super) id: String,
    pub(super) ask: &'a Ask,
    pub(super) config: &'a Config,
}

/// The list of models.
pub(super) fn models(config: &Config) -> Value {
    let model = |id: &str, root: &str, parent: Value, longest: Value| {
        json!({
            "id": id, "object": "model", "created": CREATED, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": longest, "permission": [{
                "id": "modelperm-bd3fabdd3fadc748", "object": "model_permission", "created": CREATED,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
                "group": null, "is_blocking": false,
            }],
        })
    };
    let base = &config.served_model_name;
    let mut data = vec![model(
        base,
        &config.model,
        Value::Null,
        config.max_model_len.into(),
    )];
    data.extend(
        config
            .loras
            .iter()
            .map(|lora| model(lora, lora, base.clone().into(), Value::Null)),
    );
    json!({"object": "list", "data": data})
}

/// An error in vLLM's own shape.
pub(super) fn error(status: u16, kind: &str, message: &str, param: Option<&str>) -> Value {
    json!({"error": {"message": message, "type": kind, "param": param, "code": status}})
}

/// The body of every failed transfer.
pub(super) fn internal_error() -> Value {
    error(500, "InternalServerError", "Internal server error", None)
}

/// The last words of an engine.
pub(super) fn engine_dead() -> Value {
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    error(500, "InternalServerError", message, None)
}

impl Refused {
    pub(super) fn body(&self) -> Value {
        error(self.status, self.kind, &self.message, self.param)
    }
}

impl Answer<'_> {
    fn object(&self, stream: bool) -> &'static str {
        match (self.ask.chat, stream) {
            (false, _) => "text_completion",
            (true, false) => "chat.completion",
            (true, true) => "chat.completion.chunk",
        }
    }

    /// Version, parallelism if there is any, and what stands for a digest of the rest.
    fn fingerprint(&self) -> String {
        let ranks = match self.config.ranks {
            1 => String::new(),
            ranks => format!("dp{ranks}-"),
        };
        format!("vllm-0.32.0-{ranks}5ef3db3f")
    }

    /// An unary answer. `params` are its `kv_transfer_params`.
    pub(super) fn whole(&self, said: &[Said], params: &Value) -> Value {
        let choices: Vec<Value> = said
            .iter()
            .enumerate()
            .map(|(index, said)| {
                if self.ask.chat {
                    self.chat_choice(index, said)
                } else {
                    self.choice(index, said)
                }
            })
            .collect();
        let mut body = json!({
            "id": self.id, "object": self.object(false), "created": CREATED, "model": self.ask.model,
            "choices": choices, "service_tier": null, "system_fingerprint": self.fingerprint(), "usage": self.usage(said),
        });
        if self.ask.chat {
            body["prompt_logprobs"] = self.prompt_logprobs(0);
            body["prompt_token_ids"] = self.prompt_token_ids(0);
            body["prompt_text"] = Value::Null;
        }
        body["kv_transfer_params"] = params.clone();
        body["ec_transfer_params"] = Value::Null;
        body["metrics"] = Value::Null;
        body
    }

    fn choice(&self, index: usize, said: &Said) -> Value {
        let prompt = index / self.ask.n;
        let mut logprobs = self.logprobs(said, 0..said.tokens.len());
        if let Some(pieces) = self.ask.echoed.get(prompt).filter(|_| !logprobs.is_null()) {
            prepend(&mut logprobs, &self.ask.prompts[prompt], pieces);
        }
        json!({
            "index": index, "text": said.text, "logprobs": logprobs,
            "finish_reason": said.finish, "stop_reason": said.stop, "token_ids": self.token_ids(&said.tokens),
            "prompt_logprobs": self.prompt_logprobs(prompt), "prompt_token_ids": self.prompt_token_ids(prompt),
            "routed_experts": null,
        })
    }

    fn chat_choice(&self, index: usize, said: &Said) -> Value {
        let mut message = json!({
            "role": "assistant", "content": said.text, "refusal": null, "annotations": null, "audio": null,
            "function_call": null, "reasoning": null,
        });
        let mut finish = said.finish;
        if let Some(tool) = &self.ask.tool {
            message["content"] = "".into();
            message["tool_calls"] = json!([{
                "id": "chatcmpl-tool-8588da142594b0b7", "type": "function",
                "function": {"name": tool, "arguments": said.text},
            }]);
            finish = Some("stop");
        }
        json!({
            "index": index, "message": message, "logprobs": self.logprobs(said, 0..said.tokens.len()),
            "finish_reason": finish, "stop_reason": said.stop, "token_ids": self.token_ids(&said.tokens),
            "routed_experts": null,
        })
    }

    fn token_ids(&self, tokens: &[u32]) -> Value {
        if self.ask.return_token_ids {
            tokens.into()
        } else {
            Value::Null
        }
    }

    fn prompt_token_ids(&self, prompt: usize) -> Value {
        if self.ask.return_token_ids {
            self.ask.prompts[prompt].as_slice().into()
        } else {
            Value::Null
        }
    }

    /// Made up from the tokens alone: what matters about them is their shape, and that equal text has equal ones.
    fn logprobs(&self, said: &Said, part: std::ops::Range<usize>) -> Value {
        let Some(alternatives) = self.ask.logprobs else {
            return Value::Null;
        };
        let tokens = said.tokens[part.clone()]
            .iter()
            .zip(&said.pieces[part.clone()]);
        if self.ask.chat {
            let content: Vec<Value> = tokens
                .map(|(token, piece)| {
                    let entry = |text: &str, rank: usize| {
                        json!({"token": text, "logprob": logprob(*token, rank), "bytes": text.as_bytes()})
                    };
                    let top: Vec<Value> = top(piece, alternatives).map(|(rank, text)| entry(&text, rank)).collect();
                    let mut said = entry(piece, 0);
                    said["top_logprobs"] = top.into();
                    said
                })
                .collect();
            return json!({ "content": content });
        }
        let offsets = said.pieces.iter().scan(0, |at, piece| {
            let offset = *at;
            *at += piece.len();
            Some(offset)
        });
        let (mut logprobs, mut texts, mut tops) = (Vec::new(), Vec::new(), Vec::new());
        for (token, piece) in tokens {
            logprobs.push(logprob(*token, 0));
            texts.push(piece.clone());
            let count = alternatives.max(1);
            let top = top(piece, count).map(|(rank, text)| (text, logprob(*token, rank).into()));
            tops.push(Value::Object(top.collect()));
        }
        let offsets: Vec<usize> = offsets.skip(part.start).take(part.len()).collect();
        json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops})
    }

    fn prompt_logprobs(&self, prompt: usize) -> Value {
        let wanted = self
            .ask
            .prompt_logprobs
            .or(self.ask.logprobs.filter(|_| self.ask.echo));
        let Some(alternatives) = wanted else {
            return Value::Null;
        };
        let entry = |token: u32, rank: usize| {
            let key = if rank == 0 {
                token
            } else {
                u32::try_from(rank).unwrap_or(0)
            };
            (
                key.to_string(),
                json!({"logprob": logprob(token, rank), "rank": rank + 1, "decoded_token": ""}),
            )
        };
        let tokens = self.ask.prompts[prompt].iter().skip(1);
        let known = tokens.map(|token| {
            Value::Object((0..=alternatives).map(|rank| entry(*token, rank)).collect())
        });
        std::iter::once(Value::Null).chain(known).collect()
    }

    /// Tokens, and where they came from as far as it is told.
    pub(super) fn usage(&self, said: &[Said]) -> Value {
        let mut usage = self.counts(said);
        usage["completion_tokens_details"] = Value::Null;
        usage["prompt_tokens_details"] = Value::Null;
        // Of a batch, the last prompt's are told.
        if let Some(last) = said
            .last()
            .filter(|_| self.config.prompt_tokens_details && !self.ask.beam)
        {
            usage["prompt_tokens_details"] = json!({
                "cached_tokens": last.cached, "created_cache_tokens": self.created(last), "multimodal_tokens": null,
            });
        }
        usage
    }

    /// Told for chats alone: prompt tokens in blocks that were computed.
    fn created(&self, said: &Said) -> Value {
        let block_size = self.config.block_size as usize;
        let prompt = self.ask.prompts[0].len();
        if self.ask.chat {
            (prompt / block_size * block_size)
                .saturating_sub(prompt - said.computed)
                .into()
        } else {
            Value::Null
        }
    }

    fn counts(&self, said: &[Said]) -> Value {
        let prompts: usize = self.ask.prompts.iter().map(Vec::len).sum();
        let generated: usize = said.iter().map(|said| said.tokens.len()).sum();
        json!({"prompt_tokens": prompts, "total_tokens": prompts + generated, "completion_tokens": generated})
    }

    /// The usage so far, in a chunk that is not the last one.
    fn counts_so_far(&self, said: &[Said]) -> Value {
        let mut counts = self.counts(said);
        if self.ask.chat {
            counts["completion_tokens_details"] = Value::Null;
        }
        counts
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        json!({"id": self.id, "object": self.object(true), "created": CREATED, "model": self.ask.model, "choices": choices})
    }

    /// The chunk that chat sends before the KV has arrived.
    pub(super) fn role_chunk(&self, index: usize) -> Value {
        let choice = json!({
            "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
        });
        let mut chunk = self.chunk(&[choice]);
        if self.ask.continuous_usage {
            chunk["usage"] = self.counts_so_far(&[]);
        }
        chunk["prompt_token_ids"] = self.prompt_token_ids(0);
        chunk["prompt_text"] = Value::Null;
        chunk
    }

    /// The chunk of the last token of a choice; `text` is what it adds.
    pub(super) fn token_chunk(&self, index: usize, said: &Said, text: &str) -> Value {
        let last = said.tokens.len().saturating_sub(1);
        let part = last..said.tokens.len();
        let ids = self.token_ids(&said.tokens[part.clone()]);
        let logprobs = self.logprobs(said, part);
        let choice = if self.ask.chat {
            let mut choice = json!({
                "index": index, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": said.finish,
                "token_ids": ids,
            });
            if said.finish.is_some() {
                choice["stop_reason"] = said.stop.clone();
            }
            choice
        } else {
            let prompt = if said.tokens.len() > 1 {
                Value::Null
            } else {
                self.prompt_token_ids(index / self.ask.n)
            };
            json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": said.finish,
                "stop_reason": said.stop, "prompt_token_ids": prompt, "token_ids": ids,
            })
        };
        let mut chunk = self.chunk(&[choice]);
        if self.ask.continuous_usage {
            chunk["usage"] = self.counts_so_far(std::slice::from_ref(said));
        }
        if said.finish.is_some() && !self.ask.include_usage {
            chunk["system_fingerprint"] = self.fingerprint().into();
        }
        chunk
    }

    /// The chunk that `stream_options.include_usage` asks for.
    pub(super) fn usage_chunk(&self, said: &[Said]) -> Value {
        let mut chunk = self.chunk(&[]);
        chunk["usage"] = without_nulls(self.usage(said));
        chunk["system_fingerprint"] = self.fingerprint().into();
        chunk
    }
}

/// Puts the logprobs of a prompt before those of the answer. Nothing comes before the first token, so it has none.
fn prepend(logprobs: &mut Value, prompt: &[u32], pieces: &[String]) {
    let mut offset = 0;
    let mut before =
        json!({"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []});
    let mut put = |list: &str, value: Value| {
        before[list]
            .as_array_mut()
            .into_iter()
            .for_each(|list| list.push(value.clone()));
    };
    for (at, (token, piece)) in prompt.iter().zip(pieces).enumerate() {
        let known = at > 0;
        put("text_offset", offset.into());
        put("tokens", piece.as_str().into());
        put("token_logprobs", known.then(|| logprob(*token, 0)).into());
        let top = json!({piece.as_str(): logprob(*token, 0)});
        put("top_logprobs", if known { top } else { Value::Null });
        offset += piece.len();
    }
    for (list, values) in logprobs.as_object_mut().into_iter().flatten() {
        let mut values = values.as_array().cloned().unwrap_or_default();
        if list == "text_offset" {
            for at in &mut values {
                *at = (at.as_u64().unwrap_or(0) + offset as u64).into();
            }
        }
        if let Some(before) = before[list].as_array_mut() {
            before.append(&mut values);
        }
    }
    *logprobs = before;
}

/// As it is written where only what is there is told.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let told = object.into_iter().filter(|(_, value)| !value.is_null());
            told.map(|(key, value)| (key, without_nulls(value)))
                .collect()
        }
        other => other,
    }
}

fn logprob(token: u32, rank: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful of alternatives")]
    let rank = rank as f64;
    -1.0 - f64::from(token % 64) / 64.0 - rank
}

/// The said token and made-up others.
fn top(piece: &str, count: usize) -> impl Iterator<Item = (usize, String)> {
    let others = (1..count).map(|rank| (rank, format!("~{rank}")));
    std::iter::once((0, piece.to_owned()))
        .take(count)
        .chain(others)
}

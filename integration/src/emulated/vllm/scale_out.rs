//! Endpoints that take and give token ids: `--enable-scale-out` of vLLM 0.32.0. Key sets are the recorded ones.

use std::sync::Arc;

use rand::Rng;
use serde_json::{Value, json};

use super::super::core::Output;
use super::super::misbehave::{chunked, event};
use super::super::process::Life;
use super::super::server::{After, Connection, Request, head};
use super::answers::{self, Answer, CREATED, Said};
use super::engine::EmulatedVllm;
use super::generate::{Next, Work, scripted, submit};
use super::request::{self, Ask};

/// A request's tokens and parameters, without generating anything.
pub(super) async fn render(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    request: &Request,
) -> After {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let chat = request.path.contains("chat");
    let asked = request::read(&body, chat, engine.config(), &engine.tokenizer);
    let ask = match asked {
        Ok(ask) => ask,
        Err(refused) => return connection.json(refused.status, &refused.body()).await,
    };
    let prefix = if chat { "chatcmpl" } else { "cmpl" };
    let rendered = ask.prompts.iter().map(|prompt| {
        let id = format!("{prefix}-{:016x}", rand::rng().random::<u64>());
        rendered(&id, prompt, &ask, &body)
    });
    let mut rendered: Vec<Value> = rendered.collect();
    let answer = if chat {
        rendered.remove(0)
    } else {
        rendered.into()
    };
    connection.json(200, &answer).await
}

fn rendered(id: &str, prompt: &[u32], ask: &Ask, body: &Value) -> Value {
    let given = |key: &str, default: Value| match &body[key] {
        Value::Null => default,
        given => given.clone(),
    };
    json!({
        "request_id": id, "token_ids": prompt, "token_offsets": null, "features": null, "content_parts": null,
        "sampling_params": {
            "presence_penalty": given("presence_penalty", 0.0.into()),
            "frequency_penalty": given("frequency_penalty", 0.0.into()),
            "repetition_penalty": given("repetition_penalty", 1.0.into()),
            "temperature": given("temperature", 1.0.into()),
            "top_p": given("top_p", 1.0.into()),
            "min_p": given("min_p", 0.0.into()),
            "stop": given("stop", json!([])),
            "stop_token_ids": given("stop_token_ids", json!([])),
            "max_tokens": ask.sampling.limit, "output_kind": 2, "skip_clone": true, "bad_words": [],
            "skip_reading_prefix_cache": false,
        },
        "model": ask.model, "reasoning_ended": null, "reasoning_parser_kwargs": null, "return_token_ids": null,
        "output_mode": "tokens", "stream": false, "stream_options": null, "cache_salt": body["cache_salt"],
        "priority": 0, "kv_transfer_params": body["kv_transfer_params"], "ec_transfer_params": null,
    })
}

/// Tokens in, tokens out.
pub(super) async fn generate(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let scripted = scripted(connection, engine, life, request);
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let mut asked = body["sampling_params"].clone();
    for (key, value) in [
        ("model", &body["model"]),
        ("prompt", &body["token_ids"]),
        ("cache_salt", &body["cache_salt"]),
        ("kv_transfer_params", &body["kv_transfer_params"]),
        ("stream", &body["stream"]),
    ] {
        asked[key] = value.clone();
    }
    asked["return_token_ids"] = true.into();
    let ask = match request::read(&asked, false, engine.config(), &engine.tokenizer) {
        Ok(ask) => ask,
        Err(refused) => {
            let after = connection.json(refused.status, &refused.body()).await;
            return scripted.ended(Some(after));
        }
    };
    let work = Work {
        engine,
        scripted: &scripted,
    };
    let answer = Answer {
        id: format!("generate-tokens-{:016x}", rand::rng().random::<u64>()),
        ask: &ask,
        config: engine.config(),
    };
    let after = work.tokens(connection, &answer).await;
    scripted.ended(after)
}

impl Work<'_> {
    /// `None` if the peer went away.
    async fn tokens(&self, connection: &mut Connection, answer: &Answer<'_>) -> Option<After> {
        let rank = self
            .scripted
            .life
            .ranks
            .first()
            .expect("an engine has a rank");
        let mut choices = submit(answer, rank);
        let stream = answer.ask.stream;
        if stream {
            let head = head(200, "text/event-stream; charset=utf-8", None);
            connection.write(&head).await;
        }
        while choices.iter().any(|choice| choice.said.finish.is_none()) {
            let (index, output) = match self.next(connection, &mut choices).await {
                Next::Output(_, Output::LoadFailed) => {
                    return Some(connection.json(500, &answers::internal_error()).await);
                }
                Next::Output(index, output) => (index, output),
                Next::Gone => return None,
                Next::Dying => {
                    connection.json(500, &answers::engine_dead()).await;
                    return Some(After::Reset);
                }
            };
            let said = &mut choices[index].said;
            self.take(said, output);
            if stream {
                let frame = frame(answer, index, said);
                connection.write(&event(&frame.to_string())).await;
            }
        }
        if stream {
            connection.write(&event("[DONE]")).await;
            connection.write(&chunked("")).await;
            return Some(After::KeepAlive);
        }
        let said: Vec<Said> = choices.iter().map(|choice| choice.said.clone()).collect();
        let body = whole(answer, &said, &self.params(answer.ask, &said));
        Some(connection.json(200, &body).await)
    }
}

fn choice(index: usize, said: &Said, tokens: &[u32]) -> Value {
    let versions = match said.finish {
        Some(_) => json!([{"version": "default", "start": 0, "end": said.tokens.len()}]),
        None => Value::Null,
    };
    json!({
        "index": index, "finish_reason": said.finish, "stop_reason": said.stop, "token_ids": tokens,
        "routed_experts": null, "sampling_mask": null, "weight_versions": versions, "logprobs": null,
    })
}

fn frame(answer: &Answer<'_>, index: usize, said: &Said) -> Value {
    let last = said.tokens.len().saturating_sub(1);
    json!({
        "request_id": answer.id, "usage": null, "output_mode": "tokens",
        "choices": [choice(index, said, &said.tokens[last..])],
    })
}

fn whole(answer: &Answer<'_>, said: &[Said], params: &Value) -> Value {
    let choices = said.iter().enumerate();
    let choices: Vec<Value> = choices
        .map(|(index, said)| choice(index, said, &said.tokens))
        .collect();
    json!({
        "request_id": answer.id, "model": answer.ask.model, "created": CREATED, "usage": answer.usage(said),
        "prompt_logprobs": null, "prompt_token_id_logprobs": null, "prompt_token_ids": null,
        "mm_placeholders": null, "metrics": null, "kv_transfer_params": params, "ec_transfer_params": null,
        "output_mode": "tokens", "choices": choices,
    })
}

//! A completion or a chat: what the engine does with its KV, what it dies of, and what the script makes of the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::Rng;
use serde_json::{Value, json};

use super::answers::{self, Said};
use super::script::{Fault, Leg, Rule};
use super::server::{After, Connection, Request, head};
use super::{FakeVllm, Fate, Life, MODEL, Seen, model};

/// Remembers a request.
pub(super) fn note(engine: &FakeVllm, request: &Request) -> Seen {
    let body = String::from_utf8_lossy(&request.body).into_owned();
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let params = &parsed["kv_transfer_params"];
    let leg = if params["do_remote_prefill"] == true {
        Leg::Decode
    } else if params["do_remote_decode"] == true {
        Leg::Prefill
    } else {
        Leg::Local
    };
    let seen = Seen {
        leg,
        path: request.path.clone(),
        headers: request.headers.clone(),
        body,
        fate: Arc::new(std::sync::Mutex::new(Fate::Running)),
        sent: Arc::default(),
    };
    engine.inner.seen.lock().unwrap().push(seen.clone());
    seen
}

struct Working<'a>(&'a Life, Seen);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        // Dropped before it was answered: the connection is gone, or the engine is.
        self.1.ended(Fate::Aborted);
    }
}

/// Answers a completion or a chat.
pub(super) async fn generate(
    connection: &mut Connection,
    engine: &FakeVllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let seen = note(engine, request);
    connection.record(&seen.sent);
    let rule = engine.rule_for(seen.leg).unwrap_or_else(Rule::any);
    life.running.fetch_add(1, Ordering::Relaxed);
    let working = Working(life, seen.clone());
    let work = Work {
        engine,
        life,
        seen: &seen,
        rule: &rule,
    };
    let after = work.run(connection).await;
    if let Some(after) = after {
        seen.ended(Fate::Answered);
        drop(working);
        after
    } else {
        After::Close
    }
}

struct Work<'a> {
    engine: &'a FakeVllm,
    life: &'a Arc<Life>,
    seen: &'a Seen,
    rule: &'a Rule,
}

/// Why there is nothing to say.
enum Refused {
    Answer(u16, Value),
    /// The engine is about to die; its last words.
    Death(&'static str),
    /// vLLM waits for ever, and dies when the client gives up.
    HangsAndDies(&'static str),
}

impl Work<'_> {
    /// `None` if the peer went away.
    async fn run(&self, connection: &mut Connection) -> Option<After> {
        if let Some(gate) = &self.rule.before {
            tokio::select! {
                () = connection.gone() => return None,
                () = gate.pass() => {}
            }
        }
        match &self.rule.fault {
            Fault::Hang => {
                connection.gone().await;
                return None;
            }
            Fault::Reset => return Some(After::Reset),
            Fault::Die => {
                self.engine.die(self.life, "its script");
                return Some(After::Reset);
            }
            Fault::Status(status, body) => {
                return Some(
                    connection
                        .answer(*status, "application/json", body.as_bytes())
                        .await,
                );
            }
            Fault::EmptyOk => return Some(connection.answer(200, "application/json", b"").await),
            Fault::BodyOk(body) => {
                return Some(
                    connection
                        .answer(200, "application/json", body.as_bytes())
                        .await,
                );
            }
            Fault::Garbage => {
                connection
                    .write(b"\x00\x01\x02 no HTTP at all\r\n\r\n")
                    .await;
                return Some(After::Close);
            }
            _ => {}
        }
        let body: Value = serde_json::from_str(&self.seen.body).unwrap_or_default();
        let streamed = body["stream"] == true;
        let said = match self.compute(&body) {
            Ok(said) => said,
            // A load failure of a stream comes after its head, for chat even after a chunk.
            Err(Refused::Answer(500, error)) if streamed => {
                return self.failed_stream(connection, &error).await;
            }
            Err(Refused::Answer(status, error)) => {
                return Some(connection.json(status, &error).await);
            }
            Err(Refused::Death(of)) => {
                connection.json(500, &answers::engine_dead()).await;
                self.engine.die(self.life, of);
                return Some(After::Reset);
            }
            Err(Refused::HangsAndDies(of)) => {
                connection.gone().await;
                self.engine.die(self.life, of);
                return None;
            }
        };
        if streamed {
            self.stream(connection, &said, &body).await
        } else {
            self.unary(connection, &said).await
        }
    }

    fn compute(&self, body: &Value) -> Result<Said, Refused> {
        let chat = self.seen.path.contains("chat");
        let bad = |message: &str| {
            Err(Refused::Answer(
                400,
                answers::error(400, "BadRequestError", message),
            ))
        };
        if body["model"].as_str().is_some_and(|model| model != MODEL) {
            let message = format!("The model `{}` does not exist.", body["model"]);
            return Err(Refused::Answer(
                404,
                answers::error(404, "NotFoundError", &message),
            ));
        }
        let tokens = if chat {
            model::chat_tokens(&body["messages"])
        } else {
            match &body["prompt"] {
                Value::Array(prompts) if prompts.first().is_some_and(Value::is_string) => {
                    model::prompt_tokens(&prompts[0])
                }
                prompt => model::prompt_tokens(prompt),
            }
        };
        let Some(tokens) = tokens.filter(|tokens| !tokens.is_empty()) else {
            return bad("Input should be a valid prompt");
        };
        let limit = ["max_completion_tokens", "max_tokens"]
            .iter()
            .filter(|key| chat || **key == "max_tokens")
            .find_map(|key| body[*key].as_u64())
            .unwrap_or(16);
        if limit == 0 {
            return bad("max_tokens must be at least 1, got 0.");
        }
        if body["min_tokens"].as_u64().is_some_and(|min| min > limit) {
            return bad("min_tokens must be less than or equal to max_tokens.");
        }
        if !body["stream_options"].is_null() && body["stream"] != true {
            return bad("Stream options can only be defined when `stream=True`.");
        }
        if tokens.len() > 1024 {
            return bad("This model's maximum context length is 1024 tokens.");
        }
        let prefix = if chat { "chatcmpl" } else { "cmpl" };
        let asked = self.seen.header("x-request-id").map(str::to_owned);
        let asked = asked.unwrap_or_else(|| format!("{:016x}", rand::rng().random::<u64>()));
        let id = format!("{prefix}-{asked}");
        let kv = self.kv(body, &tokens)?;
        let count = usize::try_from(limit).unwrap_or(16);
        let batch = match &body["prompt"] {
            Value::Array(prompts) if prompts.first().is_some_and(Value::is_string) => prompts.len(),
            _ => 1,
        };
        let choices = usize::try_from(body["n"].as_u64().unwrap_or(1)).unwrap_or(1) * batch;
        let finish = match self.rule.fault {
            Fault::Finish(reason) => reason,
            _ => "length",
        };
        let params = if self.seen.leg == Leg::Prefill && body["stream"] != true {
            self.hold(&id, &tokens, &kv)?
        } else {
            Value::Null
        };
        Ok(Said {
            chat,
            id,
            words: model::words(&kv, count),
            choices,
            finish,
            prompt_tokens: tokens.len(),
            params,
        })
    }

    /// The prompt's KV: computed, from the cache, or pulled.
    fn kv(&self, body: &Value, tokens: &[u32]) -> Result<Vec<u64>, Refused> {
        let salt = body["cache_salt"].as_str();
        let mut pool = self.life.pool.lock().unwrap();
        let block_size = self.engine.config().block_size;
        let kv = match pool.cached(salt, tokens) {
            Some(kv) if self.seen.leg == Leg::Local => kv,
            _ if self.seen.leg == Leg::Decode => {
                // The wire locks the holder's pool, which may be this one.
                drop(pool);
                let kv = self.pull(&body["kv_transfer_params"], tokens.len())?;
                pool = self.life.pool.lock().unwrap();
                kv
            }
            _ => model::kv_of(tokens, block_size),
        };
        pool.cache(salt, tokens, &kv);
        Ok(kv)
    }

    /// What vLLM 0.32.0 does with what it is handed; much of it is death.
    fn pull(&self, params: &Value, tokens: usize) -> Result<Vec<u64>, Refused> {
        let Some(groups) = params["remote_block_ids"].as_array() else {
            return Err(Refused::Death("do_remote_prefill without blocks"));
        };
        let ids: Vec<usize> = groups
            .iter()
            .flat_map(|group| group.as_array().cloned().unwrap_or_default())
            .map(|id| usize::try_from(id.as_u64().unwrap_or(u64::MAX)).unwrap_or(usize::MAX))
            .collect();
        let needed = tokens.div_ceil(self.engine.config().block_size as usize);
        if ids.len() < needed {
            return Err(Refused::Death("fewer blocks than the prompt needs"));
        }
        let Some(request) = params["remote_request_id"].as_str() else {
            return Err(Refused::HangsAndDies("no remote_request_id"));
        };
        let failed = || Refused::Answer(500, answers::internal_error());
        let engine_id = params["remote_engine_id"].as_str().ok_or_else(failed)?;
        let port = params["remote_port"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or_else(failed)?;
        let wire = &self.engine.inner.wire;
        let kv = wire
            .pull(&self.life.agents, port, engine_id, request, &ids)
            .ok_or_else(failed)?;
        let transferred = &self.life.transferred_tokens;
        transferred.fetch_add(tokens as u64, Ordering::Relaxed);
        Ok(kv[..needed].to_vec())
    }

    fn hold(&self, id: &str, tokens: &[u32], kv: &[u64]) -> Result<Value, Refused> {
        let suffix: u32 = rand::rng().random();
        let request = format!("{id}-0-{suffix:08x}");
        let lease = self.engine.config().lease;
        let ids = self.life.pool.lock().unwrap().hold(&request, kv, lease);
        let full = || {
            Refused::Answer(
                500,
                answers::error(500, "InternalServerError", "the cache is full"),
            )
        };
        let ids = ids.ok_or_else(full)?;
        let mut params = json!({
            "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [ids],
            "remote_engine_id": self.life.engine_id, "remote_request_id": request, "remote_host": "127.0.0.1",
            "remote_port": self.engine.inner.side_channel.port(), "tp_size": 1, "dcp_size": 1, "pp_size": 1,
            "remote_num_tokens": tokens.len(), "remote_blocks_expiry_time": null, "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 0,
        });
        if let Fault::Params(change) = &self.rule.fault {
            change(&mut params);
        }
        Ok(params)
    }

    async fn unary(&self, connection: &mut Connection, said: &Said) -> Option<After> {
        let mut answer = answers::whole(said);
        if let Fault::Answer(change) = &self.rule.fault {
            change(&mut answer);
        }
        let body = answer.to_string();
        let half = || {
            let mut bytes = head(200, "application/json", Some(body.len()));
            bytes.extend_from_slice(&body.as_bytes()[..body.len() / 2]);
            bytes
        };
        if let Some((_, gate)) = &self.rule.after_tokens {
            connection.write(&half()).await;
            gate.pass().await;
            connection.write(&body.as_bytes()[body.len() / 2..]).await;
            return Some(After::KeepAlive);
        }
        match self.rule.fault {
            Fault::Truncated => {
                connection.write(&half()).await;
                Some(After::Close)
            }
            Fault::DieInBody => {
                connection.write(&half()).await;
                self.engine.die(self.life, "its script");
                Some(After::Reset)
            }
            Fault::StallInBody => {
                connection.write(&half()).await;
                connection.gone().await;
                None
            }
            Fault::DieAfter => {
                connection
                    .answer(200, "application/json", body.as_bytes())
                    .await;
                self.engine.die(self.life, "its script");
                Some(After::Close)
            }
            _ => Some(
                connection
                    .answer(200, "application/json", body.as_bytes())
                    .await,
            ),
        }
    }

    async fn failed_stream(&self, connection: &mut Connection, error: &Value) -> Option<After> {
        let mut bytes = head(200, "text/event-stream; charset=utf-8", None);
        if self.seen.path.contains("chat") {
            let said = Said {
                chat: true,
                id: "chatcmpl-x".to_owned(),
                words: Vec::new(),
                choices: 1,
                finish: "length",
                prompt_tokens: 0,
                params: Value::Null,
            };
            bytes.extend(event(&answers::role_chunk(&said).to_string()));
        }
        bytes.extend(event(&error.to_string()));
        bytes.extend(event("[DONE]"));
        bytes.extend_from_slice(b"0\r\n\r\n");
        connection.write(&bytes).await;
        Some(After::KeepAlive)
    }

    async fn stream(
        &self,
        connection: &mut Connection,
        said: &Said,
        body: &Value,
    ) -> Option<After> {
        let mut first = head(200, "text/event-stream; charset=utf-8", None);
        if said.chat {
            first.extend(event(&answers::role_chunk(said).to_string()));
        }
        if !connection.write(&first).await {
            return None;
        }
        for at in 0..=said.words.len() {
            if let Some((after, gate)) = self
                .rule
                .after_tokens
                .as_ref()
                .filter(|(after, _)| *after == at)
            {
                debug_assert_eq!(*after, at);
                tokio::select! {
                    () = connection.gone() => return None,
                    () = gate.pass() => {}
                }
            }
            if let Some(after) = self.break_stream(connection, said, at).await {
                return after;
            }
            if at < said.words.len() {
                let chunk = answers::token_chunk(said, at).to_string();
                if !connection.write(&event(&chunk)).await {
                    return None;
                }
            }
        }
        let mut last = Vec::new();
        if body["stream_options"]["include_usage"] == true {
            last.extend(event(&answers::usage_chunk(said).to_string()));
        }
        last.extend(event("[DONE]"));
        last.extend_from_slice(b"0\r\n\r\n");
        connection.write(&last).await;
        Some(After::KeepAlive)
    }

    /// What the script does to a stream after `at` tokens; `None` if nothing.
    async fn break_stream(
        &self,
        connection: &mut Connection,
        said: &Said,
        at: usize,
    ) -> Option<Option<After>> {
        match self.rule.fault {
            Fault::InBand { after, done } if after == at => {
                let mut bytes = event(&answers::internal_error().to_string());
                if done {
                    bytes.extend(event("[DONE]"));
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
                connection.write(&bytes).await;
                Some(Some(After::KeepAlive))
            }
            Fault::CutInEvent(after) if after == at => {
                let chunk = answers::token_chunk(said, at.min(said.words.len() - 1)).to_string();
                let mut bytes = chunked(&format!("data: {}", &chunk[..chunk.len() / 2]));
                bytes.extend_from_slice(b"0\r\n\r\n");
                connection.write(&bytes).await;
                Some(Some(After::KeepAlive))
            }
            Fault::EndEarly(after) if after == at => {
                connection.write(b"0\r\n\r\n").await;
                Some(Some(After::KeepAlive))
            }
            Fault::Stall(after) if after == at => {
                connection.gone().await;
                Some(None)
            }
            Fault::ResetAfter(after) if after == at => Some(Some(After::Reset)),
            Fault::DieAfterTokens(after) if after == at => {
                self.engine.die(self.life, "its script");
                Some(Some(After::Reset))
            }
            _ => None,
        }
    }
}

fn event(data: &str) -> Vec<u8> {
    chunked(&format!("data: {data}\n\n"))
}

fn chunked(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

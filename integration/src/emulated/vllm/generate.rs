//! A completion or a chat: what the engine does with it, and what the script makes of the answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use rand::Rng;
use serde_json::{Value, json};

use super::super::core::{Handoff, Output, Request as CoreRequest, Submitted};
use super::answers::{self, Answer, Said};
use super::engine::{EmulatedVllm, Life, Rank};
use super::request::{self, Ask, Refused};
use super::script::{Fault, Leg, Rule};
use super::seen::{Fate, Seen};
use super::server::{After, Connection, Request, head};

/// Remembers a request.
pub(super) fn note(engine: &EmulatedVllm, request: &Request) -> Seen {
    let body = String::from_utf8_lossy(&request.body).into_owned();
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let seen = Seen::new(leg_of(&parsed), &request.path, &request.headers, body);
    if engine.config().remember {
        engine.inner.seen.lock().unwrap().push(seen.clone());
    }
    seen
}

fn leg_of(body: &Value) -> Leg {
    let params = &body["kv_transfer_params"];
    if params["do_remote_prefill"] == true {
        Leg::Decode
    } else if params["do_remote_decode"] == true {
        Leg::Prefill
    } else {
        Leg::Local
    }
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
    engine: &EmulatedVllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let seen = note(engine, request);
    if engine.config().remember {
        connection.record(seen.recorder());
    }
    let rule = engine
        .rule_for(seen.leg, &seen.body)
        .unwrap_or_else(Rule::any);
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

pub(super) struct Work<'a> {
    pub(super) engine: &'a EmulatedVllm,
    pub(super) life: &'a Arc<Life>,
    pub(super) seen: &'a Seen,
    pub(super) rule: &'a Rule,
}

/// What happens next to a request in the engine.
pub(super) enum Next {
    Output(usize, Output),
    /// Whoever asked went away.
    Gone,
    /// The scheduler died.
    Dying,
}

/// A choice in the making.
pub(super) struct Choice {
    submitted: Submitted,
    pub(super) said: Said,
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
        if let Some(after) = self.instead(connection).await {
            return after;
        }
        let body: Value = serde_json::from_str(&self.seen.body).unwrap_or_default();
        let chat = self.seen.path.contains("chat");
        let tokenizer = &self.engine.inner.tokenizer;
        let asked = request::read(&body, chat, self.engine.config(), tokenizer);
        let (ask, rank) = match asked.and_then(|ask| Ok((ask, self.rank()?))) {
            Ok(asked) => asked,
            Err(refused) => return Some(connection.json(refused.status, &refused.body()).await),
        };
        let prefix = if chat { "chatcmpl" } else { "cmpl" };
        let name = self.seen.header("x-request-id").map(str::to_owned);
        let name = name.unwrap_or_else(|| format!("{:016x}", rand::rng().random::<u64>()));
        let answer = Answer {
            id: format!("{prefix}-{name}"),
            ask: &ask,
            config: self.engine.config(),
        };
        let mut choices = submit(&answer, rank);
        if ask.stream {
            self.stream(connection, &answer, &mut choices).await
        } else {
            self.unary(connection, &answer, &mut choices).await
        }
    }

    /// What the script says in place of the engine; `None` if nothing.
    async fn instead(&self, connection: &mut Connection) -> Option<Option<After>> {
        const JSON: &str = "application/json";
        let after = match &self.rule.fault {
            Fault::Hang => {
                connection.gone().await;
                return Some(None);
            }
            Fault::HangAfterHead => {
                connection.write(&head(200, JSON, None)).await;
                connection.gone().await;
                return Some(None);
            }
            Fault::Reset => After::Reset,
            Fault::Die => {
                self.killed().await;
                After::Reset
            }
            Fault::Status(status, body) => connection.answer(*status, JSON, body.as_bytes()).await,
            Fault::EmptyOk => connection.answer(200, JSON, b"").await,
            Fault::BodyOk(body) => connection.answer(200, JSON, body.as_bytes()).await,
            Fault::Garbage => {
                connection
                    .write(b"\x00\x01\x02 no HTTP at all\r\n\r\n")
                    .await;
                After::Close
            }
            Fault::Raw(answer) => {
                let id = self.seen.header("x-request-id").unwrap_or_default();
                return Some(connection.play(&answer.clone().naming(id)).await);
            }
            _ => return None,
        };
        Some(Some(after))
    }

    /// The process ends at once, as by SIGKILL: nothing of it is left when this returns but this connection.
    async fn killed(&self) {
        self.life.death.dead.cancel();
        let engine = self.engine.clone();
        tokio::spawn(async move { engine.kill().await });
        tokio::task::yield_now().await;
    }

    /// The rank that a header names, or the least busy one.
    fn rank(&self) -> Result<&Rank, Refused> {
        let ranks = &self.life.ranks;
        let named = self.seen.header("x-data-parallel-rank");
        // What is no number names none.
        let Some(named) = named.and_then(|named| named.parse::<usize>().ok()) else {
            let busy = |rank: &&Rank| {
                let stats = rank.core.stats();
                stats.running + stats.waiting + stats.fetching
            };
            let free = if ranks.len() == 1 {
                ranks.first()
            } else {
                ranks.iter().min_by_key(busy)
            };
            return Ok(free.expect("an engine has a rank"));
        };
        ranks.get(named).ok_or_else(|| Refused {
            status: 400,
            kind: "BadRequestError",
            message: format!(
                "data_parallel_rank {named} is out of range [0, {}).",
                ranks.len()
            ),
            param: None,
        })
    }

    /// What comes next of any choice.
    pub(super) async fn next(&self, connection: &mut Connection, choices: &mut [Choice]) -> Next {
        let output = poll_fn(|context| {
            for (index, choice) in choices.iter_mut().enumerate() {
                if choice.said.finish.is_none()
                    && let Poll::Ready(output) = choice.submitted.poll_next(context)
                {
                    return Poll::Ready((index, output));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            (index, output) = output => output.map_or(Next::Dying, |output| Next::Output(index, output)),
            () = self.life.death.dying.cancelled() => Next::Dying,
            () = connection.gone() => Next::Gone,
        }
    }

    /// What an output adds to the text of a choice.
    pub(super) fn take(&self, said: &mut Said, output: Output) -> String {
        let Output::Token { id, text, finish } = output else {
            said.finish = Some("abort");
            return String::new();
        };
        said.tokens.push(id);
        said.pieces.push(self.engine.inner.tokenizer.text(id));
        said.text.push_str(&text);
        if let Some(finish) = finish {
            said.stop = finish.stop;
            said.cached = finish.cached;
            said.computed = finish.computed;
            said.held = finish.held;
            said.finish = Some(match self.rule.fault {
                Fault::Finish(reason) => reason,
                _ => finish.reason,
            });
        }
        text
    }

    async fn unary(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        choices: &mut [Choice],
    ) -> Option<After> {
        while choices.iter().any(|choice| choice.said.finish.is_none()) {
            match self.next(connection, choices).await {
                Next::Output(_, Output::LoadFailed) => {
                    return Some(connection.json(500, &answers::internal_error()).await);
                }
                Next::Output(index, output) => {
                    self.take(&mut choices[index].said, output);
                }
                Next::Gone => return None,
                Next::Dying => {
                    connection.json(500, &answers::engine_dead()).await;
                    return Some(After::Reset);
                }
            }
        }
        let said: Vec<Said> = choices.iter().map(|choice| choice.said.clone()).collect();
        let mut body = answer.whole(&said, &self.params(answer.ask, &said));
        if let Fault::Answer(change) = &self.rule.fault {
            change(&mut body);
        }
        self.send_whole(connection, &body.to_string()).await
    }

    /// Where decode finds the KV that is held: of several prompts the first one's, of its choices the last one's. What is
    /// held for the others nobody learns.
    pub(super) fn params(&self, ask: &Ask, said: &[Said]) -> Value {
        let Some((held, said)) = said[..ask.n.min(said.len())]
            .iter()
            .rev()
            .find_map(|said| Some((said.held.as_ref()?, said)))
        else {
            return Value::Null;
        };
        let mut params = json!({
            "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [held.blocks],
            "remote_engine_id": self.life.engine_id, "remote_request_id": held.request_id, "remote_host": "127.0.0.1",
            "remote_port": self.engine.side_channel().port(), "tp_size": 1, "dcp_size": 1, "pp_size": 1,
            "remote_num_tokens": held.tokens, "remote_blocks_expiry_time": null, "transfer_mode": "pull",
        });
        if said.tokens.len() == 1 {
            params["remote_prefill_cached_tokens"] = said.cached.into();
        }
        if let Fault::Params(change) = &self.rule.fault {
            change(&mut params);
        }
        params
    }

    async fn send_whole(&self, connection: &mut Connection, body: &str) -> Option<After> {
        const JSON: &str = "application/json";
        let (first, second) = body.as_bytes().split_at(body.len() / 2);
        let half = [head(200, JSON, Some(body.len())), first.to_vec()].concat();
        if let Some((_, gate)) = &self.rule.after_tokens {
            connection.write(&half).await;
            gate.pass().await;
            connection.write(second).await;
            return Some(After::KeepAlive);
        }
        match self.rule.fault {
            Fault::Truncated => {
                connection.write(&half).await;
                Some(After::Close)
            }
            Fault::DieInBody => {
                connection.write(&half).await;
                self.killed().await;
                Some(After::Reset)
            }
            Fault::StallInBody => {
                connection.write(&half).await;
                connection.gone().await;
                None
            }
            Fault::DieAfter => {
                connection.answer(200, JSON, body.as_bytes()).await;
                self.killed().await;
                Some(After::Close)
            }
            _ => Some(connection.answer(200, JSON, body.as_bytes()).await),
        }
    }

    async fn stream(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        choices: &mut [Choice],
    ) -> Option<After> {
        let mut first = head(200, "text/event-stream; charset=utf-8", None);
        if answer.ask.chat {
            for index in 0..choices.len() {
                first.extend(event(&answer.role_chunk(index).to_string()));
            }
        }
        if !connection.write(&first).await {
            return None;
        }
        for sent in 0.. {
            if let Some(after) = self.disturb(connection, answer, choices, sent).await {
                return after;
            }
            if choices.iter().all(|choice| choice.said.finish.is_some()) {
                break;
            }
            let (index, output) = match self.next(connection, choices).await {
                Next::Output(_, Output::LoadFailed) => {
                    return Some(fail_stream(connection, &answers::internal_error(), true).await);
                }
                Next::Output(index, output) => (index, output),
                Next::Gone => return None,
                Next::Dying => {
                    fail_stream(connection, &answers::engine_dead(), true).await;
                    return Some(After::Reset);
                }
            };
            let said = &mut choices[index].said;
            let text = self.take(said, output);
            let chunk = answer.token_chunk(index, said, &text).to_string();
            if !connection.write(&event(&chunk)).await {
                return None;
            }
        }
        connection.write(&ending(answer, choices)).await;
        Some(After::KeepAlive)
    }

    /// What the script does to a stream after so many chunks; `None` if nothing.
    async fn disturb(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        choices: &[Choice],
        sent: usize,
    ) -> Option<Option<After>> {
        if let Some((after, gate)) = &self.rule.after_tokens
            && *after == sent
        {
            tokio::select! {
                () = connection.gone() => return Some(None),
                () = gate.pass() => {}
            }
        }
        let after = match self.rule.fault {
            Fault::InBand { after, done } if after == sent => {
                fail_stream(connection, &answers::internal_error(), done).await
            }
            Fault::CutInEvent(after) if after == sent => {
                let chunk = answer.token_chunk(0, &choices[0].said, "cut").to_string();
                let mut bytes = chunked(&format!("data: {}", &chunk[..chunk.len() / 2]));
                bytes.extend_from_slice(b"0\r\n\r\n");
                connection.write(&bytes).await;
                After::KeepAlive
            }
            Fault::EndEarly(after) if after == sent => {
                connection.write(b"0\r\n\r\n").await;
                After::KeepAlive
            }
            Fault::Stall(after) if after == sent => {
                connection.gone().await;
                return Some(None);
            }
            Fault::ResetAfter(after) if after == sent => After::Reset,
            Fault::DieAfterTokens(after) if after == sent => {
                self.killed().await;
                After::Reset
            }
            _ => return None,
        };
        Some(Some(after))
    }
}

pub(super) fn submit(answer: &Answer<'_>, rank: &Rank) -> Vec<Choice> {
    let ask = answer.ask;
    let mut choices = Vec::new();
    for (at, prompt) in ask.prompts.iter().enumerate() {
        for child in 0..ask.n {
            let mut sampling = ask.sampling.clone();
            // Equal prompts with equal seeds would say the same.
            sampling.seed = sampling.seed.wrapping_add(child as u64);
            let request = CoreRequest {
                id: internal_id(answer, at, child),
                prompt: prompt.clone(),
                keys: ask.keys.clone(),
                sampling,
                handoff: handoff(ask),
                report_hits: ask.report_hits,
                skip_cache: ask.wants_prompt_logits(),
            };
            choices.push(Choice {
                submitted: rank.core.submit(request),
                said: Said::default(),
            });
        }
    }
    choices
}

/// The engine's own id: callers' ids may repeat, these do not unless that was switched off.
fn internal_id(answer: &Answer<'_>, prompt: usize, child: usize) -> String {
    let mut name = answer.id.clone();
    if !answer.ask.chat {
        name = format!("{name}-{prompt}");
    }
    if !answer.config.plain_ids {
        let suffix: u32 = rand::rng().random();
        name = format!("{name}-{suffix:08x}");
    }
    if answer.ask.n > 1 {
        format!("{child}_{name}")
    } else {
        name
    }
}

/// A prompt whose logits are wanted is computed, whatever is held elsewhere.
fn handoff(ask: &Ask) -> Handoff {
    match &ask.handoff {
        Handoff::Fetch(_) if ask.wants_prompt_logits() => Handoff::None,
        other => other.clone(),
    }
}

fn ending(answer: &Answer<'_>, choices: &[Choice]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if answer.ask.include_usage {
        let said: Vec<Said> = choices.iter().map(|choice| choice.said.clone()).collect();
        bytes.extend(event(&answer.usage_chunk(&said).to_string()));
    }
    bytes.extend(event("[DONE]"));
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

async fn fail_stream(connection: &mut Connection, error: &Value, done: bool) -> After {
    let mut bytes = event(&error.to_string());
    if done {
        bytes.extend(event("[DONE]"));
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    connection.write(&bytes).await;
    After::KeepAlive
}

pub(super) fn event(data: &str) -> Vec<u8> {
    chunked(&format!("data: {data}\n\n"))
}

pub(super) fn chunked(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

//! A completion or a chat: what the engine does with it, and what the script makes of the answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use rand::Rng;
use serde_json::{Value, json};

use super::super::core::{CacheUse, Handoff, Output, Request as CoreRequest, Submitted};
use super::super::misbehave::{Scripted, event, fail_stream};
use super::super::process::{Life, Rank};
use super::super::script::{Fault, Leg};
use super::super::server::{After, Connection, Request, head};
use super::answers::{self, Answer, Said};
use super::engine::EmulatedVllm;
use super::request::{self, Ask, Refused};

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

/// Answers a completion or a chat.
pub(super) async fn generate(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let scripted = scripted(connection, engine, life, request);
    let work = Work {
        engine,
        scripted: &scripted,
    };
    let after = work.run(connection).await;
    scripted.ended(after)
}

/// A request as it came, and its rule.
pub(super) fn scripted(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    life: &Arc<Life>,
    request: &Request,
) -> Scripted {
    let parsed: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let leg = leg_of(&parsed);
    Scripted::new(connection, engine.process(), life, leg, request)
}

pub(super) struct Work<'a> {
    pub(super) engine: &'a EmulatedVllm,
    pub(super) scripted: &'a Scripted,
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
        if let Some(after) = self.scripted.instead(connection).await {
            return after;
        }
        let seen = &self.scripted.seen;
        let body: Value = serde_json::from_str(&seen.body).unwrap_or_default();
        let chat = seen.path.contains("chat");
        let tokenizer = &self.engine.tokenizer;
        let asked = request::read(&body, chat, self.engine.config(), tokenizer);
        let (ask, rank) = match asked.and_then(|ask| Ok((ask, self.rank()?))) {
            Ok(asked) => asked,
            Err(refused) => return Some(connection.json(refused.status, &refused.body()).await),
        };
        let prefix = if chat { "chatcmpl" } else { "cmpl" };
        let name = seen.header("x-request-id").map(str::to_owned);
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

    /// The rank that a header names, or the least busy one.
    fn rank(&self) -> Result<&Rank, Refused> {
        let ranks = &self.scripted.life.ranks;
        let named = self.scripted.seen.header("x-data-parallel-rank");
        // What is no number names none.
        let Some(named) = named.and_then(|named| named.parse::<usize>().ok()) else {
            return Ok(&ranks[self.scripted.life.least_busy()]);
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
            () = self.scripted.life.death.dying.cancelled() => Next::Dying,
            () = connection.gone() => Next::Gone,
        }
    }

    /// What an output adds to the text of a choice.
    pub(super) fn take(&self, said: &mut Said, output: Output) -> String {
        let Output::Token {
            id, text, finish, ..
        } = output
        else {
            said.finish = Some("abort");
            return String::new();
        };
        said.tokens.push(id);
        said.pieces.push(self.engine.tokenizer.text(id));
        said.text.push_str(&text);
        if let Some(finish) = finish {
            said.stop = finish.stop;
            said.cached = finish.cached;
            said.computed = finish.computed;
            said.held = finish.held;
            said.finish = Some(match self.scripted.rule.fault {
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
        let body = answer.whole(&said, &self.params(answer.ask, &said));
        self.scripted.whole(connection, body).await
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
            "remote_engine_id": self.scripted.life.engine_id, "remote_request_id": held.request_id, "remote_host": "127.0.0.1",
            "remote_port": self.engine.side_channel().port(), "tp_size": 1, "dcp_size": 1, "pp_size": 1,
            "remote_num_tokens": held.tokens, "remote_blocks_expiry_time": null, "transfer_mode": "pull",
        });
        if said.tokens.len() == 1 {
            params["remote_prefill_cached_tokens"] = said.cached.into();
        }
        if let Fault::Params(change) = &self.scripted.rule.fault {
            change(&mut params);
        }
        params
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
            let error = answers::internal_error();
            let torn = || answer.token_chunk(0, &choices[0].said, "cut").to_string();
            if let Some(after) = self.scripted.disturb(connection, sent, &error, torn).await {
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
                cache: if ask.wants_prompt_logits() {
                    CacheUse::Leaves
                } else {
                    CacheUse::Whole
                },
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

//! `/generate` and the `OpenAI` routes: the sequences of a request, and what is made of them.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;

use super::super::legs::{Abort, Legs, Next, Said};
use super::super::misbehave::{Scripted, event, fail_stream};
use super::super::process::Life;
use super::super::script::Leg as Side;
use super::super::server::{After, Connection, Request, head};
use super::answers::{self, Answer, stream_error};
use super::config::Mode;
use super::engine::{EmulatedSglang, Named};
use super::leg::Leg;
use super::request::{self, Ask, Refused, Route};

pub(super) struct Work<'a> {
    engine: &'a EmulatedSglang,
    scripted: &'a Scripted,
    route: Route,
    started: Instant,
}

/// Answers a request.
pub(super) async fn generate(
    connection: &mut Connection,
    engine: &EmulatedSglang,
    life: &Arc<Life>,
    request: &Request,
    route: Route,
) -> After {
    let side = match engine.config().mode {
        Mode::Null => Side::Local,
        Mode::Prefill => Side::Prefill,
        Mode::Decode => Side::Decode,
    };
    let scripted = Scripted::new(connection, engine.process(), life, side, request);
    let work = Work {
        engine,
        scripted: &scripted,
        route,
        started: Instant::now(),
    };
    let after = work.run(connection).await;
    scripted.ended(after)
}

impl Work<'_> {
    /// `None` if the peer went away.
    async fn run(&self, connection: &mut Connection) -> Option<After> {
        if let Some(after) = self.scripted.instead(connection).await {
            return after;
        }
        let body: Value = serde_json::from_str(&self.scripted.seen.body).unwrap_or_default();
        let config = self.engine.config();
        let asked = request::read(&body, self.route, config, &self.engine.tokenizer);
        let ask = match asked {
            Ok(ask) => ask,
            Err(refused) => return Some(self.refuse(connection, &refused, &body).await),
        };
        let every = config.patience.disconnect_poll;
        let mut legs = Legs::new(self.scripted, self.started, every);
        let _named = match self.begin(&ask, &mut legs) {
            Ok(named) => named,
            Err(refused) => return Some(self.refuse(connection, &refused, &body).await),
        };
        let answer = Answer {
            ask: &ask,
            config,
            end: self.engine.tokenizer.end(),
        };
        let after = if ask.stream {
            self.stream(connection, &answer, &mut legs).await
        } else {
            self.unary(connection, &answer, &mut legs).await
        };
        if after.is_none() {
            legs.give_up();
        }
        after
    }

    /// What the scheduler finds out is told inside a stream that was asked for.
    async fn refuse(&self, connection: &mut Connection, refused: &Refused, body: &Value) -> After {
        if refused.late && body["stream"] == true && self.route != Route::Generate {
            connection.write(&stream_head()).await;
            let error = stream_error(refused.status, &refused.message);
            return fail_stream(connection, &error, true).await;
        }
        let body = refused.body(self.route);
        connection.json(refused.status, &body).await
    }

    /// Starts all sequences; the names under which they can be aborted.
    fn begin(&self, ask: &Ask, legs: &mut Legs<'_>) -> Result<Vec<Named>, Refused> {
        let mut handles = Vec::new();
        for part in &ask.parts {
            for child in 0..ask.n {
                let named = self.engine.name(&part.rid);
                let mut bootstrap = part.bootstrap.clone();
                if let Some(at) = &mut bootstrap {
                    at.room = at.room.wrapping_add(child as u64);
                }
                let room = bootstrap.as_ref().map(|at| at.room);
                let mut sampling = ask.sampling.clone();
                // Equal prompts with equal seeds would say the same.
                sampling.seed = sampling.seed.wrapping_add(child as u64);
                let leg = Leg {
                    engine: self.engine.clone(),
                    life: Arc::clone(&self.scripted.life),
                    rank: self.engine.rank_for(&self.scripted.life, ask, room)?,
                    rid: part.rid.clone(),
                    prompt: part.prompt.clone(),
                    keys: ask.keys.clone(),
                    sampling,
                    bootstrap,
                    prefill_dp_rank: ask.prefill_dp_rank,
                    cancel: named.cancel.clone(),
                    said: legs.add(named.cancel.clone(), ask.sampling.limit),
                };
                tokio::spawn(leg.run());
                handles.push(named);
            }
        }
        Ok(handles)
    }

    async fn unary(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        legs: &mut Legs<'_>,
    ) -> Option<After> {
        while !legs.are_over() {
            match legs.next(connection).await {
                Next::Heard(index, heard) => {
                    legs.take(index, heard);
                }
                Next::Gone => return None,
                // The real process is killed by its own scheduler, and says nothing.
                Next::Dying => return Some(After::Reset),
            }
        }
        let said = legs.said();
        let abort = said.iter().find_map(Said::abort);
        if let Some(Abort {
            status: Some(status),
            ..
        }) = abort
        {
            let body = answers::abort_body(abort?);
            return Some(connection.json(*status, &body).await);
        }
        self.scripted.whole(connection, answer.whole(&said)).await
    }

    async fn stream(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        legs: &mut Legs<'_>,
    ) -> Option<After> {
        if !connection.write(&stream_head()).await {
            return None;
        }
        let mut begun = vec![false; legs.len()];
        for sent in 0.. {
            let error = stream_error(500, "Internal server error");
            let torn = || self.chunk(answer, 0, legs.of(0), "cut").to_string();
            if let Some(after) = self.scripted.disturb(connection, sent, &error, torn).await {
                return after;
            }
            if legs.are_over() {
                break;
            }
            let (index, heard) = match legs.next(connection).await {
                Next::Heard(index, heard) => (index, heard),
                Next::Gone => return None,
                Next::Dying => return Some(After::Reset),
            };
            let text = legs.take(index, heard);
            let said = legs.of(index);
            if self.route != Route::Generate
                && let Some(abort) = said.abort()
            {
                let error = stream_error(abort.status.unwrap_or(500), &abort.message);
                return Some(fail_stream(connection, &error, true).await);
            }
            let first = !std::mem::replace(&mut begun[index], true);
            let bytes = self.frames(answer, index, said, &text, first);
            // Who has left is not missed yet.
            connection.write(&bytes).await;
        }
        connection.write(&ending(answer, legs)).await;
        Some(After::KeepAlive)
    }

    /// What one more token is told in: a chat begins and ends with a chunk of its own.
    fn frames(
        &self,
        answer: &Answer<'_>,
        index: usize,
        said: &Said,
        text: &str,
        first: bool,
    ) -> Vec<u8> {
        let chat = self.route == Route::Chat;
        let mut bytes = Vec::new();
        if chat && first {
            bytes.extend(event(&answer.role_chunk(index).to_string()));
        }
        bytes.extend(event(&self.chunk(answer, index, said, text).to_string()));
        if chat && said.finish.is_some() {
            bytes.extend(event(&answer.end_chunk(index, said).to_string()));
        }
        bytes
    }

    fn chunk(&self, answer: &Answer<'_>, index: usize, said: &Said, text: &str) -> Value {
        if self.route != Route::Generate {
            return answer.token_chunk(index, said, text);
        }
        let mut chunk = answer.generated(index, said);
        if answer.ask.batch {
            chunk["index"] = index.into();
        }
        chunk
    }
}

fn stream_head() -> Vec<u8> {
    head(200, "text/event-stream; charset=utf-8", None)
}

fn ending(answer: &Answer<'_>, legs: &Legs<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if answer.ask.include_usage && answer.ask.route != Route::Generate {
        let said = legs.said();
        bytes.extend(event(&answer.usage_chunk(&said).to_string()));
    }
    bytes.extend(event("[DONE]"));
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

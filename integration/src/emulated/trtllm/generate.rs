//! `/v1/completions` and `/v1/chat/completions`: the sequences of a request, and what is made of them.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::legs::{Abort, Legs, Next, Said};
use super::super::misbehave::{Scripted, event};
use super::super::process::Life;
use super::super::script::{Fault, Leg as Side};
use super::super::server::{After, Connection, Request, head};
use super::answers::{self, Answer, stream_error};
use super::auth;
use super::config::Era;
use super::engine::EmulatedTrtllm;
use super::leg::Leg;
use super::params::{Params, RequestType, Told};
use super::request::{self, Ask, Refused, Route};

struct Work<'a> {
    engine: &'a EmulatedTrtllm,
    scripted: &'a Scripted,
    route: Route,
    started: Instant,
}

/// Answers a request.
pub(super) async fn generate(
    connection: &mut Connection,
    engine: &EmulatedTrtllm,
    life: &Arc<Life>,
    request: &Request,
    route: Route,
) -> After {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let scripted = Scripted::new(connection, engine.process(), life, side(&body), request);
    let work = Work {
        engine,
        scripted: &scripted,
        route,
        started: Instant::now(),
    };
    let after = work.run(connection, &body).await;
    scripted.ended(after)
}

fn side(body: &Value) -> Side {
    let kind = body["disaggregated_params"]["request_type"].as_str();
    match kind.unwrap_or_default().to_lowercase().as_str() {
        "context_only" => Side::Prefill,
        "generation_only" => Side::Decode,
        _ => Side::Local,
    }
}

impl Work<'_> {
    /// `None` if the peer went away.
    async fn run(&self, connection: &mut Connection, body: &Value) -> Option<After> {
        if let Some(after) = self.scripted.instead(connection).await {
            return after;
        }
        let config = self.engine.config();
        let asked = request::read(body, self.route, config, &self.engine.tokenizer);
        let asked = asked.and_then(|ask| self.vouched_for(body).map(|()| ask));
        let ask = match asked {
            Ok(ask) => ask,
            Err(refused) => {
                let told = connection.json(refused.status, &refused.body()).await;
                return Some(told);
            }
        };
        let mut legs = Legs::new(self.scripted, self.started, config.patience.disconnect_poll);
        let answer = Answer {
            ask: &ask,
            config,
            tokenizer: &self.engine.tokenizer,
            id: answers::id(self.route),
            told: self.begin(&ask, &mut legs),
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

    fn vouched_for(&self, body: &Value) -> Result<(), Refused> {
        let (params, headers) = (&body["disaggregated_params"], &self.scripted.seen.headers);
        if auth::is_vouched_for(&self.engine.config().auth, params, headers) {
            return Ok(());
        }
        Err(Refused::bad(
            "Invalid internal disaggregated request authentication",
        ))
    }

    /// Starts all sequences; what is told of the other leg of each.
    fn begin(&self, ask: &Ask, legs: &mut Legs<'_>) -> Vec<Value> {
        let mut told = Vec::new();
        for prompt in &ask.prompts {
            for child in 0..ask.n {
                let mut sampling = ask.sampling.clone();
                // Equal prompts with equal seeds would say the same.
                sampling.seed = sampling.seed.wrapping_add(child as u64);
                let known = ask.params.as_ref().and_then(Params::request_id);
                let (id, rank) = (
                    known.unwrap_or_else(|| self.engine.next_id()),
                    self.rank_for(ask),
                );
                let cancel = CancellationToken::new();
                let leg = Leg {
                    engine: self.engine.clone(),
                    life: Arc::clone(&self.scripted.life),
                    rank,
                    id,
                    prompt: prompt.clone(),
                    keys: ask.keys.clone(),
                    said: legs.add(cancel.clone(), sampling.limit),
                    sampling,
                    params: ask.params.clone(),
                    cancel,
                };
                tokio::spawn(leg.run());
                told.push(self.told(ask, id, rank));
            }
        }
        told
    }

    /// Where generation is asked first, only the first rank can be found.
    fn rank_for(&self, ask: &Ask) -> usize {
        match &ask.params {
            Some(params) if params.generation_first => 0,
            _ => self.scripted.life.least_busy(),
        }
    }

    /// What an answer says of the other leg; what context has said is put in when it is known.
    fn told(&self, ask: &Ask, id: u64, rank: usize) -> Value {
        let era = self.engine.config().era;
        match &ask.params {
            None => Value::Null,
            Some(params) if params.request_type == RequestType::ContextOnly => Told {
                era,
                params,
                id,
                at: self.engine.seat(rank).address,
                rank,
            }
            .json(),
            Some(params) => params.told(era),
        }
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
                Next::Dying => return Some(After::Reset),
            }
        }
        let said = legs.said();
        if let Some(Abort { message, .. }) = said.iter().find_map(Said::abort) {
            let refused = Refused::bad(format!("Generation failed: {message}"));
            return Some(connection.json(refused.status, &refused.body()).await);
        }
        self.engine.finished(answer, self.started);
        let mut whole = answer.whole(&said);
        if let Fault::Params(change) = &self.scripted.rule.fault {
            change(&mut whole["choices"][0]["disaggregated_params"]);
        }
        self.scripted.whole(connection, whole).await
    }

    async fn stream(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        legs: &mut Legs<'_>,
    ) -> Option<After> {
        let opening = head(200, "text/event-stream; charset=utf-8", None);
        if !connection.write(&opening).await {
            return None;
        }
        let mut begun = vec![false; legs.len()];
        for sent in 0.. {
            let error = stream_error("Internal server error");
            let torn = || answer.token_chunk(0, legs.of(0), "cut").to_string();
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
            if let Some(Abort { message, .. }) = said.abort() {
                return Some(self.break_off(connection, message).await);
            }
            let first = !std::mem::replace(&mut begun[index], true);
            let bytes = self.frames(answer, index, said, &text, first);
            // Who has left is not missed yet.
            connection.write(&bytes).await;
        }
        self.engine.finished(answer, self.started);
        connection.write(&ending(answer, legs)).await;
        Some(After::KeepAlive)
    }

    /// A chat breaks; a completion says why, and that it is over, twice. Of 1.2 nothing was read: there it breaks, too.
    async fn break_off(&self, connection: &mut Connection, message: &str) -> After {
        if self.route == Route::Chat || self.engine.config().era == Era::V12 {
            return After::Close;
        }
        let mut bytes = event(&stream_error(message).to_string());
        bytes.extend(event("[DONE]"));
        bytes.extend(event("[DONE]"));
        bytes.extend_from_slice(b"0\r\n\r\n");
        connection.write(&bytes).await;
        After::KeepAlive
    }

    /// What one more token is told in. The first line of a chat has a blank too many at its end.
    fn frames(
        &self,
        answer: &Answer<'_>,
        index: usize,
        said: &Said,
        text: &str,
        first: bool,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.route == Route::Chat && first {
            bytes.extend(event(&format!("{} ", answer.role_chunk(index))));
        }
        bytes.extend(event(&answer.token_chunk(index, said, text).to_string()));
        bytes
    }
}

fn ending(answer: &Answer<'_>, legs: &Legs<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if answer.ask.include_usage {
        bytes.extend(event(&answer.usage_chunk(&legs.said()).to_string()));
    }
    bytes.extend(event("[DONE]"));
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

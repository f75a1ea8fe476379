//! `/generate` and the `OpenAI` routes: the sequences of a request, and what is made of them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::misbehave::{Scripted, event, fail_stream};
use super::super::process::Life;
use super::super::script::{Fault, Leg as Side};
use super::super::server::{After, Connection, Request, head};
use super::answers::{self, Answer, Ending, Said, stream_error};
use super::config::Mode;
use super::engine::{EmulatedSglang, Named};
use super::leg::{Abort, Heard, Leg};
use super::request::{self, Ask, Refused, Route};

/// A sequence has room for all that it says, up to so many tokens.
const MOST: usize = 1 << 16;

/// A sequence in the making.
struct Choice {
    heard: mpsc::Receiver<Heard>,
    said: Said,
    cancel: CancellationToken,
    _named: Named,
}

/// What happens next to a request.
enum Next {
    Heard(usize, Heard),
    /// Whoever asked went away, and that was noticed.
    Gone,
    /// The scheduler died.
    Dying,
}

/// When it was seen that the client has left, and when that is looked at.
#[derive(Default)]
struct Absence(Option<Instant>);

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
        let mut choices = match self.begin(&ask) {
            Ok(choices) => choices,
            Err(refused) => return Some(self.refuse(connection, &refused, &body).await),
        };
        let answer = Answer {
            ask: &ask,
            config,
            end: self.engine.tokenizer.end(),
        };
        let after = if ask.stream {
            self.stream(connection, &answer, &mut choices).await
        } else {
            self.unary(connection, &answer, &mut choices).await
        };
        if after.is_none() {
            for choice in &choices {
                choice.cancel.cancel();
            }
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

    fn begin(&self, ask: &Ask) -> Result<Vec<Choice>, Refused> {
        let mut choices = Vec::new();
        for part in &ask.parts {
            for child in 0..ask.n {
                let (say, heard) = mpsc::channel(ask.sampling.limit.min(MOST) + 2);
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
                    said: say,
                };
                tokio::spawn(leg.run());
                choices.push(Choice {
                    heard,
                    said: Said::default(),
                    cancel: named.cancel.clone(),
                    _named: named,
                });
            }
        }
        Ok(choices)
    }

    /// What comes next of any choice.
    async fn next(
        &self,
        connection: &mut Connection,
        choices: &mut [Choice],
        absence: &mut Absence,
    ) -> Next {
        let heard = poll_fn(|context| {
            for (index, choice) in choices.iter_mut().enumerate() {
                if choice.said.finish.is_none()
                    && let Poll::Ready(heard) = choice.heard.poll_recv(context)
                {
                    return Poll::Ready((index, heard));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            (index, heard) = heard => heard.map_or(Next::Dying, |heard| Next::Heard(index, heard)),
            () = self.scripted.life.death.dying.cancelled() => Next::Dying,
            () = self.noticed(connection, absence) => Next::Gone,
        }
    }

    /// Resolves when it is noticed that the client has left: it is looked at every now and then only.
    async fn noticed(&self, connection: &mut Connection, absence: &mut Absence) {
        if absence.0.is_none() {
            connection.gone().await;
            let every = self.engine.config().patience.disconnect_poll;
            let waited = self.started.elapsed();
            let looks = waited.as_nanos() / every.as_nanos().max(1) + 1;
            let looks = u32::try_from(looks).unwrap_or(u32::MAX);
            absence.0 = Some(self.started + every * looks);
        }
        let looks = tokio::time::sleep_until(absence.0.expect("it was seen"));
        tokio::select! {
            () = looks => {}
            () = self.engine.watches() => {}
        }
    }

    /// What an output adds to the text of a choice.
    fn take(&self, said: &mut Said, heard: Heard) -> String {
        match heard {
            Heard::Aborted(abort) => {
                said.finish = Some(Ending::Aborted(abort));
                String::new()
            }
            Heard::Token {
                id,
                text,
                cached,
                finish,
            } => {
                said.cached = cached;
                said.tokens.push(id);
                said.text.push_str(&text);
                if let Some(finish) = finish {
                    let reason = match self.scripted.rule.fault {
                        Fault::Finish(reason) => reason,
                        _ => finish.reason,
                    };
                    said.finish = Some(Ending::Finished {
                        reason,
                        stop: finish.stop,
                    });
                }
                text
            }
        }
    }

    async fn unary(
        &self,
        connection: &mut Connection,
        answer: &Answer<'_>,
        choices: &mut [Choice],
    ) -> Option<After> {
        let mut absence = Absence::default();
        while choices.iter().any(|choice| choice.said.finish.is_none()) {
            match self.next(connection, choices, &mut absence).await {
                Next::Heard(index, heard) => {
                    self.take(&mut choices[index].said, heard);
                }
                Next::Gone => return None,
                // The real process is killed by its own scheduler, and says nothing.
                Next::Dying => return Some(After::Reset),
            }
        }
        let said: Vec<Said> = choices.iter().map(|choice| choice.said.clone()).collect();
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
        choices: &mut [Choice],
    ) -> Option<After> {
        if !connection.write(&stream_head()).await {
            return None;
        }
        let mut absence = Absence::default();
        let mut begun = vec![false; choices.len()];
        for sent in 0.. {
            let error = stream_error(500, "Internal server error");
            let torn = || self.chunk(answer, 0, &choices[0].said, "cut").to_string();
            if let Some(after) = self.scripted.disturb(connection, sent, &error, torn).await {
                return after;
            }
            if choices.iter().all(|choice| choice.said.finish.is_some()) {
                break;
            }
            let (index, heard) = match self.next(connection, choices, &mut absence).await {
                Next::Heard(index, heard) => (index, heard),
                Next::Gone => return None,
                Next::Dying => return Some(After::Reset),
            };
            let said = &mut choices[index].said;
            let text = self.take(said, heard);
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
        connection.write(&ending(answer, choices)).await;
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

fn ending(answer: &Answer<'_>, choices: &[Choice]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if answer.ask.include_usage && answer.ask.route != Route::Generate {
        let said: Vec<Said> = choices.iter().map(|choice| choice.said.clone()).collect();
        bytes.extend(event(&answer.usage_chunk(&said).to_string()));
    }
    bytes.extend(event("[DONE]"));
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

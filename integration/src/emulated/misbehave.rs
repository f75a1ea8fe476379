//! One request under its rule: what the script makes of the answer, in place of the engine or in the middle of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::process::{Life, Process};
use super::script::{Fault, Leg, Rule};
use super::seen::{Fate, Seen};
use super::server::{After, Connection, Request, head};

const JSON: &str = "application/json";

/// A request that the engine works on.
pub(super) struct Scripted {
    pub(super) process: Arc<Process>,
    pub(super) life: Arc<Life>,
    pub(super) seen: Seen,
    pub(super) rule: Rule,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.life.running.fetch_sub(1, Ordering::Relaxed);
        // Dropped before it was answered: the connection is gone, or the engine is.
        self.seen.ended(Fate::Aborted);
    }
}

impl Scripted {
    /// Remembers a request, and finds its rule.
    pub(super) fn new(
        connection: &mut Connection,
        process: &Arc<Process>,
        life: &Arc<Life>,
        leg: Leg,
        request: &Request,
    ) -> Self {
        let seen = process.note(leg, request);
        if process.remembers() {
            connection.record(seen.recorder());
        }
        let rule = process.rule_for(leg, &seen.body);
        life.running.fetch_add(1, Ordering::Relaxed);
        Self {
            process: Arc::clone(process),
            life: Arc::clone(life),
            seen,
            rule: rule.unwrap_or_else(Rule::any),
        }
    }

    /// Ends with what became of the answer; `None` says that the peer went away.
    pub(super) fn ended(self, after: Option<After>) -> After {
        match after {
            Some(after) => {
                self.seen.ended(Fate::Answered);
                after
            }
            None => After::Close,
        }
    }

    /// What the script says in place of the engine; `None` if nothing.
    pub(super) async fn instead(&self, connection: &mut Connection) -> Option<Option<After>> {
        if let Some(gate) = &self.rule.before {
            tokio::select! {
                () = connection.gone() => return Some(None),
                () = gate.pass() => {}
            }
        }
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
        let process = Arc::clone(&self.process);
        tokio::spawn(async move { process.kill().await });
        tokio::task::yield_now().await;
    }

    /// A whole answer, as far as the script lets it.
    pub(super) async fn whole(
        &self,
        connection: &mut Connection,
        mut body: Value,
    ) -> Option<After> {
        if let Fault::Answer(change) = &self.rule.fault {
            change(&mut body);
        }
        let body = body.to_string();
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

    /// What the script does to a stream after so many chunks; `None` if nothing. `error` is what the engine says in a
    /// stream that fails, `chunk` what is torn when one breaks.
    pub(super) async fn disturb(
        &self,
        connection: &mut Connection,
        sent: usize,
        error: &Value,
        chunk: impl FnOnce() -> String,
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
                fail_stream(connection, error, done).await
            }
            Fault::CutInEvent(after) if after == sent => {
                let chunk = chunk();
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

/// The end of a stream that fails.
pub(super) async fn fail_stream(connection: &mut Connection, error: &Value, done: bool) -> After {
    let mut bytes = event(&error.to_string());
    if done {
        bytes.extend(event("[DONE]"));
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    connection.write(&bytes).await;
    After::KeepAlive
}

/// A server-sent event.
pub(super) fn event(data: &str) -> Vec<u8> {
    chunked(&format!("data: {data}\n\n"))
}

/// A chunk of a body.
pub(super) fn chunked(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

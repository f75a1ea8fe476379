//! Asks a fleet whose engines answer oddly, many questions at once, and judges what each client got.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::{Odd, Outcome, Question};
use crate::client::{self, Answer};
use crate::emulated::vllm::EmulatedVllm;
use crate::emulated::vllm::script::{Leg, Rule};
use crate::hostile::batch::at_once;

/// Questions at a time.
const WIDTH: usize = 12;

/// Longest wait for an answer. Nothing here takes longer but on purpose.
const ENOUGH: Duration = Duration::from_secs(18);

/// How often an engine gives the odd answer, and what else there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// To the first leg of its kind.
    Once,
    /// To every leg of its kind, and no other kind can serve the request.
    Always,
    /// To every leg of its kind; another kind of leg is there for the request.
    Backed,
    /// To the first leg of its kind, and the connection it came over may spoil other legs: each may fail honestly.
    Poisoning,
}

/// Has this engine give each odd answer to legs of this kind, asks the router at `address` each question, and names all
/// clients that got something else than they must.
pub async fn ask(
    address: SocketAddr,
    engine: &EmulatedVllm,
    leg: Leg,
    times: Times,
    odd: Vec<Odd>,
) {
    for odd in &odd {
        let rule = Rule::on(leg).about(&odd.question.mark);
        let rule = rule.fault(odd.fault.clone());
        engine.script(match times {
            Times::Once | Times::Poisoning => rule,
            Times::Always | Times::Backed => rule.always(),
        });
    }
    let runs = odd.into_iter().map(|odd| async move {
        let question = &odd.question;
        let json = [("content-type", "application/json")];
        let answered = client::call(address, "POST", question.path, &json, &question.body);
        let Ok(answer) = tokio::time::timeout(ENOUGH, answered).await else {
            return Err(format!("{}: no end of it", odd.name));
        };
        let judged = judge(&odd, times, &answer);
        judged.map_err(|why| format!("{}: {why}: {}", odd.name, shown(&answer)))
    });
    at_once(WIDTH, runs).await;
}

fn shown(answer: &Answer) -> String {
    let body = String::from_utf8_lossy(&answer.body);
    let body: String = body.chars().take(400).collect();
    format!(
        "{} {:?} {body:?}",
        answer.status,
        answer.header("baton-error")
    )
}

fn judge(odd: &Odd, times: Times, answer: &Answer) -> Result<(), String> {
    let right = || right(&odd.question, answer);
    match (odd.outcome, times) {
        (_, Times::Poisoning) => right().or_else(|why| told(502, answer).map_err(|_| why)),
        (Outcome::Useless, Times::Always) => told(502, answer),
        (Outcome::Taken | Outcome::Useless, _) => right(),
        (Outcome::Late, _) => told(504, answer),
        (Outcome::Breaks, _) => broken(&odd.question, answer),
        (Outcome::MayBreak, _) => right().or_else(|_| broken(&odd.question, answer)),
        (Outcome::Judgement(status), _) => judgement(status, answer),
    }
}

/// What the engine said, as it said it.
fn judgement(status: u16, answer: &Answer) -> Result<(), String> {
    if answer.status == status && answer.header("baton-error").is_none() {
        Ok(())
    } else {
        Err(format!("wanted the engine's {status}"))
    }
}

/// The right answer, and no trace of another one.
pub fn right(question: &Question, answer: &Answer) -> Result<(), String> {
    if answer.status != 200 || !answer.complete || answer.header("baton-error").is_some() {
        return Err("wanted a whole 200".to_owned());
    }
    let text = if question.shape.stream {
        let stream = Stream::read(&answer.body)?;
        if stream.errors > 0 || !stream.done {
            return Err("wanted a stream with its end".to_owned());
        }
        stream.text
    } else {
        let value: Value =
            serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        words(&value)
    };
    if text == question.text() {
        Ok(())
    } else {
        Err(format!("wanted {:?}, got {text:?}", question.text()))
    }
}

/// An error that Baton made, with this status, blaming the engine.
fn told(status: u16, answer: &Answer) -> Result<(), String> {
    let blame = answer.header("baton-error").unwrap_or_default();
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or_default();
    // Whoever waited last may say that it was in vain.
    let blamed = blame.contains("source=engine") || status == 504;
    if answer.status == status && blamed && !message.is_empty() {
        Ok(())
    } else {
        Err(format!("wanted an honest {status}"))
    }
}

/// Some of the right words, then one error and nothing more.
fn broken(question: &Question, answer: &Answer) -> Result<(), String> {
    if answer.status != 200 || !answer.complete {
        return Err("wanted a stream that ends in order".to_owned());
    }
    let stream = Stream::read(&answer.body)?;
    if stream.errors != 1 || stream.done {
        return Err("wanted one error and no end".to_owned());
    }
    if stream.text.is_empty() || !question.text().starts_with(&stream.text) {
        return Err(format!(
            "wanted the beginning of {:?}, got {:?}",
            question.text(),
            stream.text
        ));
    }
    Ok(())
}

/// A stream as a client reads it.
#[derive(Debug, Default)]
struct Stream {
    text: String,
    errors: usize,
    done: bool,
}

impl Stream {
    /// Reads all events; that nothing follows the end or an error is part of it.
    fn read(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        let text = text.replace("\r\n", "\n");
        let Some(events) = text.strip_suffix("\n\n") else {
            return Err("the last event has no end".to_owned());
        };
        let mut stream = Self::default();
        for event in events.split("\n\n") {
            let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
            let data: Vec<&str> = lines
                .map(|line| line.strip_prefix(' ').unwrap_or(line))
                .collect();
            let data = data.join("\n");
            if !data.trim().is_empty() {
                stream.take(&data)?;
            }
        }
        Ok(stream)
    }

    fn take(&mut self, data: &str) -> Result<(), String> {
        if self.done || self.errors > 0 {
            return Err(format!("{data:?} behind the end"));
        }
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value =
            serde_json::from_str(data).map_err(|_| format!("an event of {data:?}"))?;
        if event["error"].is_null() {
            self.text.push_str(&words(&event));
        } else {
            self.errors += 1;
        }
        Ok(())
    }
}

/// The words in an answer or a chunk.
fn words(value: &Value) -> String {
    let choice = &value["choices"][0];
    let places = [
        &choice["text"],
        &choice["message"]["content"],
        &choice["delta"]["content"],
    ];
    let text = places.into_iter().find_map(Value::as_str);
    text.unwrap_or_default().to_owned()
}

//! Whether an answer is one that a client may get.

use serde_json::Value;

use super::call::Ended;
use crate::client::Answer;

/// What an answer is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// What an engine says that is asked alone, and how it was served.
    Right(String),
    /// An error that says so. A stream may have begun rightly before it.
    Honest(String),
    /// Anything else that was said.
    Wrong(String),
    /// The connection ended without an answer.
    Silent,
    /// Nothing was said within a client's patience.
    Hung,
}

impl Verdict {
    /// Judges by the right text.
    pub fn of(ended: &Ended, right: &str) -> Self {
        match ended {
            Ended::Hung => Self::Hung,
            Ended::Silently => Self::Silent,
            Ended::Answered(answer) if answer.status == 200 => served(answer, right),
            Ended::Answered(answer) => refused(answer),
        }
    }

    /// A client may get this.
    pub fn is_fair(&self) -> bool {
        matches!(self, Self::Right(_) | Self::Honest(_))
    }

    /// It is what an engine says that is asked alone.
    pub fn is_right(&self) -> bool {
        matches!(self, Self::Right(_))
    }

    /// It was served by two workers.
    pub fn is_split(&self) -> bool {
        matches!(self, Self::Right(how) if how.starts_with("split"))
    }
}

/// An error of Baton's own, in OpenAI's shape.
fn refused(answer: &Answer) -> Verdict {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let says = body["error"]["message"].as_str();
    match (answer.header("baton-error"), says) {
        (Some(_), Some(says)) if answer.complete => {
            Verdict::Honest(format!("{}: {says}", answer.status))
        }
        _ => Verdict::Wrong(format!("an error that is not Baton's own: {text}")),
    }
}

fn served(answer: &Answer, right: &str) -> Verdict {
    let how = answer.header("baton-plan").unwrap_or("no plan").to_owned();
    let kind = answer.header("content-type").unwrap_or_default();
    if kind.starts_with("text/event-stream") {
        return streamed(answer, right, how);
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match body["choices"][0]["text"].as_str() {
        Some(text) if text == right && answer.complete => Verdict::Right(how),
        _ => Verdict::Wrong(format!("{body} instead of {right:?} ({how})")),
    }
}

/// A stream is right to its end, or rightly begun and ended by one error.
fn streamed(answer: &Answer, right: &str, how: String) -> Verdict {
    let events = answer.events();
    let mut text = String::new();
    let mut errors = Vec::new();
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        if event.get("error").is_some() {
            errors.push(event["error"]["message"].to_string());
        } else if errors.is_empty() {
            text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
        } else {
            return Verdict::Wrong(format!("{event} behind an error"));
        }
    }
    let done = events.last().is_some_and(|event| event == "[DONE]");
    match errors.as_slice() {
        [] if text == right && done && answer.complete => Verdict::Right(how),
        [error] if right.starts_with(&text) && answer.complete => {
            Verdict::Honest(format!("{error} behind {} bytes ({how})", text.len()))
        }
        errors => Verdict::Wrong(format!(
            "a stream of {text:?} instead of {right:?}, errors {errors:?}, done={done} ({how})"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(head: &str, body: &str) -> Ended {
        let length = body.len();
        let text = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}");
        Ended::Answered(Answer::parse(text.as_bytes()))
    }

    const STREAM: &str = "200 OK\r\ncontent-type: text/event-stream\r\nbaton-plan: split x";

    fn stream(events: &[&str]) -> Ended {
        let events = events.iter().map(|event| format!("data: {event}\n\n"));
        ended(STREAM, &events.collect::<String>())
    }

    const A: &str = r#"{"choices":[{"text":"a"}]}"#;
    const B: &str = r#"{"choices":[{"text":"b"}]}"#;
    const ERROR: &str = r#"{"error":{"message":"gone"}}"#;

    #[test]
    fn what_is_right_is_right_to_its_end() {
        let whole = ended("200 OK\r\nbaton-plan: local x", A);
        assert_eq!(Verdict::of(&whole, "a"), Verdict::Right("local x".into()));
        assert!(!Verdict::of(&whole, "ab").is_fair());
        assert!(Verdict::of(&stream(&[A, B, "[DONE]"]), "ab").is_split());
        for short in [&[A, "[DONE]"][..], &[A, B], &[]] {
            assert!(!Verdict::of(&stream(short), "ab").is_fair(), "{short:?}");
        }
    }

    #[test]
    fn errors_are_honest_if_they_say_so_once_and_behind_nothing_wrong() {
        let fair = |events: &[&str]| Verdict::of(&stream(events), "ab").is_fair();
        assert!(fair(&[A, ERROR, "[DONE]"]) && fair(&[A, ERROR]) && fair(&[ERROR]));
        assert!(!fair(&[B, ERROR]), "it began wrongly");
        assert!(!fair(&[A, ERROR, ERROR]), "one error is enough");
        assert!(!fair(&[A, ERROR, B]), "nothing comes behind it");
        let refused = |head| Verdict::of(&ended(head, ERROR), "ab").is_fair();
        assert!(refused("503 Busy\r\nbaton-error: {}"));
        assert!(!refused("500 Oops"), "nobody stands for it");
        assert!(!Verdict::of(&Ended::Silently, "a").is_fair());
        assert!(!Verdict::of(&Ended::Hung, "a").is_fair());
    }
}

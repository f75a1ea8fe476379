//! What an answer is worth, beside the only right one.

use serde_json::Value;

use super::ask::Ask;
use crate::client::Answer;

/// How a request ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The whole right answer.
    Served,
    /// An error instead of an answer, of this kind.
    Refused(String),
    /// The beginning of the right answer, and then an error event of this kind.
    Broken(String),
    /// The client went away.
    Left,
    /// The router that served it was killed.
    Orphaned,
    /// Something that no engine says to this prompt.
    Wrong(String),
    /// No end in time.
    Hung(String),
    /// An end that does not say what it is.
    Dishonest(String),
}

/// What a whole or partial answer is worth to whoever waits for its end.
pub fn of(ask: &Ask, answer: &Answer) -> End {
    if answer.status != 200 {
        return refusal(answer);
    }
    let kind = answer.header("content-type").unwrap_or_default();
    match (kind.starts_with("text/event-stream"), ask.stream) {
        (true, true) => stream(ask, answer),
        (false, false) => whole(ask, answer),
        _ => dishonest("the content type is not that of the request", answer),
    }
}

/// Whether what was seen so far of an answer that nobody waits for is right.
pub fn of_beginning(ask: &Ask, answer: &Answer) -> Option<End> {
    if answer.status != 200 || !ask.stream {
        return None;
    }
    let said = Said::read(answer);
    (!ask.text.starts_with(&said.text)).then(|| wrong(ask, answer, &said.text))
}

fn refusal(answer: &Answer) -> End {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match error_kind(&body["error"]) {
        _ if !answer.complete => dishonest("an error was cut", answer),
        None => dishonest("an error that is not OpenAI's", answer),
        Some(kind) if answer.header("baton-error").is_some() => End::Refused(kind),
        // An engine's own word about a request.
        Some(kind) => End::Refused(format!("engine {kind}")),
    }
}

/// The error's word for itself, if it has OpenAI's shape.
fn error_kind(error: &Value) -> Option<String> {
    let message = error["message"].as_str()?;
    let shaped = !message.is_empty() && error["type"].is_string();
    let code = match &error["code"] {
        Value::String(code) => code.clone(),
        Value::Number(code) => code.to_string(),
        _ => return None,
    };
    shaped.then_some(code)
}

fn whole(ask: &Ask, answer: &Answer) -> End {
    if !answer.complete {
        return dishonest("the answer was cut", answer);
    }
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else {
        return dishonest("a 200 that is no JSON", answer);
    };
    let choice = &body["choices"][0];
    let text = [&choice["text"], &choice["message"]["content"]];
    match text.iter().find_map(|text| text.as_str()) {
        None => dishonest("a 200 without content", answer),
        Some(text) if text == ask.text => End::Served,
        Some(text) => wrong(ask, answer, text),
    }
}

/// A stream's content.
#[derive(Default)]
struct Said {
    text: String,
    finished: bool,
    done: bool,
    error: Option<String>,
    oddity: Option<&'static str>,
}

impl Said {
    fn read(answer: &Answer) -> Self {
        let mut said = Self::default();
        let text = String::from_utf8_lossy(&answer.body);
        for data in crate::client::events(&text) {
            if said.done || said.error.is_some() {
                said.oddity = Some("something follows the end of a stream");
            } else if data == "[DONE]" {
                said.done = true;
            } else {
                said.event(&data);
            }
        }
        said
    }

    fn event(&mut self, data: &str) {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            self.oddity = Some("an event is no JSON");
            return;
        };
        if !event["error"].is_null() {
            self.error = error_kind(&event["error"]);
            if self.error.is_none() {
                self.oddity = Some("an error event that is not OpenAI's");
            }
            return;
        }
        let choice = &event["choices"][0];
        let text = [&choice["text"], &choice["delta"]["content"]];
        let text = text.iter().find_map(|text| text.as_str());
        self.text.push_str(text.unwrap_or_default());
        self.finished |= choice["finish_reason"].is_string();
    }
}

fn stream(ask: &Ask, answer: &Answer) -> End {
    let said = Said::read(answer);
    if !ask.text.starts_with(&said.text) {
        return wrong(ask, answer, &said.text);
    }
    if let Some(oddity) = said.oddity {
        return dishonest(oddity, answer);
    }
    match said.error {
        Some(_) if !answer.complete => dishonest("the stream was cut after its error", answer),
        Some(kind) => End::Broken(kind),
        None if !said.done => dishonest("a stream ended without its end", answer),
        None if said.finished && said.text == ask.text => End::Served,
        None => wrong(ask, answer, &said.text),
    }
}

fn wrong(ask: &Ask, answer: &Answer, text: &str) -> End {
    let plan = answer.header("baton-plan").unwrap_or("unknown plan");
    End::Wrong(format!("{text:?} instead of {:?}, by {plan}", ask.text))
}

fn dishonest(what: &str, answer: &Answer) -> End {
    let body = String::from_utf8_lossy(&answer.body);
    let tail: String = body.chars().rev().take(200).collect();
    let tail: String = tail.chars().rev().collect();
    End::Dishonest(format!("{what}: status {}, ...{tail:?}", answer.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(stream: bool) -> Ask {
        let number = (0..100).find(|number| {
            let ask = Ask::new(5, *number);
            ask.stream == stream && ask.path == "/v1/completions"
        });
        Ask {
            text: "ab".to_owned(),
            ..Ask::new(5, number.unwrap())
        }
    }

    fn judged(stream: bool, status: u16, header: &str, body: &str) -> End {
        let kind = if stream && status == 200 {
            "text/event-stream"
        } else {
            "application/json"
        };
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status} S\r\ncontent-type: {kind}\r\n{header}content-length: {length}\r\n\r\n{body}"
        );
        of(&ask(stream), &Answer::parse(text.as_bytes()))
    }

    fn streamed(parts: &[&str]) -> End {
        let events: Vec<String> = parts
            .iter()
            .map(|part| format!("data: {part}\n\n"))
            .collect();
        judged(true, 200, "", &events.concat())
    }

    const A: &str = r#"{"choices":[{"text":"a","finish_reason":null}]}"#;
    const B: &str = r#"{"choices":[{"text":"b","finish_reason":"length"}]}"#;
    const ERROR: &str = r#"{"error":{"message":"m","type":"t","code":"unreachable","param":null}}"#;

    #[test]
    fn streams_are_judged_to_their_end() {
        assert_eq!(streamed(&[A, B, "[DONE]"]), End::Served);
        assert_eq!(streamed(&[A, ERROR]), End::Broken("unreachable".to_owned()));
        assert!(matches!(streamed(&[A]), End::Dishonest(_)));
        assert!(matches!(streamed(&[A, "[DONE]"]), End::Wrong(_)));
        assert!(matches!(streamed(&[B, "[DONE]"]), End::Wrong(_)));
        assert!(matches!(streamed(&[B, ERROR]), End::Wrong(_)));
        assert!(matches!(streamed(&[A, ERROR, "[DONE]"]), End::Dishonest(_)));
        assert!(matches!(streamed(&["{}", "nonsense"]), End::Dishonest(_)));
    }

    #[test]
    fn whole_answers_and_errors_are_judged() {
        let right = r#"{"choices":[{"text":"ab"}]}"#;
        assert_eq!(judged(false, 200, "", right), End::Served);
        let other = r#"{"choices":[{"text":"a"}]}"#;
        assert!(matches!(judged(false, 200, "", other), End::Wrong(_)));
        assert!(matches!(judged(false, 200, "", "{}"), End::Dishonest(_)));
        assert!(matches!(judged(false, 200, "", ""), End::Dishonest(_)));
        let refused = judged(false, 503, "baton-error: x\r\n", ERROR);
        assert_eq!(refused, End::Refused("unreachable".to_owned()));
        assert!(matches!(judged(false, 502, "", "oops"), End::Dishonest(_)));
    }
}

//! One streamed chat, timed and checked.

use std::time::Duration;

use baton_daemon::http::sse::{self, EventReader};
use baton_daemon::http::{Client, full, small_body};
use baton_proto::error::ERROR_HEADER;
use http::Request;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

/// Longest time to the first token. Far above what a demo needs.
const FIRST_TOKEN_BOUND: Duration = Duration::from_secs(60);

/// Longest silence inside a stream.
const SILENCE_BOUND: Duration = Duration::from_secs(30);

/// An answer that is complete.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was said.
    pub text: String,
    /// Tokens of the prompt, as the engine counts.
    pub prompt_tokens: u64,
    /// Those of them that the engine had in its prefix cache; a split answer reports its prefill engine's.
    pub cached_tokens: u64,
    /// From sending the request to the first token.
    pub first_token: Duration,
    /// From each token to the next.
    pub gaps: Vec<Duration>,
    /// How the router says it was served.
    pub plan: String,
}

impl Answer {
    /// Whether prefill and decode were on different workers.
    pub fn is_split(&self) -> bool {
        self.plan.starts_with("split ")
    }

    /// KV bytes that moved for it.
    pub fn kv_bytes(&self) -> u64 {
        let bytes = self
            .plan
            .split(' ')
            .find_map(|word| word.strip_prefix("kv_bytes="));
        bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }
}

/// Sends a chat and reads its answer to the end; or what was wrong, in one line.
pub async fn ask(client: &Client, router: &str, body: String) -> Result<Answer, String> {
    let request = Request::post(format!("{router}/v1/chat/completions"))
        .header(CONTENT_TYPE, "application/json")
        .header("baton-explain", "1")
        .body(full(body))
        .map_err(|error| error.to_string())?;
    let sent = Instant::now();
    let response = client.send(request, FIRST_TOKEN_BOUND).await;
    let response = response.map_err(|error| error.to_string())?;
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().ok()?.to_owned())
    };
    let (status, plan) = (response.status(), header("baton-plan"));
    if status != 200 {
        let blame = header(ERROR_HEADER).unwrap_or_else(|| "not made by Baton".to_owned());
        let body = small_body(response.into_body()).await;
        let body = String::from_utf8_lossy(&body);
        return Err(format!("status {status} ({blame}): {body}"));
    }
    let mut reader = EventReader::new(response.into_body());
    let mut reading = Reading::default();
    while let Some(events) = reader
        .next(SILENCE_BOUND)
        .await
        .map_err(|error| error.to_string())?
    {
        let after = sent.elapsed();
        for data in sse::events(&events).filter_map(sse::data) {
            reading.take(&data, after)?;
        }
    }
    reading.finish(plan.unwrap_or_default())
}

#[derive(Deserialize)]
struct Chunk {
    error: Option<Value>,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Deserialize)]
struct PromptTokens {
    cached_tokens: Option<u64>,
}

/// A stream as far as it was read.
#[derive(Default)]
struct Reading {
    text: String,
    tokens: Vec<Duration>,
    finish: Option<String>,
    usage: Option<Usage>,
    done: bool,
}

impl Reading {
    /// Takes the data of an event that came this long after the request was sent.
    fn take(&mut self, data: &[u8], after: Duration) -> Result<(), String> {
        if self.done {
            return Err("an event came after [DONE]".to_owned());
        }
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let shown = || String::from_utf8_lossy(data).into_owned();
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|error| format!("an event is not understood ({error}): {}", shown()))?;
        if chunk.error.is_some() {
            let tokens = self.tokens.len();
            return Err(format!("an error event after {tokens} tokens: {}", shown()));
        }
        self.usage = chunk.usage.or(self.usage.take());
        for choice in chunk.choices {
            if let Some(content) = choice.delta.content.filter(|text| !text.is_empty()) {
                self.text.push_str(&content);
                self.tokens.push(after);
            }
            self.finish = choice.finish_reason.or(self.finish.take());
        }
        Ok(())
    }

    fn finish(self, plan: String) -> Result<Answer, String> {
        let first_token = *self.tokens.first().ok_or("the answer is empty")?;
        if !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        if !matches!(self.finish.as_deref(), Some("length" | "stop")) {
            return Err(format!("the finish reason is {:?}", self.finish));
        }
        let usage = self.usage.ok_or("the engine reported no usage")?;
        let details = usage.prompt_tokens_details;
        Ok(Answer {
            text: self.text,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: details
                .and_then(|details| details.cached_tokens)
                .unwrap_or(0),
            first_token,
            gaps: self
                .tokens
                .windows(2)
                .map(|pair| pair[1].saturating_sub(pair[0]))
                .collect(),
            plan,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = r#"{"choices":[{"delta":{"content":" a"},"finish_reason":null}]}"#;
    const LAST: &str = r#"{"choices":[{"delta":{"content":" b"},"finish_reason":"length"}]}"#;
    const USAGE: &str =
        r#"{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#;

    fn read(events: &[&str]) -> Result<Answer, String> {
        let mut reading = Reading::default();
        for (at, event) in (1..).zip(events) {
            reading.take(event.as_bytes(), Duration::from_millis(10 * at))?;
        }
        reading.finish("split prefill=p decode=d kv_bytes=12".to_owned())
    }

    #[test]
    fn a_complete_answer_is_timed() {
        let role =
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
        let answer = read(&[role, TOKEN, LAST, USAGE, "[DONE]"]).unwrap();
        assert_eq!((answer.text.as_str(), answer.kv_bytes()), (" a b", 12));
        assert_eq!(answer.first_token, Duration::from_millis(20));
        assert_eq!(answer.gaps, [Duration::from_millis(10)]);
        assert_eq!((answer.prompt_tokens, answer.cached_tokens), (9, 4));
    }

    #[test]
    fn whatever_is_missing_is_a_failure() {
        for (events, why) in [
            (&[LAST, USAGE][..], "without [DONE]"),
            (&[LAST, "[DONE]"], "no usage"),
            (&[TOKEN, USAGE, "[DONE]"], "finish reason"),
            (&[USAGE, "[DONE]"], "empty"),
            (&[TOKEN, r#"{"error":{"message":"x"}}"#], "after 1 tokens"),
            (&["[DONE]", TOKEN], "after [DONE]"),
            (&["<html>"], "not understood"),
        ] {
            let error = read(events).unwrap_err();
            assert!(error.contains(why), "{error:?} should say {why:?}");
        }
    }
}

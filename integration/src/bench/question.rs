//! What is asked, and what must be answered.
//!
//! A few different prompts of each length take turns, so that no cache along the way can live off a single one. The
//! engine's own answer to each is the only right one: an engine that derives its text from the KV it holds says something
//! else if a hop mixed two requests up.

use std::fmt::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use baton_daemon::http::sse;
use memchr::memmem;

use super::connection::Connection;
use super::row::{Form, TOKENS};

/// Different prompts of each length.
const PROMPTS: usize = 16;

const WORDS: [&str; 16] = [
    "prefill", "decode", "block", "cache", "token", "stream", "worker", "router", "lease",
    "ticket", "prompt", "engine", "batch", "queue", "drain", "page",
];

/// A request and the text of its only right answer.
#[derive(Debug)]
pub struct Question {
    /// The request, head and body.
    pub request: Vec<u8>,
    form: Form,
    /// As JSON has it, escapes included.
    text: Vec<u8>,
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    text: Vec<u8>,
    /// Events that carried text.
    chunks: usize,
}

/// Makes the questions of one length and form and learns their answers from the engine at `engine`.
pub async fn learn(
    engine: SocketAddr,
    model: &str,
    words: usize,
    form: Form,
) -> Result<Vec<Question>> {
    let mut connection = Connection::open(engine).await?;
    let mut questions = Vec::new();
    for number in 0..PROMPTS {
        let request = request(model, words, number, form);
        let (status, body) = connection.ask(&request).await?;
        ensure!(status == 200, "the engine answered {status}");
        let said = read(body, form).context("the engine's own answer is strange")?;
        let whole = form == Form::Unary || said.chunks == TOKENS;
        ensure!(whole, "the engine streamed {} chunks", said.chunks);
        questions.push(Question {
            request,
            form,
            text: said.text,
        });
    }
    Ok(questions)
}

impl Question {
    /// Checks an answer; how many chunks it came in.
    pub fn check(&self, status: u16, body: &[u8]) -> Result<usize> {
        let shown = || String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
        ensure!(status == 200, "an answer was {status}: {}", shown());
        let said = read(body, self.form).with_context(shown)?;
        ensure!(said.text == self.text, "a wrong answer: {}", shown());
        Ok(said.chunks)
    }
}

/// The keys that a minimal relay must replace come first, so that it can do so without reading JSON.
fn request(model: &str, words: usize, number: usize, form: Form) -> Vec<u8> {
    let stream = form == Form::Stream;
    let body = format!(
        r#"{{"stream":{stream},"max_tokens":{TOKENS},"model":"{model}","messages":[{{"role":"user","content":"{}"}}],"temperature":0,"ignore_eos":true}}"#,
        prompt(words, number)
    );
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: baton\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A prompt of so many words, different from its first word on for each number.
fn prompt(words: usize, number: usize) -> String {
    let mut text = String::with_capacity(words * 7);
    let _ = write!(text, "{number}");
    let mut state = (words * PROMPTS + number) as u64 | 1;
    for _ in 1..words {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = WORDS[usize::try_from(state >> 60).unwrap_or(0)];
        let _ = write!(text, " {word}");
    }
    text
}

fn read(body: &[u8], form: Form) -> Result<Said> {
    match form {
        Form::Unary => {
            let text = content(body).context("an answer has no text")?.to_vec();
            ensure!(!text.is_empty(), "an answer is empty");
            Ok(Said { text, chunks: 1 })
        }
        Form::Stream => read_stream(body),
    }
}

fn read_stream(body: &[u8]) -> Result<Said> {
    let mut said = Said {
        text: Vec::new(),
        chunks: 0,
    };
    let mut done = false;
    for data in sse::events(body).filter_map(sse::data) {
        ensure!(!done, "something follows the end of a stream");
        if *data == *b"[DONE]" {
            done = true;
            continue;
        }
        let choices = memmem::find(&data, b"\"choices\"").is_some();
        ensure!(choices, "a stream has an event that is no chunk");
        let text = content(&data).unwrap_or_default();
        said.text.extend_from_slice(text);
        said.chunks += usize::from(!text.is_empty());
    }
    ensure!(done, "a stream broke off");
    Ok(said)
}

/// The first text called `content`, as JSON has it.
fn content(json: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = b"\"content\":\"";
    let start = memmem::find(json, KEY)? + KEY.len();
    let text = &json[start..];
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let closing = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closing
    })?;
    Some(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(form: Form, text: &str) -> Question {
        Question {
            request: Vec::new(),
            form,
            text: text.into(),
        }
    }

    #[test]
    fn prompts_have_their_length_and_differ_from_the_start() {
        let long = prompt(8192, 3);
        assert_eq!(long.split(' ').count(), 8192);
        assert!((45_000..60_000).contains(&long.len()), "{}", long.len());
        let firsts: std::collections::HashSet<String> = (0..PROMPTS)
            .map(|number| prompt(512, number)[..8].to_owned())
            .collect();
        assert_eq!(firsts.len(), PROMPTS);
    }

    #[test]
    fn a_request_states_its_length() {
        let request = request("m", 2, 0, Form::Stream);
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            (&body["stream"], &body["max_tokens"]),
            (&true.into(), &16.into())
        );
    }

    #[test]
    fn only_the_right_text_passes() {
        let unary = question(Form::Unary, r#"a \"b\" c"#);
        let right = br#"{"choices":[{"message":{"role":"assistant","content":"a \"b\" c"}}]}"#;
        assert_eq!(unary.check(200, right).unwrap(), 1);
        assert!(unary.check(500, right).is_err());
        assert!(unary.check(200, b"{\"choices\":[]}").is_err());
        assert!(question(Form::Unary, "a").check(200, right).is_err());
    }

    #[test]
    fn streams_must_be_whole() {
        let stream = question(Form::Stream, "ab");
        let chunk = |text: &str| {
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
        };
        let (role, done) = (chunk(""), "data: [DONE]\n\n");
        let body = |parts: &[&str]| parts.concat();
        let whole = body(&[&role, &chunk("a"), &chunk("b"), done]);
        assert_eq!(stream.check(200, whole.as_bytes()).unwrap(), 2);
        for wrong in [
            body(&[&role, &chunk("a"), &chunk("b")]),
            body(&[&role, &chunk("a"), done]),
            body(&[&chunk("a"), done, &chunk("b")]),
            body(&[&chunk("ab"), "data: {\"error\":{}}\n\n", done]),
        ] {
            assert!(stream.check(200, wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}

//! Everything that came back over one connection, cut into answers.
//!
//! A strict reader of its own: it must never be the one that two peers can lead to different readings.

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use crate::client::Answer;

/// One answer.
#[derive(Clone)]
pub struct Got {
    /// Status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// Body, without its framing.
    pub body: Bytes,
    /// Whether it ended as its framing says.
    pub complete: bool,
    whole: Bytes,
}

impl fmt::Debug for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.whole[..self.whole.len().min(300)];
        write!(f, "{:?}", String::from_utf8_lossy(shown))
    }
}

impl Got {
    /// First header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether Baton says that it made this answer itself, as an error.
    pub fn made_by_baton(&self) -> bool {
        self.header("baton-error").is_some()
    }

    /// Whether it is the answer of `/livez`.
    pub fn is_alive(&self) -> bool {
        self.status == 200 && self.body == br#"{"alive":true}"#[..]
    }

    /// The generated text, if it is an answer that has one.
    pub fn generated(&self) -> Option<String> {
        let answer: Value = serde_json::from_slice(&self.body).ok()?;
        let choice = answer["choices"].get(0)?;
        let text = choice["text"]
            .as_str()
            .or(choice["message"]["content"].as_str());
        text.map(str::to_owned)
    }

    /// Whether the body is an error in OpenAI's shape.
    pub fn shaped_as_openai(&self) -> Result<(), String> {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let error = &body["error"];
        let filled = |key: &str| error[key].as_str().is_some_and(|text| !text.is_empty());
        if filled("message") && filled("type") && filled("code") && error["param"].is_null() {
            Ok(())
        } else {
            Err("an error in OpenAI's shape".to_owned())
        }
    }
}

/// What came back over one connection.
#[derive(Debug, Default)]
pub struct Reply {
    /// Answers, in order.
    pub answers: Vec<Got>,
    /// What is no answer.
    pub rest: Bytes,
}

impl Reply {
    /// Cuts bytes into answers. With `ended` the connection is closed, and what is not complete never will be.
    pub fn cut(bytes: &Bytes, ended: bool) -> Self {
        let mut reply = Self {
            answers: Vec::new(),
            rest: bytes.clone(),
        };
        while let Some((got, rest)) = first(&reply.rest, ended) {
            // An interim answer announces the one that counts.
            if !(100..200).contains(&got.status) {
                reply.answers.push(got);
            }
            reply.rest = rest;
        }
        reply
    }
}

fn first(bytes: &Bytes, ended: bool) -> Option<(Got, Bytes)> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?;
    let status: u16 = status.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": "))
        .map(|line| line.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())))
        .collect::<Option<_>>()?;
    let bodiless = (100..200).contains(&status) || matches!(status, 204 | 304);
    let body = if bodiless {
        Some(0)
    } else {
        length(&headers, &bytes[head..])
    };
    let (end, complete) = match body {
        Some(length) => (
            (head + length).min(bytes.len()),
            head + length <= bytes.len(),
        ),
        None => (bytes.len(), false),
    };
    let whole = bytes.slice(..end);
    let body = if end == head {
        Vec::new()
    } else {
        Answer::parse(&whole).body
    };
    let got = Got {
        status,
        headers,
        body: body.into(),
        complete,
        whole,
    };
    (complete || ended).then(|| (got, bytes.slice(end..)))
}

/// Bytes of a framed body; `None` if it has not ended.
fn length(headers: &[(String, String)], body: &[u8]) -> Option<usize> {
    let value = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    if value("transfer-encoding") == Some("chunked") {
        return chunks(body);
    }
    value("content-length").map_or(Some(body.len()), |value| value.parse().ok())
}

fn chunks(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = body[at..].windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&body[at..at + line]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        at += line + 2 + size + 2;
        if at > body.len() {
            return None;
        }
        if size == 0 {
            return Some(at);
        }
    }
}

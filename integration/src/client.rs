//! HTTP byte by byte: a client that can send anything, read as far as it likes, and vanish.

use std::fmt::Write;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::bounded;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// Body, without its framing.
    pub body: Vec<u8>,
    /// Whether the body ended as its framing says it does.
    pub complete: bool,
}

impl Answer {
    /// Reads an answer from all the bytes of a connection.
    pub fn parse(bytes: &[u8]) -> Self {
        parse(bytes, true).unwrap_or_else(|| panic!("no answer: {bytes:?}"))
    }

    /// The same of the bytes so far: `None` until it is whole, unless nothing more will come.
    pub fn parse_so_far(bytes: &[u8], ended: bool) -> Option<Self> {
        parse(bytes, ended)
    }

    /// First header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Asserts that Baton made this answer and refused with this status, in OpenAI's shape; its message.
    #[track_caller]
    pub fn refused(&self, status: u16) -> String {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        assert!(
            self.header("baton-error").is_some(),
            "an answer made by Baton says so: {self:?}"
        );
        let error = &self.json()["error"];
        let filled = |key: &str| error[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(
            filled("message") && filled("type") && filled("code") && error["param"].is_null(),
            "not OpenAI's shape: {}",
            self.text()
        );
        error["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Asserts a 200 that an engine made, whole.
    #[track_caller]
    pub fn served(&self) -> &Self {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        assert!(self.complete, "the answer was cut");
        assert_eq!(self.header("baton-error"), None);
        self
    }

    /// The generated text of an unary answer or of a stream.
    #[track_caller]
    pub fn generated(&self) -> String {
        let text = |choice: &Value| {
            [
                &choice["text"],
                &choice["message"]["content"],
                &choice["delta"]["content"],
            ]
            .iter()
            .find_map(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
        };
        if self
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
        {
            self.events()
                .iter()
                .filter(|data| data.as_str() != "[DONE]")
                .map(|data| {
                    let event: Value = serde_json::from_str(data).expect("an event is JSON");
                    event["choices"].get(0).map(text).unwrap_or_default()
                })
                .collect()
        } else {
            text(&self.json()["choices"][0])
        }
    }

    /// The data of a stream's events.
    pub fn events(&self) -> Vec<String> {
        events(self.text())
    }
}

/// The data of the whole events in a stream's text.
pub fn events(text: &str) -> Vec<String> {
    let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    whole
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}

/// A request under way.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    received: Vec<u8>,
    ended: bool,
}

impl Exchange {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Self {
        let stream = bounded("a connection", TcpStream::connect(address))
            .await
            .unwrap_or_else(|error| panic!("nobody listens at {address}: {error}"));
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            received: Vec::new(),
            ended: false,
        }
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The peer may have answered and closed already; what it said is still to be read.
        let _ = bounded("sending", self.stream.write_all(bytes.as_ref())).await;
    }

    /// Reads until the text received so far, head included, has this in it.
    pub async fn until(&mut self, part: &str) -> &str {
        while !self.so_far().contains(part) {
            assert!(!self.ended, "ended without {part:?}: {}", self.so_far());
            self.read_more(part).await;
        }
        self.so_far()
    }

    /// What was received so far.
    pub fn so_far(&self) -> &str {
        std::str::from_utf8(&self.received).unwrap_or("(no text)")
    }

    async fn read_more(&mut self, what: &str) {
        self.received.reserve(16 << 10);
        let read = self.stream.read_buf(&mut self.received);
        if matches!(bounded(what, read).await, Ok(0) | Err(_)) {
            self.ended = true;
        }
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Answer {
        while !self.ended {
            if let Some(answer) = parse(&self.received, false) {
                return answer;
            }
            self.read_more("the rest of an answer").await;
        }
        parse(&self.received, true).unwrap_or_else(|| panic!("no answer: {:?}", self.so_far()))
    }

    /// All that comes until the peer closes, whatever it is.
    pub async fn finish_text(mut self) -> String {
        while !self.ended {
            self.read_more("the peer to close").await;
        }
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Whether the peer has closed without a word.
    pub async fn closed_silently(mut self) -> bool {
        while !self.ended {
            self.read_more("the peer to close").await;
        }
        self.received.is_empty()
    }

    /// Goes away with a reset, as a client that crashes does.
    pub fn vanish(self) {
        let _ = self.stream.set_zero_linger();
    }
}

/// Head and body, if they are whole; with `ended` also if they are not.
fn parse(bytes: &[u8], ended: bool) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let header = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let rest = &bytes[end + 4..];
    let (body, complete) = if header("transfer-encoding") == Some("chunked") {
        unchunked(rest)
    } else if let Some(length) = header("content-length") {
        let length: usize = length.parse().ok()?;
        (
            rest[..length.min(rest.len())].to_vec(),
            rest.len() >= length,
        )
    } else {
        (rest.to_vec(), ended)
    };
    (complete || ended).then_some(Answer {
        status,
        headers,
        body,
        complete,
    })
}

fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return (body, false);
        };
        let size = std::str::from_utf8(&bytes[..end]).unwrap_or_default();
        let Ok(size) = usize::from_str_radix(size, 16) else {
            return (body, false);
        };
        bytes = &bytes[end + 2..];
        if size == 0 {
            return (body, bytes.starts_with(b"\r\n"));
        }
        body.extend_from_slice(&bytes[..size.min(bytes.len())]);
        if bytes.len() < size + 2 {
            return (body, false);
        }
        bytes = &bytes[size + 2..];
    }
}

/// A request's bytes.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let framed = headers
        .iter()
        .any(|(name, _)| matches!(*name, "content-length" | "transfer-encoding"));
    if !framed {
        let _ = write!(head, "content-length: {}\r\n", body.len());
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Starts a request.
pub async fn start(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Exchange {
    let mut exchange = Exchange::open(address).await;
    exchange
        .send(request(method, path, headers, body.as_ref()))
        .await;
    exchange
}

/// A whole request.
pub async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Answer {
    start(address, method, path, headers, body)
        .await
        .finish()
        .await
}

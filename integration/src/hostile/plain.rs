//! A request with nothing wrong with it, in parts that a generator can spoil.

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_proto::call::{CONTENT_TYPE, GenerateCall, path};
use baton_proto::frame::Envelope;
use baton_proto::route::{PASS_THROUGH, Route};
use bytes::Bytes;
use serde_json::json;

use super::case::{Case, Expect};
use crate::direct::fresh;
use crate::emulated::model;
use crate::fleet::TOKEN;

/// Which daemon is attacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// The router, by a client.
    Router,
    /// A sidecar, by whoever holds the fleet's token.
    Sidecar,
}

/// Length of a mark.
pub const MARK: usize = "case-00000".len();

/// A mark that no other request bears.
pub fn mark() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("case-{:05}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A request; unless told otherwise a completion of four tokens whose prompt, of one block, bears a mark of its own.
#[derive(Debug, Clone)]
pub struct Plain {
    /// Who is asked.
    pub front: Front,
    /// Method.
    pub method: String,
    /// Request target.
    pub target: String,
    /// Headers but those that frame the body.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Bytes,
    /// What a client means by it: the body without a sidecar's envelope.
    pub inner: Bytes,
    /// Its mark.
    pub mark: String,
    /// The right answer's text.
    pub text: String,
}

impl Plain {
    /// For this daemon.
    pub fn new(front: Front) -> Self {
        Self::of(front, Route::Completions, |mark| {
            json!({"model": "tiny", "prompt": prompt(mark), "max_tokens": 4}).to_string()
        })
    }

    /// With this body, which is made from the mark, on this route.
    pub fn of<B: Into<Bytes>>(front: Front, route: Route, body: impl FnOnce(&str) -> B) -> Self {
        let mark = mark();
        let text = model::text(&prompt(&mark), 4);
        let inner: Bytes = body(&mark).into();
        let body = inner.clone();
        let (target, headers, body) = match front {
            Front::Router => (
                route.path(),
                vec![("content-type", "application/json".to_owned())],
                body,
            ),
            Front::Sidecar => (
                path::GENERATE,
                vec![
                    ("authorization", format!("Bearer {TOKEN}")),
                    ("content-type", CONTENT_TYPE.to_owned()),
                ],
                call(route, body),
            ),
        };
        Self {
            front,
            method: "POST".to_owned(),
            target: target.to_owned(),
            headers,
            body,
            inner,
            mark,
            text,
        }
    }

    /// This request, served.
    pub fn served(&self, name: impl Into<String>, bytes: impl Into<Bytes>) -> Case {
        Case::new(name, bytes, Expect::Text(self.text.clone())).means(self)
    }

    /// A request without a body that the daemon answers by itself.
    pub fn live(front: Front) -> Self {
        Self {
            method: "GET".to_owned(),
            target: "/livez".to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            ..Self::new(front)
        }
    }

    /// The head up to and without its empty line.
    pub fn lines(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: test\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.into_bytes()
    }

    /// The request with these lines at the end of its head, and this for a body.
    pub fn with(&self, lines: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
        let mut bytes = self.lines();
        bytes.extend_from_slice(lines.as_ref());
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body.as_ref());
        bytes
    }

    /// The request as it should be.
    pub fn sized(&self) -> Vec<u8> {
        self.with(
            format!("content-length: {}\r\n", self.body.len()),
            &self.body,
        )
    }

    /// The request as it should be, or its body in one chunk.
    pub fn framed(&self, by_chunks: bool) -> Vec<u8> {
        if by_chunks {
            self.chunked(4096)
        } else {
            self.sized()
        }
    }

    /// The same, its body in chunks of this size.
    pub fn chunked(&self, size: usize) -> Vec<u8> {
        self.with("transfer-encoding: chunked\r\n", chunked(&self.body, size))
    }
}

/// All routes of engines that clients may reach.
pub fn routes() -> Vec<Route> {
    let pass_through = PASS_THROUGH.iter().map(|path| Route::PassThrough(path));
    let known = [Route::Completions, Route::ChatCompletions].into_iter();
    known.chain(pass_through).collect()
}

/// The prompt of a request with this mark.
pub fn prompt(mark: &str) -> String {
    format!("{mark} says hello")
}

/// A local leg's call with this body.
fn call(route: Route, body: Bytes) -> Bytes {
    let head = GenerateCall {
        request: fresh(),
        route,
        deadline_ms: 10_000,
        uncached_tokens: None,
    };
    Envelope { head, body }.encode().concat().into()
}

/// A body in chunks, with its end.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

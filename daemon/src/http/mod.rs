//! HTTP in and out, with a bound on everything: sizes, times, connections.

mod body;
mod client;
mod server;
pub mod sse;
mod stall;
mod strict;

pub use body::{BadBody, Body, BoxError, Parts, empty, full, read_limited};
pub use client::{Client, ClientLimits, Delivered, SendError};
pub use server::{Handler, Limits, bind, serve};

use baton_proto::error::ERROR_HEADER;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

/// The base URL of a peer: plain http, a host, perhaps a port, and nothing else. `None` if the text is anything else.
pub fn base_url(text: &str) -> Option<http::Uri> {
    let uri: http::Uri = text.parse().ok()?;
    let authority = uri.authority()?;
    let place = match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    };
    // What the parser leaves out, a fragment or a port that is no number, does not come back.
    let plain = text.strip_suffix('/').unwrap_or(text) == format!("http://{place}");
    plain.then_some(uri)
}

/// An answer with a JSON body.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let text =
        serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer without a body.
pub fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = status;
    response
}

/// The one mapping of Baton's errors to HTTP: status, `baton-error` header, OpenAI-shaped body.
pub fn error(error: &Error) -> Response<Body> {
    let mut response = Response::new(full(error.openai_body()));
    *response.status_mut() =
        StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(value) = HeaderValue::from_str(&error.header()) {
        headers.insert(ERROR_HEADER, value);
    }
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        let seconds = error.retry_after_s.unwrap_or(1);
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The error that a peer's answer carries, if the answer was made by Baton.
pub fn error_of<B>(response: &Response<B>, body: &[u8]) -> Option<Error> {
    let header = response.headers().get(ERROR_HEADER)?;
    Some(Error::from_wire(header.to_str().unwrap_or_default(), body))
}

/// The route exists, but not with this method.
pub fn method_not_allowed(allowed: &'static str) -> Response<Body> {
    let refusal = Error::new(
        ErrorKind::MethodNotAllowed,
        Source::Client,
        Stage::Request,
        format!("this route takes {allowed} only"),
    );
    let mut response = error(&refusal);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

impl SendError {
    /// This error in Baton's model, blaming the peer `source`.
    pub fn into_error(self, source: Source, stage: Stage) -> Error {
        let retry = match self.delivered {
            Delivered::No => Retry::Safe,
            Delivered::Unknown => Retry::AfterCancel,
        };
        let kind = if self.timed_out {
            ErrorKind::Timeout
        } else {
            ErrorKind::Unreachable
        };
        Error::new(kind, source, stage, self.message).retry(retry)
    }
}

impl BadBody {
    /// This error in Baton's model, for a request's body.
    pub fn into_request_error(self) -> Error {
        let kind = match self {
            Self::TooLarge(_) => ErrorKind::TooLarge,
            Self::TooSlow(_) => ErrorKind::RequestTimeout,
            Self::Broken(_) => ErrorKind::BadRequest,
        };
        Error::new(
            kind,
            Source::Client,
            Stage::Request,
            format!("the request body {self}"),
        )
    }
}

/// Whether a content type is that of a stream of events.
pub fn is_event_stream(content_type: &HeaderValue) -> bool {
    let essence = content_type.as_bytes().split(|byte| *byte == b';').next();
    essence.is_some_and(|essence| {
        essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// Bytes of a small answer, or nothing if it cannot be had in time. For messages only.
pub async fn small_body(body: hyper::body::Incoming) -> Bytes {
    read_limited(body, 1 << 20, std::time::Duration::from_secs(5))
        .await
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::base_url;

    #[test]
    fn a_base_url_is_a_scheme_and_a_place() {
        for good in [
            "http://h",
            "http://h/",
            "http://10.0.0.1:8000",
            "http://[::1]:80/",
        ] {
            assert!(base_url(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "h",
            "h:80",
            "//h",
            "https://h",
            "http://",
            "http://h/x",
            "http://h?x",
            "http://h#x",
            "http://h:",
            "http://h:x",
            "http://h:99999",
            "http://me@h",
            "http://h//",
        ] {
            assert!(base_url(bad).is_none(), "{bad}");
        }
    }
}

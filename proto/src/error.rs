//! The one error model: what went wrong, who is to blame, where, and whether trying again is safe.
//!
//! It has one mapping to HTTP. An answer that Baton made (and not an engine) carries the `baton-error` header, from
//! which the next hop reads the error back; its body is OpenAI-shaped for the client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Header of every answer made by Baton and not by an engine.
pub const ERROR_HEADER: &str = "baton-error";

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A word of a newer peer.
            #[serde(other)]
            Unknown,
        }

        impl $name {
            /// All that this version knows.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word on the wire, in headers and in metric labels.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Unknown => "unknown",
                }
            }

            fn from_word(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)+
                    _ => Self::Unknown,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words!(
    /// What went wrong.
    ErrorKind {
        /// The request is malformed or asks for what may not be asked.
        BadRequest = "bad_request",
        /// No or a wrong credential.
        Unauthorized = "unauthorized",
        /// No such route, model, worker or ticket.
        NotFound = "not_found",
        /// The route exists, not with this method.
        MethodNotAllowed = "method_not_allowed",
        /// The body is no JSON document by its content type.
        UnsupportedMediaType = "unsupported_media_type",
        /// The body or an answer exceeds its limit.
        TooLarge = "too_large",
        /// The peer did not send its request in time.
        RequestTimeout = "request_timeout",
        /// Queue or concurrency limit reached; come back later.
        Overloaded = "overloaded",
        /// No worker can serve this now.
        NoWorker = "no_worker",
        /// The worker takes no new work.
        Draining = "draining",
        /// Nothing answers at the peer's address.
        Unreachable = "unreachable",
        /// The peer answered what its protocol does not allow.
        Protocol = "protocol",
        /// The engine answered with an error, before or inside its answer.
        EngineFailed = "engine_failed",
        /// The engine's own judgement on the request (a 4xx): passed to the client as it is.
        EngineRejected = "engine_rejected",
        /// A deadline passed.
        Timeout = "timeout",
        /// The ticket is not genuine, not for this worker or request, or already used.
        TicketRefused = "ticket_refused",
        /// The lease of the KV is over.
        LeaseExpired = "lease_expired",
        /// The prefill engine is no longer the one that holds the KV.
        IncarnationChanged = "incarnation_changed",
        /// These two engines cannot hand over.
        Incompatible = "incompatible",
        /// Two holders of one identity.
        Conflict = "conflict",
        /// Whoever asked went away.
        Cancelled = "cancelled",
        /// A defect in Baton.
        Internal = "internal",
    }
);

words!(
    /// Who is to blame.
    Source {
        /// The client.
        Client = "client",
        /// The router.
        Router = "router",
        /// A sidecar.
        Sidecar = "sidecar",
        /// An engine.
        Engine = "engine",
    }
);

words!(
    /// Where a request was.
    Stage {
        /// Being read and understood.
        Request = "request",
        /// Looking for workers.
        Plan = "plan",
        /// Prefill leg.
        Prefill = "prefill",
        /// Between the legs: claim, settle, release.
        Handoff = "handoff",
        /// Decode leg.
        Decode = "decode",
        /// Local leg: one worker does all.
        Generate = "generate",
        /// Membership and watching, no request at all.
        Fleet = "fleet",
    }
);

words!(
    /// Whether the same may be tried again.
    Retry {
        /// No engine has seen it: try at once, elsewhere.
        Safe = "safe",
        /// An engine may be working on it: cancel there first, then try under a new id.
        AfterCancel = "after_cancel",
        /// It would end the same way, or was already answered.
        No = "no",
    }
);

/// An error of Baton's protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// Who is to blame.
    pub source_of_blame: Source,
    /// Where the request was.
    pub stage: Stage,
    /// Whether to try again.
    pub retry: Retry,
    /// One sentence for a person.
    pub message: String,
    /// After how many seconds it is worth trying again, where that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl Error {
    /// An error that must not be retried.
    pub fn new(kind: ErrorKind, source: Source, stage: Stage, message: impl Into<String>) -> Self {
        Self {
            kind,
            source_of_blame: source,
            stage,
            retry: Retry::No,
            message: message.into(),
            retry_after_s: None,
        }
    }

    /// The same error, worth trying again after so many seconds.
    #[must_use]
    pub fn after_s(self, seconds: u32) -> Self {
        Self {
            retry_after_s: Some(seconds),
            ..self
        }
    }

    /// The same error with another verdict on retries.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The client's fault, found while reading its request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(
            ErrorKind::BadRequest,
            Source::Client,
            Stage::Request,
            message,
        )
    }

    /// HTTP status of this error.
    pub fn status(&self) -> u16 {
        match self.kind {
            ErrorKind::BadRequest => 400,
            ErrorKind::Unauthorized => 401,
            ErrorKind::NotFound => 404,
            ErrorKind::MethodNotAllowed => 405,
            ErrorKind::RequestTimeout => 408,
            ErrorKind::Conflict
            | ErrorKind::TicketRefused
            | ErrorKind::LeaseExpired
            | ErrorKind::IncarnationChanged
            | ErrorKind::Incompatible => 409,
            ErrorKind::TooLarge => 413,
            ErrorKind::UnsupportedMediaType => 415,
            ErrorKind::EngineRejected => 422,
            ErrorKind::Cancelled => 499,
            ErrorKind::Internal | ErrorKind::Unknown => 500,
            ErrorKind::Unreachable | ErrorKind::Protocol | ErrorKind::EngineFailed => 502,
            ErrorKind::Overloaded | ErrorKind::NoWorker | ErrorKind::Draining => 503,
            ErrorKind::Timeout => 504,
        }
    }

    /// OpenAI's name for this class of error.
    fn openai_type(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            404 => "not_found_error",
            400..500 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }

    /// The OpenAI-shaped body: `{"error":{"message","type","param","code"}}`.
    pub fn openai_body(&self) -> String {
        serde_json::json!({"error": {
            "message": self.message,
            "type": self.openai_type(),
            "param": null,
            "code": self.kind.word(),
        }})
        .to_string()
    }

    /// Value of the [`ERROR_HEADER`]: everything but the message.
    pub fn header(&self) -> String {
        format!(
            "{}; source={}; stage={}; retry={}",
            self.kind, self.source_of_blame, self.stage, self.retry
        )
    }

    /// Reads an error back from another hop's header and OpenAI-shaped body. Words of newer peers become `Unknown`;
    /// an unknown verdict on retries reads as the cautious one.
    pub fn from_wire(header: &str, body: &[u8]) -> Self {
        let head: Head = header.parse().unwrap_or_default();
        let message =
            openai_message(body).unwrap_or_else(|| format!("the peer reported {header:?}"));
        Self {
            kind: head.kind,
            source_of_blame: head.source,
            stage: head.stage,
            retry: head.retry,
            message,
            retry_after_s: None,
        }
    }
}

/// `error.message` of an OpenAI-shaped body, or the `message` of one that is the error itself.
pub fn openai_message(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        error: Option<Inner>,
        message: Option<String>,
    }
    #[derive(Deserialize)]
    struct Inner {
        message: String,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    body.error.map(|error| error.message).or(body.message)
}

struct Head {
    kind: ErrorKind,
    source: Source,
    stage: Stage,
    retry: Retry,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            kind: ErrorKind::Unknown,
            source: Source::Unknown,
            stage: Stage::Unknown,
            retry: Retry::AfterCancel,
        }
    }
}

impl FromStr for Head {
    type Err = std::convert::Infallible;

    fn from_str(header: &str) -> Result<Self, Self::Err> {
        let mut parts = header.split(';').map(str::trim);
        let mut head = Self {
            kind: parts
                .next()
                .map_or(ErrorKind::Unknown, ErrorKind::from_word),
            ..Self::default()
        };
        for part in parts {
            match part.split_once('=') {
                Some(("source", word)) => head.source = Source::from_word(word),
                Some(("stage", word)) => head.stage = Stage::from_word(word),
                Some(("retry", word)) => head.retry = Retry::from_word(word),
                _ => {}
            }
        }
        if head.retry == Retry::Unknown {
            head.retry = Retry::AfterCancel;
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_hop() {
        for &kind in ErrorKind::ALL {
            for &retry in Retry::ALL {
                let error =
                    Error::new(kind, Source::Engine, Stage::Decode, "it \"broke\"\n").retry(retry);
                assert_eq!(
                    Error::from_wire(&error.header(), error.openai_body().as_bytes()),
                    error
                );
                assert!((400..600).contains(&error.status()));
            }
        }
    }

    #[test]
    fn words_agree_with_serde() {
        for &kind in ErrorKind::ALL {
            assert_eq!(
                serde_json::to_string(&kind).unwrap(),
                format!("\"{}\"", kind.word())
            );
        }
    }

    #[test]
    fn a_newer_or_broken_peer_is_read_with_caution() {
        let error = Error::from_wire("solar_flare; source=sun; retry=maybe; x", b"not json");
        assert_eq!(error.kind, ErrorKind::Unknown);
        assert_eq!(error.retry, Retry::AfterCancel);
        assert_eq!(error.status(), 500);
        assert_eq!(Error::from_wire("", b"").retry, Retry::AfterCancel);
    }
}

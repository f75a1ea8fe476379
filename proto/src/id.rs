//! Names of things: who a worker is, which life of its engine, which request, which ticket.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is no valid identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be 1 to {max} characters of A-Z a-z 0-9 . _ - (got {got:?})")]
pub struct BadId {
    what: &'static str,
    max: usize,
    got: String,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The text of the identifier.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
                if text.is_empty() || text.len() > $max || !text.bytes().all(plain) {
                    let got = text.chars().take($max).collect();
                    return Err(BadId { what: $what, max: $max, got });
                }
                Ok(Self(text.into()))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

text_id!(
    /// A worker: an engine process and its sidecar. Chosen by the operator, unique in the fleet.
    WorkerId, "worker id", 64
);
text_id!(
    /// One attempt of one request on one engine. Chosen by the router, fresh for every attempt; it becomes the engine's
    /// request id, so it is never the client's.
    RequestId, "request id", 64
);
text_id!(
    /// A permitted handoff, and before it exists the prefill that will produce it. Chosen by the router.
    TicketId, "ticket id", 64
);
text_id!(
    /// One life of a router. Fresh for every process: what it has asked for ends when it is gone.
    RouterId, "router id", 64
);
text_id!(
    /// One life of an engine process. Changes whenever the engine restarts; for vLLM it is the NIXL agent's name.
    Incarnation, "incarnation", 128
);

/// One life of a sidecar: nanoseconds since the Unix epoch at its start, so a later life is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

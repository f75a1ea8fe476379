//! Where the KV events of a rank are to be had.

/// The events of one data-parallel rank.
pub trait Source: Send + 'static {
    /// Which rank.
    fn rank(&self) -> u32;

    /// What its events are published under.
    fn topic(&self) -> &str;

    /// Whether the last ones can be had again.
    fn tells_again(&self) -> bool;

    /// What this sidecar does to hear it, found out anew each time that its sockets are opened. May take a moment.
    fn endpoints(&self) -> Endpoints;
}

/// Who opens the event stream's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// The engine listens here.
    Connect(String),
    /// The engine connects to this endpoint.
    Bind(String),
}

impl Way {
    /// The endpoint.
    pub fn endpoint(&self) -> &str {
        match self {
            Self::Connect(endpoint) | Self::Bind(endpoint) => endpoint,
        }
    }
}

/// What this sidecar does to hear a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// The event stream.
    pub way: Way,
    /// Where the last events can be had again.
    pub replay: Option<String>,
    /// What they are published under.
    pub topic: String,
}

/// An endpoint that an engine listens at, as it is reached: a wildcard is the engine's host, seen from here.
pub fn reachable(endpoint: &str, host: &str) -> String {
    for wildcard in ["*", "[::]", "0.0.0.0"] {
        if let Some(port) = endpoint.strip_prefix(&format!("tcp://{wildcard}:")) {
            return format!("tcp://{host}:{port}");
        }
    }
    endpoint.to_owned()
}

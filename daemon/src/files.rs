//! File descriptors: as many as the operator's hard limit allows, and never all of them for peers that come to us.
//!
//! A shell gives a process 1024 (its soft limit). If idle clients could take them all, no connection to a worker could be
//! opened any more, and every request would fail that could have been served.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that one accepted connection may need: its own, and one for each of two legs.
const A_CONNECTION: u64 = 3;

/// Raises the soft limit to the hard one. A launched engine inherits it; engines raise their own in the same way.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on file descriptors cannot be raised");
    }
}

/// How many connections may be accepted so that enough descriptors are left to serve them.
pub fn acceptable_connections() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit / A_CONNECTION).unwrap_or(usize::MAX)
    })
}

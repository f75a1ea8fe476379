//! Why a view is given up and asked for anew.

use std::fmt;

/// What a sidecar said and what is known of it do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resync {
    /// A journal entry is not the one after the last, or a heartbeat is older than what came before it.
    Order,
    /// A snapshot was interrupted by another one or by the journal.
    Snapshot,
    /// An event of a newer peer: nobody here knows what it changed.
    UnknownEvent,
    /// A heartbeat's digests are not those of what was applied.
    Digest,
    /// A heartbeat counts journal entries that never came.
    Ahead,
    /// The index holds another number of blocks than were applied to it: some came twice, or left that were not there.
    Index,
    /// More than an engine can hold.
    Bounds,
}

impl Resync {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Order,
        Self::Snapshot,
        Self::UnknownEvent,
        Self::Digest,
        Self::Ahead,
        Self::Index,
        Self::Bounds,
    ];

    /// The word in metrics and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Snapshot => "snapshot",
            Self::UnknownEvent => "unknown_event",
            Self::Digest => "digest",
            Self::Ahead => "ahead",
            Self::Index => "index",
            Self::Bounds => "bounds",
        }
    }
}

impl fmt::Display for Resync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

//! What can go wrong, in one sentence each.

use std::time::Duration;

use crate::Slots;

/// Why NIXL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NIXL is not available: {0}")]
pub struct Unavailable(pub(crate) String);

/// Why something was not transferred.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The peer's process ended, or the way to it broke. NIXL does not tell which, and neither heals: a peer that lives has
    /// to be met anew, by an agent that has not met it.
    #[error("agent {0} is gone")]
    Disconnected(String),
    /// The peer has none of these bytes registered.
    #[error("agent {0} has no such memory")]
    NoSuchMemory(String),
    /// No terminal status came in time. The transfer may still go on.
    #[error("the transfer did not end within {} s", .0.as_secs_f64())]
    Deadline(Duration),
    /// No agent tells such a thing of itself.
    #[error("these are no metadata of an agent: {0}")]
    BadMetadata(&'static str),
    /// The name is known with other bytes. A process that began anew has a new name; this is a broken copy or an impostor.
    #[error("agent {0} told other metadata of itself before")]
    Changed(String),
    /// Metadata under this name could not be loaded, and what NIXL then knows of it cannot be taken back.
    #[error("metadata of agent {0} were broken once, so only a new agent can meet it")]
    Poisoned(String),
    /// The call makes no sense.
    #[error("the transfer is refused: {0}")]
    Refused(&'static str),
    /// The agent was not met, or forgotten since.
    #[error("agent {0} was not met")]
    Unknown(String),
    /// Memory could not be had, or not be registered.
    #[error("{0} bytes cannot be registered")]
    NoRoom(usize),
    /// This agent did not come up.
    #[error("the agent cannot start: {0}")]
    Start(String),
    /// This agent has ended.
    #[error("the agent has ended")]
    Gone,
}

/// A read that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReadFailed {
    /// Why.
    #[source]
    pub error: TransferError,
    /// Where the bytes should have gone, if nobody can write there any more. Otherwise the slots are in quarantine and go
    /// back to their pool by themselves.
    pub slots: Option<Slots>,
}

impl ReadFailed {
    pub(crate) fn with(error: TransferError, slots: Slots) -> Self {
        Self {
            error,
            slots: Some(slots),
        }
    }

    pub(crate) fn without(error: TransferError) -> Self {
        Self { error, slots: None }
    }
}

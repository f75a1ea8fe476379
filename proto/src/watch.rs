//! The watch stream: all that a sidecar tells every router, as frames.
//!
//! It opens with `Hello`, then a snapshot in chunks, then the journal and reports as they come, with heartbeats between.
//! A watcher that names the epoch and the last journal entry it has, as `?epoch=…&seq=…`, gets no snapshot if the journal
//! still has all that came after.

use serde::{Deserialize, Serialize};

use crate::event::{Blocks, KvEvent, ViewState};
use crate::id::{Epoch, Incarnation, WorkerId};
use crate::load::LoadReport;
use crate::worker::{Tier, WorkerInfo};

/// First frame, and again whenever something in it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the sidecar.
    pub protocol: u32,
    /// Who.
    pub worker: WorkerId,
    /// Which life of the engine; absent while the engine is not attached.
    pub incarnation: Option<Incarnation>,
    /// Which life of the sidecar.
    pub epoch: Epoch,
    /// What it is; absent while the engine is not attached.
    pub info: Option<Box<WorkerInfo>>,
}

/// What a sidecar can do for a router now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SidecarState {
    /// Waiting for the engine to come up.
    Starting,
    /// Takes work.
    Ready,
    /// The engine does not answer.
    EngineDown,
    /// Takes no new work; work in flight goes on.
    Draining,
    /// Nothing in flight any more, but KV is still held for handoffs.
    ServingKv,
    /// Nothing left: it may be stopped.
    Drained,
    /// A state of a newer peer: given no work.
    #[serde(other)]
    Unknown,
}

/// Digest of one rank's blocks in one tier, at the heartbeat's sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDigest {
    /// Data-parallel rank.
    pub rank: u32,
    /// Tier.
    pub tier: Tier,
    /// Order-independent digest of the sequence hashes: [`crate::digest::BlockSetDigest`].
    pub digest: u64,
    /// How many blocks.
    pub blocks: u64,
}

/// A frame of the watch stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WatchFrame {
    /// Who speaks.
    Hello(Hello),
    /// Part of the snapshot of what a rank holds, as of journal sequence number `seq`. Every rank that is watched has at
    /// least one part; of a rank without any, nothing is known.
    Snapshot {
        /// Last journal entry the snapshot includes.
        seq: u64,
        /// Data-parallel rank.
        rank: u32,
        /// What can be said of the rank's view, at `seq`.
        state: ViewState,
        /// Tier.
        tier: Tier,
        /// The blocks.
        blocks: Blocks,
        /// Whether the whole snapshot ends here.
        last: bool,
    },
    /// One journal entry.
    Event {
        /// Its sequence number within the sidecar's epoch.
        seq: u64,
        /// Data-parallel rank.
        rank: u32,
        /// What happened.
        event: KvEvent,
    },
    /// What the sidecar can do now.
    State {
        /// The state.
        state: SidecarState,
    },
    /// How busy the worker is.
    Load(LoadReport),
    /// Sign of life.
    Heartbeat {
        /// Last journal entry before it.
        seq: u64,
        /// Digests at `seq`, of every tier that holds something.
        digests: Vec<ViewDigest>,
    },
    /// A frame of a newer peer: skipped.
    #[serde(other)]
    Unknown,
}

/// Body of a sidecar's registration with a router, and of its renewals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// [`crate::PROTOCOL_VERSION`] of the sidecar.
    pub protocol: u32,
    /// Who.
    pub worker: WorkerId,
    /// Which life of the sidecar: a newer one takes the id over, an older one is refused.
    pub epoch: Epoch,
    /// Base URL at which routers reach the sidecar.
    pub address: String,
    /// The sidecar says goodbye: forget it at once.
    #[serde(default)]
    pub leave: bool,
}

/// A router's answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// How long the registration holds without renewal, in milliseconds.
    pub lease_ms: u64,
}

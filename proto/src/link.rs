//! Links between hosts, measured between sidecars before an engine has moved anything.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::load::Transport;

/// Memory that a sidecar lets others read, to measure the way to it. Answer of `GET link`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkOffer {
    /// What its agent tells others of itself, in the fabric's own form.
    pub agent: Bytes,
    /// Where the memory is.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

/// Measure the link from another sidecar's host to this one. Body of `POST link/measure`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureLink {
    /// Base URL of the other sidecar.
    pub from: String,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasured {
    /// Bytes that were read at once.
    pub bytes: u64,
    /// Seconds that took at best.
    pub seconds: f64,
    /// Bytes of a small read.
    pub small_bytes: u64,
    /// Seconds that took at best.
    pub small_seconds: f64,
    /// By what they came.
    pub transport: Transport,
}

//! Peers and faults: what Baton must survive, in one process and in seconds.
//!
//! [`emulated`] are engines that speak the real wire, derive their text from the KV they hold, so that wrong KV changes the
//! text, fail in every way and die where the real ones die. [`fleet`] puts a router
//! and sidecars, each on a runtime of its own, around such engines. [`client`] speaks HTTP byte by byte, for a client that
//! behaves badly is made of bytes. [`direct`] speaks Baton's own protocol, for a peer that does. [`replay`] shows what
//! recordings contain and what a sidecar makes of them, [`kv_scene`] what it makes of KV events on a bad wire. [`transfer_peer`]
//! is a process with one agent that moves memory, to be killed or stopped.
//!
//! This crate must never be needed by another one. Its assertions are in the harness where they hold for every test:
//! see [`fleet::Fleet::finish`].

// A harness judges by panicking, and its tests read better for it.
#![expect(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a harness that cannot go on fails the test"
)]

pub mod ask;
pub mod bench;
pub mod client;
pub mod conformance;
pub mod demo;
pub mod direct;
pub mod emulated;
pub mod fault_probe;
pub mod faults;
pub mod fleet;
pub mod hostile;
pub mod kv_scene;
pub mod page;
pub mod panics;
pub mod ports;
pub mod real;
pub mod replay;
pub mod routing;
pub mod steady;
pub mod telemetry;
pub mod transfer_peer;
pub mod view_probe;
pub mod wait;

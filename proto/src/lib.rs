//! The common protocol of Baton: what a router and a sidecar say to each other, whatever the engine.
//!
//! This crate must never do I/O, start a task or know an engine's wire format: vLLM, SGLang and TensorRT-LLM
//! types live in their sidecars. Everything here is plain data with its rules.
//!
//! Where to start reading: [`call`] is the downward river (a request's three calls and the frames of a prefill),
//! [`watch`] the upward one (what a sidecar tells every router). [`ticket`] is the one thing that must never be wrong.
//!
//! On the wire everything is MessagePack with named fields inside length-delimited frames ([`frame`]). Unknown fields
//! are ignored and unknown enum variants decode to `Unknown`, so that two versions can talk during a roll-out; the
//! golden vectors under `vectors/` keep the bytes from changing silently.

pub mod call;
pub mod compat;
pub mod digest;
pub mod error;
pub mod event;
pub mod frame;
pub mod hash;
pub mod id;
pub mod json;
pub mod link;
pub mod load;
pub mod model;
pub mod request;
pub mod route;
pub mod ticket;
pub mod token;
pub mod watch;
pub mod worker;

pub use error::{Error, ErrorKind, Retry, Source, Stage};
pub use id::{Epoch, Incarnation, RequestId, RouterId, TicketId, WorkerId};

/// Version of the protocol, carried by [`watch::Hello`]. Peers of different versions refuse each other with a sentence.
pub const PROTOCOL_VERSION: u32 = 1;

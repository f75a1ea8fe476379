//! Memory to memory transfers between processes, and the notifications that go with them.
//!
//! Two *fabrics* behind one API: NIXL, by whose library engines move KV, loaded at run time from the engine's own
//! installation; and TCP to 127.0.0.1, for emulated engines where NIXL is absent. This crate knows no engine, no KV and no
//! protocol of Baton's. It is there so that nothing that was seen to go wrong with NIXL can reach a caller:
//!
//! * a library that is absent, or lacks a function, is one sentence and not the end of the process ([`Library`]);
//! * NIXL's calls are made on a thread of the agent's, and every wait of a caller has a bound or can be dropped;
//! * memory that a transfer may still write to is handed to nobody else ([`Pool`], quarantine);
//! * memory that a peer may still read is there until the agent has ended ([`Agent::register`]);
//! * metadata under a known name that are not the same bytes are refused before NIXL sees them ([`Agent::meet`]);
//! * nothing listens but on the devices that were named ([`AgentConfig::devices`]).
//!
//! Start reading at [`Agent`], then `nixl/life.rs`. All `unsafe` is in `raw.rs`.

mod agent;
mod error;
mod inbox;
mod library;
mod loopback;
mod metadata;
mod nixl;
mod pool;
mod raw;

pub use agent::{Agent, AgentConfig, Fabric, Peer};
pub use error::{ReadFailed, TransferError, Unavailable};
pub use inbox::Notification;
pub use library::Library;
pub use loopback::Link;
pub use metadata::{Kind, Metadata};
pub use pool::{Pool, Slots, Span};

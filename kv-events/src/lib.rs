//! KV events of the engines that publish them the way vLLM began to: batches over a ZeroMQ socket, numbered from 0 in each
//! life of the process, the last ones to be had again from a second socket.
//!
//! [`follow`] hears them in order or knows what was lost, [`message`] takes frames apart, [`decoder`] turns a batch into
//! the terms that all engines share. What engines of this family do differently is a [`dialect::Dialect`], and where each
//! of them publishes is its sidecar's to find out. No engine is named in the code of this crate but in facts about it.
//!
//! Nothing unknown is fatal, and nothing passes in silence: see [`oddity`]. Payloads are untrusted. Reading one takes no
//! memory that its own bytes do not stand for, no recursion, and one look at each byte (two at fields of another type than
//! expected); one that is no batch is one error and has no events.

pub mod cursor;
pub mod decoder;
pub mod dialect;
mod event;
pub mod field;
pub mod follow;
pub mod message;
pub mod number;
pub mod oddity;
mod reading;
pub mod socket;

pub use cursor::Malformed;

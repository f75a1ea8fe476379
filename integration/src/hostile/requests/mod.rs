//! Requests, spoilt in one part each.

pub mod calls;
pub mod chunks;
pub mod framing;
pub mod head;
pub mod headers;
pub mod json;
pub mod media;
pub mod members;
mod messages;
pub mod pipelines;
pub mod registrations;
pub mod transfer_keys;

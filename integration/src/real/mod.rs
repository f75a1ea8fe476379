//! What probes of real engines share: what differs between [`engine`]s, [`process`]es that end with the probe, bounded
//! [`http`] calls, and the [`report`] of what held.

pub mod engine;
pub mod http;
pub mod process;
pub mod report;

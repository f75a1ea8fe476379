//! What probes of real engines share: [`process`]es that end with the probe, bounded [`http`] calls, and the [`report`] of
//! what held.

pub mod http;
pub mod process;
pub mod report;

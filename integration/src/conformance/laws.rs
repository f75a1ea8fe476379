//! What holds for any exchange, any event log and any page of metrics, wherever it comes from.
//!
//! A recording says what one engine did once; a law says what all of them must do. Each was checked against every recording
//! first: a law that a real log breaks is no law.

pub mod event_log;
pub mod exchange;
pub mod handshake;
pub mod metrics_page;
#[cfg(test)]
mod tests;

/// Tokens per KV block, of everything that was recorded.
pub const BLOCK_SIZE: u64 = 32;

/// A law's name and what is wrong under it.
pub type Broken = (&'static str, String);

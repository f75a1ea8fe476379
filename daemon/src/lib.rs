//! What makes a process a well-behaved Baton daemon, the same for the router and every sidecar: configuration in
//! layers, logs, signals and exit codes, HTTP in and out with bounds on everything, trace context, metrics.
//!
//! This crate must never know what a prefill or a worker is. Start reading at [`run`], then [`http`].

pub mod config;
pub mod files;
pub mod fresh;
pub mod http;
pub mod log;
pub mod metrics;
pub mod run;
pub mod signal;
pub mod trace;

pub use run::Exit;

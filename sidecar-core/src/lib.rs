//! The sidecar daemon: everything that is the same for every engine.
//!
//! A sidecar stands beside one unmodified engine. Downwards it relays the legs of requests and keeps the truth about
//! handoffs; upwards it tells every router what its engine is, how it is and how busy it is. What differs between engines
//! is behind one trait, [`engine::Engine`]; nothing here may name an engine's keys, ports or formats.
//!
//! Start reading at [`core`] (the shared state), then [`relay`] (a request's legs) and [`ledger`] (the handoffs). [`mirror`]
//! is what the engine's KV cache holds, [`view`] how routers are told of it.

pub mod args;
pub mod command;
pub mod core;
pub mod engine;
pub mod folder;
mod giveback;
mod labels;
pub mod launch;
pub mod ledger;
mod link;
pub mod membership;
pub mod metrics;
pub mod metrics_page;
pub mod mirror;
pub mod model_files;
pub mod openai;
mod peers;
pub mod questions;
pub mod record;
pub mod refusal;
pub mod relay;
mod relearn;
pub mod routers;
pub mod run;
pub mod server;
pub mod status;
pub mod tokenisation;
mod transfers;
pub mod view;
pub mod watch;
pub mod watchdog;

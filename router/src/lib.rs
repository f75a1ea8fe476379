//! Baton's router: an OpenAI client talks to it, and it has the prompt prefilled by one worker and decoded by another, or
//! both by one, whichever is predicted to be faster.
//!
//! It consumes only the common protocol and must never match on an engine's kind or know its formats. Start reading at
//! [`serve`] (one request from plan to answer), then [`placing`] (its plan, once there is room), [`prefill`] (a split request), [`fleet`] (what is
//! known of workers) and [`view`] (what is known of their KV caches).

pub mod admin;
pub mod args;
pub mod budget;
pub mod calls;
pub mod fleet;
pub mod front;
pub mod metrics;
pub mod placing;
pub mod planner;
pub mod prefill;
pub mod queue;
pub mod recovery;
pub mod run;
pub mod serve;
pub mod stall;
pub mod state;
pub mod tokens;
pub mod view;

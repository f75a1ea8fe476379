//! Which workers serve a request, by predicted seconds.
//!
//! A plan is `Local` (one worker does it all) or `Split` (one computes the prompt, another decodes). For each that is
//! possible the seconds to the first token are predicted, part by part ([`Cost`]), and the cheapest wins ([`Planner`]).
//! What the prediction rests on is learnt: a [`Worker`] keeps the books of what it was given and learns from how long
//! that took how fast it is; [`Links`] learn how fast KV moves between two of them. Where KV may and should move is the
//! operator's to say ([`Topology`]).
//!
//! **Architecture Invariant:** nothing here knows a protocol, an engine or a clock. Who calls gives times as spans of
//! seconds, so that a router, a test and a simulation in virtual time use the very same planner.
//!
//! Start reading at [`Planner::plans`].

mod best;
mod book;
mod choose;
mod cost;
mod fit;
mod links;
mod plan;
mod policy;
mod room;
mod topology;
mod tuning;
mod worker;

pub use book::{Booked, Load, Work};
pub use choose::{Planner, Transit};
pub use cost::{Cached, Cost};
pub use links::{LinkFigures, Links, Moving};
pub use plan::{Ask, Candidate, Choice, Duty, Pairing, Plan, Refusal, Standing};
pub use policy::{Policy, Turn};
pub use room::Promise;
pub use topology::{BadTopology, Level, Place, Topology};
pub use tuning::Tuning;
pub use worker::{Figures, Kind, Limits, Worker};

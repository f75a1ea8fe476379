//! `cargo xtask bench routing`: policies that choose workers, on emulated fleets in virtual time.
//!
//! A [`trace`] of real requests arrives at a [`simulation`] of up to 64 [`engine`]s whose KV moves over [`links`]; a
//! [`policy`] chooses who serves each. What a policy is asked and told is all that a router can see; [`setting`] has what it
//! must not see. The policies that Baton is compared with are in [`policies`].
//!
//! Start reading at [`policy::Policy`] and [`simulation::run`].

pub mod choice;
pub mod engine;
pub mod links;
pub mod matrix;
pub mod outcome;
pub mod policies;
pub mod policy;
pub mod setting;
pub mod simulation;
pub mod summary;
pub mod trace;
pub mod view;

#[cfg(test)]
mod tests;

//! `cargo xtask bench`: what Baton adds to an engine, measured from outside, and what it costs to know what engines hold
//! ([`events`], in one process).
//!
//! For the first, real processes over loopback TCP: a load generator ([`load`]) sends the same requests through Baton, through a minimal
//! [`relay`] with the same hops, and to the engine itself, in turns ([`overhead`]), and reads from the system what each
//! process has used meanwhile ([`process`]). [`row`] is the matrix and all names; [`figure`] what is printed.
//!
//! Every answer is compared with the engine's own ([`question`]): a fast wrong answer is a failure, not a figure. Nothing
//! here asserts a time.

pub mod connection;
pub mod events;
pub mod figure;
pub mod load;
pub mod overhead;
pub mod process;
pub mod question;
pub mod relay;
pub mod row;

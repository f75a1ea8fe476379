//! A split request: prefill here, decode there.
//!
//! * [`bypass`]: what must not be split at all, and what a plan needs to know of a request (activation and query).
//! * [`machine`]: the one state machine over a prefill's frames. Pure.
//! * [`execution`]: a prefill leg, driven by the machine, up to a ticket.
//! * [`rest`]: that leg once its ticket is out; it may still run, and fail.
//! * [`handoff`]: a ticket's way through a decode worker, up to the commit point; claim and settle.
//! * [`spent`]: what prefills cost that were for nothing.
//! * Admission is the router's door (`front`), cancellation the guards that every leg holds
//!   ([`crate::calls::ReleaseOnDrop`], [`crate::fleet::Reservation`]), recovery what [`crate::recovery`] does with a failure.

pub mod bypass;
pub mod execution;
pub mod handoff;
pub mod machine;
pub mod rest;
mod spent;

pub use spent::{Spent, Waste};

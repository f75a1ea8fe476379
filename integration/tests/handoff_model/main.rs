//! The handoff as a protocol, without time and bytes: every order in which two routers, two sidecars and two engines can
//! act, die and come back is gone through, and what must never be is looked for in each state (`model`). The model's
//! ledger and memory of used tickets are held against the real ones, step by step (`lockstep`).

#![allow(
    clippy::unwrap_used,
    clippy::struct_excessive_bools,
    reason = "clippy sees no test in the functions beside the tests; a state is what happened and what did not"
)]

mod books;
mod lockstep;
mod model;

//! Whether a handoff between real engines survives what can happen to anybody in it.
//!
//! A [`stand::Stand`] runs a prefill engine with few blocks and a short lease, decode engines with few places, their
//! sidecars and a router that splits whatever can be split. Each of the [`rows`] does something to one of them in the
//! middle of a handoff, and judges every answer by what an engine says that was asked alone ([`asks`], [`verdict`]).
//! Afterwards nothing may be left: blocks are free again within a bound, ledgers are empty, and no decode engine has kept
//! foreign KV ([`quiet`]). Where a handoff must be caught between its legs, somebody is frozen there: no row depends on
//! being quick.

pub mod asks;
pub mod call;
pub mod look;
pub mod quiet;
pub mod rows;
pub mod scene;
pub mod seat;
pub mod stand;
pub mod verdict;

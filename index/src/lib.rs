//! Sequence hash → who holds it: the router's index of the KV blocks of its fleet.
//!
//! An [`Index`] knows for every block which targets hold it in which tier, and finds for a prompt how much of it each
//! target holds ([`Index::find`]). It is a data structure and nothing else: it knows no protocol, no engine and no clock,
//! does no I/O and never waits, but for writers on each other.
//!
//! One writer at a time, and readers that nothing blocks, growth included. A reader that meets a writer sees each block
//! either as it was or as it is: what it reads is checked to belong to the block it asked for, and read again otherwise.
//! The form was chosen for the cache misses that it does not have (`docs/decisions/0011-an-index-without-a-tree.md`):
//!
//! * [`table`]: blocks are in a flat table, a cache line for every four, where nothing moves and nothing is left behind;
//! * [`word`]: one word beside a block's hash says who holds it: three holders at most, or the number of a set;
//! * [`sets`]: sets of more holders, each kept once however many blocks it is said of;
//! * [`writer`]: changes, in groups whose cache misses happen at the same time;
//! * [`find`]: finding, by bisection where a target's blocks are known to have no holes, otherwise block by block.
//!
//! Start reading at [`Index`].
//!
//! The lock-free parts are model-checked: `RUSTFLAGS="--cfg loom" cargo test -p baton-index --release --test loom`
//! (with a target folder of its own, or everything is built anew each time).

#![allow(
    clippy::cast_possible_truncation,
    reason = "hashes, places and numbers are cut to the bits that a word or a table has for them"
)]

mod find;
mod index;
mod sets;
mod sync;
mod table;
mod target;
mod view;
mod word;
mod writer;

pub use find::{Found, Match};
pub use index::Index;
pub use target::{Target, Tier};

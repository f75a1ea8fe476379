//! Whether router and sidecar know what a real engine holds, whatever happens to any of them.
//!
//! A [`stand::Stand`] runs a router, a sidecar and an engine with few blocks, and [`load`] keeps it evicting. Beside the
//! sidecar an own [`subscriber`] follows the engine, and [`books`] are kept that share nothing with the sidecar but the
//! definition of a block's hash. Then caches are reset, connections are cut and processes are killed; at every quiet point
//! all must agree ([`quiet`]), and what the router predicts to be cached must be what the engine reports ([`predictions`]).
//! Start reading at [`stages`].

pub mod adapter;
pub mod books;
pub mod detour;
pub mod launch;
pub mod load;
pub mod look;
pub mod predictions;
pub mod quiet;
pub mod stages;
pub mod stand;
pub mod subscriber;

//! The relay: a request's legs, from the router to the engine and back.
//!
//! `prefill` answers frames and belongs to the sidecar: it goes on when the router goes away, because its end may have to
//! be booked. `answer` serves decode and local legs: they end when whoever asked goes away, and their first bytes are
//! held back until the engine has shown a token. `progress` judges whether the engine works on them at all.

mod abort;
pub mod admission;
pub mod answer;
mod frames;
pub mod in_flight;
pub mod leg;
pub mod pace;
pub mod prefill;
pub mod progress;
pub mod stream;
pub mod used;
pub mod vigil;

//! What is known of the engines' KV caches, and what that means for a prompt.
//!
//! [`KvView`] is one worker's view: it takes the frames of a watch stream, keeps the fleet-wide index by them and never
//! believes what it cannot account for. [`Expected`] is what no event has told yet. [`predict`] puts both together: how
//! much of a prompt each worker has already; where its tokens are not known its [`Text`] has to do ([`predict_by_text`]).
//! [`Proof`] compares that with what the engine reports afterwards, and [`Trust`] draws the conclusions.
//!
//! Nothing here asks anybody anything: frames in, answers out. Tokens come from whoever has them ([`Prompt`]).

mod bounds;
mod cached;
mod expected;
mod heartbeat;
mod kv_view;
mod prediction;
mod prompt;
mod proof;
mod rank;
mod resync;
mod target;
mod text;
mod trust;

pub use bounds::Bounds;
pub use cached::{Basis, Cached};
pub use expected::{Expectation, Expected};
pub use kv_view::{KnownRank, KvView};
pub use prediction::{Foretold, Prediction, predict, predict_by_text};
pub use prompt::Prompt;
pub(crate) use prompt::counted_token_ids;
pub use proof::{Proof, Proofs};
pub use rank::TIERS;
pub use resync::Resync;
pub use target::HeldTarget;
pub use text::Text;
pub(crate) use text::{BYTES_PER_TOKEN, PIECE_TOKENS};
pub use trust::{Cause, Trust};

#[cfg(test)]
pub(crate) mod tests;

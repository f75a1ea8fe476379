//! How a rank reaches the KV of other engines.

use std::future::Future;
use std::pin::Pin;

use baton_transfer::TransferError;

use super::Remote;

/// A future that an engine gives to its ranks.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a rank reaches the KV of other engines.
pub trait Network: Send + Sync {
    /// Brings the rows of a prompt from `first_token` up to `tokens`, in whole blocks of the holder, and tells the holder
    /// that they arrived.
    fn fetch(
        &self,
        remote: Remote,
        first_token: usize,
        tokens: usize,
    ) -> Pending<Result<Vec<u8>, Failure>>;

    /// Tells a holder something.
    fn notify(&self, remote: Remote, message: String) -> Pending<()>;
}

/// Why KV did not come.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was not transferred.
    #[error("the KV did not come: {0}")]
    Transfer(#[from] TransferError),
    /// The holder has no such block.
    #[error("the holder of the KV has no such block")]
    NoSuchBlock,
    /// There is nowhere to put it.
    #[error("there is no memory left to read KV into")]
    NoRoom,
    /// Handshake: no answer, nonsense, or an engine that does not fit.
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

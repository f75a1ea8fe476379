//! What the engine tells only once: its KV events, and the statistics of its steps.

use std::future::Future;

use baton_proto::Error;

/// Where both are taken from, as JSON arrays. Whoever takes them has them, and nobody else ever will.
pub trait Source: Clone + Send + Sync + 'static {
    /// Takes the KV events that nobody has taken yet.
    fn take_events(&self) -> impl Future<Output = Result<Vec<u8>, Error>> + Send;

    /// Takes the statistics that nobody has taken yet.
    fn take_statistics(&self) -> impl Future<Output = Result<Vec<u8>, Error>> + Send;
}

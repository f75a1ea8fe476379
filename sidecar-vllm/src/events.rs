//! vLLM's KV events: messages of its event socket and of its replay socket, in the sidecar's terms.
//!
//! How such messages are heard and taken apart is the same for several engines ([`baton_kv_events`]); what vLLM's batches
//! have of their own is here. Written against 0.32.0, whose events are maps; older versions send arrays with the same
//! fields in the order of [`text::VllmEvents`], and newer ones may send the batch as a map, too. Either is read, in any
//! order of keys.

mod extra_keys;
#[cfg(test)]
mod tests;
pub mod text;

pub use baton_kv_events::{Malformed, message, oddity};

/// The decoder of vLLM's batches.
pub mod decoder {
    pub use baton_kv_events::decoder::Batch;

    /// Decodes payloads one after the other.
    pub type Decoder = baton_kv_events::decoder::Decoder<super::text::VllmEvents>;
}

//! Following vLLM's KV events: [`source`] says where they are to be had, [`baton_kv_events::follow`] hears them.

pub mod source;

use baton_sidecar_core::engine::Following;
use baton_sidecar_core::view::Feed;

use crate::events::text::VllmEvents;
use source::EventSource;

/// Starts to follow; nothing if there is nothing to follow.
pub fn start(sources: Vec<EventSource>, feed: &Feed) -> Option<Following> {
    baton_kv_events::follow::start::<VllmEvents, _>(sources, feed)
}

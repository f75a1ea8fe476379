//! Changes of a view, as the journal has them.

use baton_proto::event::{Blocks, KvEvent};
use baton_proto::hash::SequenceHash;
use baton_proto::worker::Tier;

/// The changes that one message made. Blocks that follow each other into or out of a tier become one event, however the
/// engine said it: vLLM announces every evicted block alone.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<KvEvent>);

impl Changes {
    pub(super) fn push(&mut self, event: KvEvent) {
        self.0.push(event);
    }

    pub(super) fn push_front(&mut self, event: KvEvent) {
        self.0.insert(0, event);
    }

    pub(super) fn stored(&mut self, block: SequenceHash, tier: Tier) {
        if let Some(KvEvent::Stored { blocks, tier: last }) = self.0.last_mut()
            && *last == tier
        {
            return blocks.0.push(block);
        }
        let blocks = Blocks(vec![block]);
        self.0.push(KvEvent::Stored { blocks, tier });
    }

    pub(super) fn removed(&mut self, block: SequenceHash, tier: Tier) {
        if let Some(KvEvent::Removed { blocks, tier: last }) = self.0.last_mut()
            && *last == tier
        {
            return blocks.0.push(block);
        }
        let blocks = Blocks(vec![block]);
        self.0.push(KvEvent::Removed { blocks, tier });
    }

    pub(super) fn finish(self) -> Vec<KvEvent> {
        self.0
    }
}

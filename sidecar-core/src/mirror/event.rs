//! What an engine says of its blocks, in terms that every engine shares.

use baton_proto::hash::{MultimodalItem, Namespace, SequenceHash};
use baton_proto::worker::Tier;

/// An engine's own name of a block: a key of the mirror's tables and nothing else. Engines that use longer names have
/// them cut to 64 bits by their sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// A change that an engine announces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BlockEvent<'a> {
    /// Blocks came into a tier.
    Stored(Stored<'a>),
    /// Blocks left a tier.
    Removed(Removed<'a>),
    /// All blocks left a tier, or all tiers.
    Cleared {
        /// Which; all if absent.
        tier: Option<Tier>,
    },
    /// Something happened to blocks, but it could not be read what.
    Unreadable,
}

/// Consecutive blocks of one sequence that came into a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<'a> {
    /// Their names, in the order of the sequence.
    pub hashes: &'a [EngineHash],
    /// Where.
    pub tier: Tier,
    /// Which of the engine's caches: engines with layers of several kinds of attention keep one for each kind.
    pub group: u32,
    /// Whether that cache keeps whole prefixes, as full attention needs them. One for a sliding window does not.
    pub whole_prefix: bool,
    /// What is in them.
    pub content: Content<'a>,
}

/// What an engine tells of stored blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Content<'a> {
    /// Only their names. They can be placed if those are known already.
    Named,
    /// All that makes their identity.
    Told(Told<'a>),
}

/// Tokens of consecutive blocks, and whatever else makes their identity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told<'a> {
    /// The block before the first one; absent if the first one begins a sequence.
    pub parent: Option<EngineHash>,
    /// Tokens of all the blocks.
    pub tokens: &'a [u32],
    /// Tokens of each.
    pub block_size: u32,
    /// LoRA adapter, empty for the base model.
    pub lora: &'a str,
    /// Cache salt, empty without one. Only said of a block that begins a sequence.
    pub salt: &'a str,
    /// Multimodal items, in the order of their blocks.
    pub items: &'a [BlockItem<'a>],
    /// How many of the blocks, from the first, have no other identity than what is told here. What else sets the others
    /// apart is not understood.
    pub understood: usize,
}

impl<'a> Told<'a> {
    pub(super) fn namespace<'n>(&self, model: &'n str) -> Namespace<'n>
    where
        'a: 'n,
    {
        Namespace {
            model,
            lora: self.lora,
            salt: self.salt,
        }
    }

    /// The block at this place, of these tokens, behind `parent`.
    pub(super) fn child(&self, parent: SequenceHash, place: usize, tokens: &[u32]) -> SequenceHash {
        if self.items.is_empty() {
            return parent.child(tokens, &[]);
        }
        let from = self.items.partition_point(|item| item.block < place);
        let items = self.items[from..].iter();
        let of_block = items.take_while(|item| item.block == place);
        let items: Vec<MultimodalItem<'_>> = of_block.map(|item| item.item).collect();
        parent.child(tokens, &items)
    }
}

/// A multimodal item and which of an event's blocks it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockItem<'a> {
    /// Place of the block among those of the event.
    pub block: usize,
    /// The item.
    pub item: MultimodalItem<'a>,
}

/// Blocks that left a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Removed<'a> {
    /// Their names, in any order.
    pub hashes: &'a [EngineHash],
    /// Where.
    pub tier: Tier,
    /// Which of the engine's caches.
    pub group: u32,
}

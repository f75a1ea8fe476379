//! What happens to the KV blocks of an engine, per data-parallel rank.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::hash::SequenceHash;
use crate::worker::Tier;

/// Sequence hashes, 8 bytes each on the wire (little-endian, packed).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blocks(pub Vec<SequenceHash>);

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let packed: Vec<u8> = self
            .0
            .iter()
            .flat_map(|hash| hash.0.to_le_bytes())
            .collect();
        serializer.serialize_bytes(&packed)
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let packed = serde_bytes::ByteBuf::deserialize(deserializer)?;
        let (hashes, rest) = packed.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(D::Error::custom(
                "packed sequence hashes must be a multiple of 8 bytes",
            ));
        }
        Ok(Self(
            hashes
                .iter()
                .map(|bytes| SequenceHash(u64::from_le_bytes(*bytes)))
                .collect(),
        ))
    }
}

/// What can be said of a rank's view as a whole. Without a word it is exact and whole, as that of an empty rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ViewState {
    /// It is a subset of what the rank holds: see [`KvEvent::Uncertain`].
    pub uncertain: bool,
    /// It has blocks without all that come before them: see [`KvEvent::Broken`].
    pub broken: bool,
}

/// A change of what a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KvEvent {
    /// The rank now holds these blocks in this tier.
    Stored {
        /// The blocks.
        blocks: Blocks,
        /// Where.
        tier: Tier,
    },
    /// The rank no longer holds these blocks in this tier.
    Removed {
        /// The blocks.
        blocks: Blocks,
        /// Where.
        tier: Tier,
    },
    /// The rank holds nothing any more, in one tier or in all.
    Cleared {
        /// Where; all tiers if absent.
        tier: Option<Tier>,
    },
    /// Events were lost: from here on the view is a subset of what the rank holds.
    Uncertain,
    /// The view is exact again.
    Certain,
    /// From here on, some blocks are in the view without all of the blocks before them.
    Broken,
    /// The blocks before each block of the view are in it, too, in whatever tiers.
    Whole,
    /// An event of a newer peer. A watcher that meets one must ask for a snapshot.
    #[serde(other)]
    Unknown,
}

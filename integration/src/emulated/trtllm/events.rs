//! What an engine tells of its KV cache, and how it is written.

use serde::Serialize;
use serde_json::value::RawValue;

use super::config::Era;

/// Priority of a block for which nobody asked for another.
const PRIORITY: u32 = 35;

/// A block's name: a number, or 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Name {
    Number(u64),
    Hex(String),
}

/// One change of the KV cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Data {
    /// The cache of a window is there: blocks of the engine, and of the host.
    Created {
        num_blocks_per_cache_level: [usize; 2],
    },
    /// Blocks in a row can be found.
    Stored {
        parent_hash: Option<Name>,
        blocks: Vec<StoredBlock>,
    },
    /// Blocks are gone from everywhere.
    Removed { block_hashes: Vec<Name> },
    /// A block is elsewhere.
    Updated {
        block_hash: Name,
        cache_level: Option<Diff>,
        priority: Option<Diff>,
    },
}

/// What a number was and is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "event_diff")]
pub(super) struct Diff {
    pub(super) new_value: u32,
    pub(super) old_value: u32,
}

/// A block as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename = "stored_block")]
pub(super) struct StoredBlock {
    pub(super) block_hash: Name,
    tokens: Vec<Token>,
    cache_level: u32,
    priority: u32,
    /// Of multimodal content, which is not emulated.
    mm_keys: [(); 0],
    #[serde(flatten)]
    salt: Option<Salt>,
}

/// What 1.2 does not tell.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Salt {
    cache_salt: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename = "unique_token")]
struct Token {
    token_id: u32,
    token_extra_id: u32,
}

impl StoredBlock {
    pub(super) fn new(era: Era, name: Name, tokens: &[u32], salt: Option<&str>) -> Self {
        let token = |id: &u32| Token {
            token_id: *id,
            token_extra_id: 0,
        };
        Self {
            block_hash: name,
            tokens: tokens.iter().map(token).collect(),
            cache_level: 0,
            priority: PRIORITY,
            mm_keys: [],
            salt: (era == Era::Main).then(|| Salt {
                cache_salt: salt.map(str::to_owned),
            }),
        }
    }
}

impl Data {
    /// A block went from one level to another: 0 is the engine's memory, 1 the host's.
    pub(super) fn moved(block_hash: Name, from: u32, to: u32) -> Self {
        Self::Updated {
            block_hash,
            cache_level: Some(Diff {
                new_value: to,
                old_value: from,
            }),
            priority: None,
        }
    }
}

/// An event as it is sent.
#[derive(Debug, Serialize)]
pub(super) struct Envelope<'a> {
    pub(super) event_id: u64,
    pub(super) data: &'a Data,
    pub(super) window_size: u32,
    /// Attention data parallelism only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attention_dp_rank: Option<u32>,
    /// The second manager only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hash_algo: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layer_group_id: Option<u32>,
}

impl Envelope<'_> {
    pub(super) fn write(&self) -> Box<RawValue> {
        serde_json::value::to_raw_value(self).expect("an event is writable")
    }
}

/// What the serializer makes of an event that is none.
pub(super) fn nothing() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("it is JSON")
}

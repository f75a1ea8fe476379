//! Answers of `POST /kv_cache_events`, in either era.
//!
//! An answer is an array of events. One that cannot be read is known to have been there, if its number can be; what has no number
//! leaves a gap. Fields that are not known are passed over, and so are kinds of events.

use std::fmt;

use baton_sidecar_core::mirror::event::EngineHash;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

/// What an answer holds.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// Its events, each with what it was read from.
    pub events: Vec<(Event, &'a str)>,
    /// Elements without a number that are no empty objects.
    pub nameless: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Counts up by one for each event of a rank, from 0.
    pub id: u64,
    /// Rank of attention data parallelism.
    pub rank: u32,
    /// Which of the engine's caches.
    pub cache: Cache,
    /// Whether its blocks are called as [`super::v1_hash`] has it.
    pub v1_names: bool,
    /// What happened.
    pub change: Change,
}

/// One of the engine's caches: layers that attend to different windows have one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cache {
    /// Tokens that its layers attend to.
    pub window: u64,
    /// Which of several of that window.
    pub group: u64,
}

/// What happened to a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is there, and empty.
    Created,
    /// Consecutive blocks came into it.
    Stored {
        /// What the first of them follows.
        parent: Option<EngineHash>,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// Blocks left it.
    Removed(Vec<EngineHash>),
    /// A block moved from a level to another.
    Moved {
        /// The block.
        hash: EngineHash,
        /// Level before.
        from: u32,
        /// Level now.
        to: u32,
    },
    /// Nothing that concerns anybody.
    Nothing,
    /// Something of a kind that is not known.
    Unknown,
    /// Something that cannot be read.
    Unreadable,
}

/// A stored block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The engine's name for it.
    pub hash: EngineHash,
    /// Its tokens; fewer than in others at a sequence's end.
    pub tokens: Vec<u32>,
    /// Whether these tokens are all that is in it: no image, nothing that stands for one.
    pub text: bool,
    /// 0 is the device, 1 the host.
    pub level: u32,
    /// Its cache salt.
    pub salt: Option<String>,
}

/// Reads an answer; or why it is none.
pub fn decode(answer: &[u8]) -> Result<Batch<'_>, String> {
    let elements: Vec<&RawValue> =
        serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let mut batch = Batch::default();
    for element in elements {
        match event(element.get()) {
            Some(event) => batch.events.push((event, element.get())),
            None => batch.nameless += u64::from(!is_empty(element.get())),
        }
    }
    Ok(batch)
}

/// The serialiser makes `{}` of nothing.
fn is_empty(element: &str) -> bool {
    element
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inner| inner.trim().is_empty())
}

#[derive(Deserialize)]
struct Envelope<'a> {
    event_id: u64,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    window_size: Option<u64>,
    attention_dp_rank: Option<u32>,
    hash_algo: Option<String>,
    layer_group_id: Option<u64>,
}

fn event(element: &str) -> Option<Event> {
    let envelope: Envelope<'_> = serde_json::from_str(element).ok()?;
    let algorithm = envelope.hash_algo.as_deref();
    Some(Event {
        id: envelope.event_id,
        rank: envelope.attention_dp_rank.unwrap_or(0),
        cache: Cache {
            window: envelope.window_size.unwrap_or(0),
            group: envelope.layer_group_id.unwrap_or(0),
        },
        v1_names: algorithm.is_none_or(|name| name == "v1_block_key"),
        change: envelope
            .data
            .map_or(Change::Unreadable, |data| change(data.get())),
    })
}

#[derive(Deserialize)]
struct Tag {
    r#type: String,
}

#[derive(Deserialize)]
struct Stored {
    parent_hash: Option<Hash>,
    blocks: Vec<StoredBlock>,
}

#[derive(Deserialize)]
struct StoredBlock {
    block_hash: Hash,
    tokens: Vec<Token>,
    #[serde(default)]
    cache_level: u32,
    mm_keys: Option<Vec<de::IgnoredAny>>,
    cache_salt: Option<String>,
}

#[derive(Deserialize)]
struct Token {
    token_id: TokenId,
    token_extra_id: Option<u64>,
}

#[derive(Deserialize)]
struct Removed {
    block_hashes: Vec<Hash>,
}

#[derive(Deserialize)]
struct Updated {
    block_hash: Hash,
    cache_level: Option<Levels>,
}

#[derive(Deserialize)]
struct Levels {
    new_value: Option<u32>,
    old_value: Option<u32>,
}

fn change(data: &str) -> Change {
    let Ok(tag) = serde_json::from_str::<Tag>(data) else {
        return Change::Unreadable;
    };
    let read = match tag.r#type.as_str() {
        "created" => Some(Change::Created),
        "stored" => serde_json::from_str(data).ok().map(stored),
        "removed" => serde_json::from_str(data).ok().map(removed),
        "updated" => serde_json::from_str(data).ok().map(updated),
        _ => Some(Change::Unknown),
    };
    read.unwrap_or(Change::Unreadable)
}

fn stored(stored: Stored) -> Change {
    Change::Stored {
        parent: stored.parent_hash.map(|hash| hash.0),
        blocks: stored.blocks.into_iter().map(block).collect(),
    }
}

fn block(block: StoredBlock) -> Block {
    let is_text =
        |token: &Token| token.token_id.0.is_some() && token.token_extra_id.unwrap_or(0) == 0;
    let images = block.mm_keys.is_some_and(|keys| !keys.is_empty());
    Block {
        hash: block.block_hash.0,
        text: !images && block.tokens.iter().all(is_text),
        tokens: block
            .tokens
            .iter()
            .map(|token| token.token_id.0.unwrap_or(0))
            .collect(),
        level: block.cache_level,
        salt: block.cache_salt.filter(|salt| !salt.is_empty()),
    }
}

fn removed(removed: Removed) -> Change {
    Change::Removed(
        removed
            .block_hashes
            .into_iter()
            .map(|hash| hash.0)
            .collect(),
    )
}

/// Either of the two differences may be null, and both of them.
fn updated(updated: Updated) -> Change {
    let levels = updated.cache_level;
    match levels.and_then(|levels| Some((levels.old_value?, levels.new_value?))) {
        Some((from, to)) if from != to => Change::Moved {
            hash: updated.block_hash.0,
            from,
            to,
        },
        _ => Change::Nothing,
    }
}

/// A block's name: a number, or a SHA-256 in hexadecimal digits, of which the first 64 bits do.
struct Hash(EngineHash);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfHash;
        impl Visitor<'_> for OfHash {
            type Value = Hash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a block")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Hash, E> {
                Ok(Hash(EngineHash(number)))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Hash, E> {
                Ok(Hash(EngineHash(number.cast_unsigned())))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hash, E> {
                let plain = text.bytes().all(|digit| digit.is_ascii_hexdigit());
                let first = text.get(..text.len().min(16)).filter(|_| plain);
                let first = first.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                let name = first.ok_or_else(|| E::custom("no hexadecimal name"))?;
                Ok(Hash(EngineHash(name)))
            }
        }
        deserializer.deserialize_any(OfHash)
    }
}

/// A token; nothing for the text that stands for part of an image.
struct TokenId(Option<u32>);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfToken;
        impl Visitor<'_> for OfToken {
            type Value = TokenId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<TokenId, E> {
                Ok(TokenId(u32::try_from(number).ok()))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<TokenId, E> {
                Ok(TokenId(None))
            }

            fn visit_str<E: de::Error>(self, _: &str) -> Result<TokenId, E> {
                Ok(TokenId(None))
            }
        }
        deserializer.deserialize_any(OfToken)
    }
}

#[cfg(test)]
mod tests;

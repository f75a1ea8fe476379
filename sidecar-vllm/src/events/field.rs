//! The fields of an event, from a map or an array.

use std::ops::Range;

use baton_sidecar_core::mirror::event::EngineHash;

use super::cursor::{Cursor, Malformed, Value};
use super::number;

/// A field of an event. Those that say nothing about what a view holds are known by name and passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Type,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    LoraName,
    Medium,
    ExtraKeys,
    Group,
    Attention,
    Passed,
}

/// Fields of `BlockStored` behind its tag, in the order in which versions before the maps send them; later ones were added
/// at the end.
pub(super) const STORED: &[Field] = &[
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Attention,
    Field::Passed, // kv_cache_spec_sliding_window
    Field::Passed, // locality
    Field::Passed, // ownership
    Field::Passed, // session_id
];

/// The same of `BlockRemoved`.
pub(super) const REMOVED: &[Field] = &[
    Field::Hashes,
    Field::Medium,
    Field::Group,
    Field::Passed, // locality
    Field::Passed, // ownership
];

impl Field {
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"type" => Self::Type,
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"lora_name" => Self::LoraName,
            b"medium" => Self::Medium,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Attention,
            b"kv_cache_spec_sliding_window" | b"locality" | b"ownership" | b"session_id" => {
                Self::Passed
            }
            _ => return None,
        })
    }
}

/// A field as it was sent. vLLM leaves out what has its default, nothing, so absent and nil are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sent<T> {
    #[default]
    Nothing,
    Value(T),
    /// A value of another type.
    Strange,
}

impl<T> Sent<T> {
    pub(super) fn is_strange(&self) -> bool {
        matches!(self, Self::Strange)
    }

    pub(super) fn value(&self) -> Option<T>
    where
        T: Copy,
    {
        match self {
            Self::Value(value) => Some(*value),
            Self::Nothing | Self::Strange => None,
        }
    }
}

/// What was sent of an event.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) kind: Sent<&'a [u8]>,
    pub(super) hashes: Sent<Range<usize>>,
    pub(super) parent: Sent<EngineHash>,
    pub(super) tokens: Sent<Range<usize>>,
    pub(super) block_size: Sent<u32>,
    pub(super) lora_id: Sent<()>,
    pub(super) lora_name: Sent<&'a str>,
    pub(super) medium: Sent<&'a [u8]>,
    /// Where they are; read when everything else is known.
    pub(super) extra_keys: Sent<Cursor<'a>>,
    pub(super) group: Sent<u32>,
    pub(super) attention: Sent<&'a [u8]>,
}

/// Where the numbers of all events of a batch go.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tokens: Vec<u32>,
    /// Whether a hash was bytes.
    pub(super) digests: bool,
}

impl<'a> Fields<'a> {
    /// Reads the value of a field.
    pub(super) fn read(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        match field {
            Field::Type => self.kind = scalar(cursor, text)?,
            Field::Hashes => {
                numbers.digests |= begins_with_bytes(*cursor);
                self.hashes = array(cursor, &mut numbers.hashes, number::read_hashes)?;
            }
            Field::Parent => self.parent = scalar(cursor, number::hash)?,
            Field::Tokens => {
                self.tokens = array(cursor, &mut numbers.tokens, number::read_tokens)?;
            }
            Field::BlockSize => self.block_size = scalar(cursor, small)?,
            Field::LoraId => self.lora_id = scalar(cursor, |_| Some(()))?,
            Field::LoraName => self.lora_name = scalar(cursor, utf8)?,
            Field::Medium => self.medium = scalar(cursor, text)?,
            Field::ExtraKeys => {
                let keys = *cursor;
                self.extra_keys = scalar(cursor, |value| {
                    matches!(value, Value::Array(_)).then_some(keys)
                })?;
            }
            Field::Group => self.group = scalar(cursor, small)?,
            Field::Attention => self.attention = scalar(cursor, text)?,
            Field::Passed => cursor.skip()?,
        }
        Ok(())
    }

    /// How many fields had a value of another type than expected.
    pub(super) fn strange(&self) -> usize {
        let strange = [
            self.kind.is_strange(),
            self.hashes.is_strange(),
            self.parent.is_strange(),
            self.tokens.is_strange(),
            self.block_size.is_strange(),
            self.lora_name.is_strange(),
            self.medium.is_strange(),
            self.extra_keys.is_strange(),
            self.group.is_strange(),
            self.attention.is_strange(),
        ];
        strange.into_iter().filter(|strange| *strange).count()
    }
}

/// Reads a value of one kind; passes over one of another, with all that is in it.
pub(super) fn scalar<'a, T>(
    cursor: &mut Cursor<'a>,
    read: impl FnOnce(Value<'a>) -> Option<T>,
) -> Result<Sent<T>, Malformed> {
    let mut behind = *cursor;
    behind.skip()?;
    let value = cursor.value()?;
    *cursor = behind;
    Ok(match value {
        Value::Nil => Sent::Nothing,
        value => read(value).map_or(Sent::Strange, Sent::Value),
    })
}

/// Reads an array of numbers into `all`; passes over anything else.
fn array<'a, T>(
    cursor: &mut Cursor<'a>,
    all: &mut Vec<T>,
    read: impl FnOnce(&mut Cursor<'a>, u32, &mut Vec<T>) -> Result<bool, Malformed>,
) -> Result<Sent<Range<usize>>, Malformed> {
    let before = *cursor;
    let from = all.len();
    match cursor.value()? {
        Value::Nil => return Ok(Sent::Nothing),
        Value::Array(count) if read(cursor, count, all)? => {
            return Ok(Sent::Value(from..all.len()));
        }
        _ => {}
    }
    all.truncate(from);
    *cursor = before;
    cursor.skip()?;
    Ok(Sent::Strange)
}

fn begins_with_bytes(mut array: Cursor<'_>) -> bool {
    matches!(array.value(), Ok(Value::Array(1..))) && matches!(array.value(), Ok(Value::Bytes(_)))
}

fn text(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn utf8(value: Value<'_>) -> Option<&str> {
    text(value).and_then(|text| std::str::from_utf8(text).ok())
}

pub(super) fn small(value: Value<'_>) -> Option<u32> {
    match value {
        Value::Unsigned(number) => number.try_into().ok(),
        _ => None,
    }
}

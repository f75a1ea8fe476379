//! The fields of an event, from a map or an array.

use std::ops::Range;

use baton_sidecar_core::mirror::event::EngineHash;

use crate::cursor::{Cursor, Malformed, Value};
use crate::dialect::Dialect;
use crate::number;

/// A field of an event. Those that say nothing about what a view holds are known by name and passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// What kind of event it is.
    Type,
    /// Names of blocks.
    Hashes,
    /// Name of the block before.
    Parent,
    /// Tokens.
    Tokens,
    /// Tokens, or pairs of a token and the one behind it, by which some engines key their cache.
    TokensOrPairs,
    /// Tokens of a block.
    BlockSize,
    /// Number of a LoRA adapter.
    LoraId,
    /// Name of a LoRA adapter.
    LoraName,
    /// Storage medium.
    Medium,
    /// Whatever else makes a block's identity, block by block.
    ExtraKeys,
    /// Cache salt.
    CacheSalt,
    /// Which of the engine's caches.
    Group,
    /// Kind of attention that cache is for.
    Attention,
    /// A map of further fields by name.
    More,
    /// Known, and of no interest.
    Passed,
}

/// A field as it was sent. Engines leave out what has its default, nothing, so absent and nil are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sent<T> {
    /// Not at all.
    #[default]
    Nothing,
    /// As expected.
    Value(T),
    /// A value of another type.
    Strange,
}

impl<T> Sent<T> {
    /// Whether it was of another type.
    pub fn is_strange(&self) -> bool {
        matches!(self, Self::Strange)
    }

    /// Its value, if it has one.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing | Self::Strange => None,
        }
    }

    /// A copy of its value, if it has one.
    pub fn value(&self) -> Option<T>
    where
        T: Copy,
    {
        self.get().copied()
    }
}

/// What was sent of an event.
#[derive(Debug, Default)]
pub struct Fields<'a> {
    /// What kind of event it is.
    pub kind: Sent<&'a [u8]>,
    /// Where the names of its blocks are among the batch's numbers.
    pub hashes: Sent<Range<usize>>,
    /// Name of the block before the first one.
    pub parent: Sent<EngineHash>,
    /// Where its tokens are among the batch's numbers.
    pub tokens: Sent<Range<usize>>,
    /// The tokens are the first ones of pairs.
    pub pairs: bool,
    /// Tokens of a block.
    pub block_size: Sent<u32>,
    /// Whether a LoRA adapter has a number.
    pub lora_id: Sent<()>,
    /// Name of a LoRA adapter.
    pub lora_name: Sent<&'a str>,
    /// Storage medium.
    pub medium: Sent<&'a [u8]>,
    /// Where they are; read when everything else is known.
    pub extra_keys: Sent<Cursor<'a>>,
    /// Cache salt.
    pub cache_salt: Sent<&'a str>,
    /// Which of the engine's caches.
    pub group: Sent<u32>,
    /// Kind of attention that cache is for.
    pub attention: Sent<&'a [u8]>,
    /// Fields that are not known.
    pub unknown: u64,
}

/// Where the numbers of all events of a batch go.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Names of blocks.
    pub hashes: Vec<EngineHash>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Whether a hash was bytes.
    pub digests: bool,
}

impl<'a> Fields<'a> {
    /// Reads the value of a field.
    pub(crate) fn read<D: Dialect>(
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
            Field::TokensOrPairs => self.tokens_or_pairs(cursor, numbers)?,
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
            Field::CacheSalt => self.cache_salt = scalar(cursor, utf8)?,
            Field::Group => self.group = scalar(cursor, small)?,
            Field::Attention => self.attention = scalar(cursor, text)?,
            Field::More => self.more::<D>(cursor, numbers)?,
            Field::Passed => cursor.skip()?,
        }
        Ok(())
    }

    fn tokens_or_pairs(
        &mut self,
        cursor: &mut Cursor<'a>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        self.pairs = are_pairs(*cursor);
        let read = if self.pairs {
            number::read_pairs
        } else {
            number::read_tokens
        };
        self.tokens = array(cursor, &mut numbers.tokens, read)?;
        Ok(())
    }

    /// Reads fields by their names.
    pub(crate) fn map<D: Dialect>(
        &mut self,
        pairs: u32,
        cursor: &mut Cursor<'a>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        for _ in 0..pairs {
            let Value::Text(name) = cursor.value()? else {
                return Err(cursor.malformed("a key that is no text"));
            };
            match D::named(name) {
                // No map of fields within another: a payload cannot make this descend.
                Some(Field::More) | None => self.pass_over(cursor)?,
                Some(field) => self.read::<D>(field, cursor, numbers)?,
            }
        }
        Ok(())
    }

    /// Passes over a field that is not known.
    pub(crate) fn pass_over(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Malformed> {
        self.unknown += 1;
        cursor.skip()
    }

    /// Reads a map of further fields.
    fn more<D: Dialect>(
        &mut self,
        cursor: &mut Cursor<'a>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        let before = *cursor;
        match cursor.value()? {
            Value::Nil => {}
            Value::Map(pairs) => self.map::<D>(pairs, cursor, numbers)?,
            _ => {
                *cursor = before;
                self.pass_over(cursor)?;
            }
        }
        Ok(())
    }

    /// How many fields had a value of another type than expected.
    pub(crate) fn strange(&self) -> usize {
        let strange = [
            self.kind.is_strange(),
            self.hashes.is_strange(),
            self.parent.is_strange(),
            self.tokens.is_strange(),
            self.block_size.is_strange(),
            self.lora_name.is_strange(),
            self.medium.is_strange(),
            self.extra_keys.is_strange(),
            self.cache_salt.is_strange(),
            self.group.is_strange(),
            self.attention.is_strange(),
        ];
        strange.into_iter().filter(|strange| *strange).count()
    }
}

/// Reads a value of one kind; passes over one of another, with all that is in it.
pub(crate) fn scalar<'a, T>(
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

fn are_pairs(mut array: Cursor<'_>) -> bool {
    matches!(array.value(), Ok(Value::Array(1..))) && matches!(array.value(), Ok(Value::Array(2)))
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

pub(crate) fn small(value: Value<'_>) -> Option<u32> {
    match value {
        Value::Unsigned(number) => number.try_into().ok(),
        _ => None,
    }
}

//! What else than tokens makes the identity of a block: `extra_keys`, one entry a block.
//!
//! An entry is nil or a list, in this order: the LoRA adapter's name if there is one, `[identifier, offset]` of each
//! multimodal item, the cache salt in a sequence's first block, the digest of prompt embeddings. Nothing but form and place
//! tells them apart (0.32.0, `to_event_extra_keys`). What cannot be told is not understood, and the block and all behind
//! it are in a namespace of their own.

use baton_kv_events::Malformed;
use baton_kv_events::cursor::{Cursor, Value};
use baton_proto::hash::MultimodalItem;
use baton_sidecar_core::mirror::event::BlockItem;

/// What the extra keys of an event say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys<'a> {
    /// Cache salt, empty without one.
    pub(super) salt: &'a str,
    /// How many of the blocks, from the first, are understood.
    pub(super) understood: usize,
}

/// The event whose extra keys are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) blocks: usize,
    /// Whether its first block begins a sequence.
    pub(super) begins: bool,
    /// LoRA adapter, empty for the base model.
    pub(super) lora: &'a str,
}

/// Reads the array of entries at `cursor`, which is known to be one.
pub(super) fn read<'a>(
    mut cursor: Cursor<'a>,
    of: Of<'_>,
    items: &mut Vec<BlockItem<'a>>,
) -> Result<Keys<'a>, Malformed> {
    let mut keys = Keys {
        salt: "",
        understood: 0,
    };
    let Value::Array(entries) = cursor.value()? else {
        return Ok(keys);
    };
    if usize::try_from(entries) != Ok(of.blocks) {
        return Ok(keys);
    }
    for block in 0..of.blocks {
        let understood = match cursor.value()? {
            Value::Nil => true,
            Value::Array(length) => entry(&mut cursor, length, block, of, &mut keys, items)?,
            _ => false,
        };
        if !understood {
            break;
        }
        keys.understood += 1;
    }
    Ok(keys)
}

/// Reads the entry of one block; whether it is understood.
fn entry<'a>(
    cursor: &mut Cursor<'a>,
    length: u32,
    block: usize,
    of: Of<'_>,
    keys: &mut Keys<'a>,
    items: &mut Vec<BlockItem<'a>>,
) -> Result<bool, Malformed> {
    let may_be_salted = of.begins && block == 0;
    for place in 0..length {
        match cursor.value()? {
            Value::Text(name)
                if place == 0 && !of.lora.is_empty() && name == of.lora.as_bytes() => {}
            Value::Text(salt) if may_be_salted && keys.salt.is_empty() => {
                let Ok(salt) = std::str::from_utf8(salt) else {
                    return Ok(false);
                };
                keys.salt = salt;
            }
            Value::Array(2) => match item(cursor.value()?, cursor.value()?) {
                Some(item) => items.push(BlockItem { block, item }),
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn item<'a>(identifier: Value<'a>, offset: Value<'a>) -> Option<MultimodalItem<'a>> {
    let Value::Text(identifier) = identifier else {
        return None;
    };
    let offset = match offset {
        Value::Unsigned(offset) => i32::try_from(offset).ok()?,
        Value::Negative(offset) => i32::try_from(offset).ok()?,
        _ => return None,
    };
    Some(MultimodalItem {
        identifier: std::str::from_utf8(identifier).ok()?,
        offset,
    })
}

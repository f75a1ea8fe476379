//! What vLLM's events have of their own: the names and the order of their fields, and what else than tokens makes the
//! identity of blocks.
//!
//! What could only be guessed is left out by degrees: an event's text, or its namespace.

use baton_kv_events::Malformed;
use baton_kv_events::decoder::Text;
use baton_kv_events::dialect::{Dialect, Stored};
use baton_kv_events::field::{Field, Fields, Sent};
use baton_kv_events::oddity::Oddity;
use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use super::extra_keys::{self, Keys, Of};

/// vLLM's events.
#[derive(Debug, Clone, Copy)]
pub struct VllmEvents;

impl Dialect for VllmEvents {
    /// Later versions added fields at the end.
    const STORED: &'static [Field] = &[
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

    const REMOVED: &'static [Field] = &[
        Field::Hashes,
        Field::Medium,
        Field::Group,
        Field::Passed, // locality
        Field::Passed, // ownership
    ];

    fn named(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"type" => Field::Type,
            b"block_hashes" => Field::Hashes,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::Tokens,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"lora_name" => Field::LoraName,
            b"medium" => Field::Medium,
            b"extra_keys" => Field::ExtraKeys,
            b"group_idx" => Field::Group,
            b"kv_cache_spec_kind" => Field::Attention,
            b"kv_cache_spec_sliding_window" | b"locality" | b"ownership" | b"session_id" => {
                Field::Passed
            }
            _ => return None,
        })
    }

    fn text<'d>(
        stored: Stored<'_, 'd>,
        items: &mut Vec<BlockItem<'d>>,
        oddities: &mut Tally<Oddity>,
    ) -> Result<Option<Text<'d>>, Malformed> {
        text(stored, items, oddities)
    }
}

fn text<'d>(
    stored: Stored<'_, 'd>,
    items: &mut Vec<BlockItem<'d>>,
    oddities: &mut Tally<Oddity>,
) -> Result<Option<Text<'d>>, Malformed> {
    let Stored {
        fields,
        blocks,
        tier,
        ..
    } = stored;
    for missing in [
        matches!(fields.tokens, Sent::Nothing),
        matches!(fields.block_size, Sent::Nothing),
    ] {
        if missing {
            oddities.add(Oddity::MissingField);
        }
    }
    let (Sent::Value(tokens), Sent::Value(block_size)) = (&fields.tokens, fields.block_size) else {
        return Ok(None);
    };
    // Offloading sends no tokens unless `self_describing_kv_events` is set.
    if tokens.is_empty() || fields.parent.is_strange() {
        return Ok(None);
    }
    let of = Of {
        blocks,
        begins: matches!(fields.parent, Sent::Nothing),
        lora: fields.lora_name.value().unwrap_or_default(),
    };
    let before = items.len();
    let Some(keys) = keys(fields, of, tier, items, oddities)? else {
        return Ok(None);
    };
    Ok(Some(Text {
        parent: fields.parent.value(),
        tokens: tokens.clone(),
        block_size,
        lora: of.lora,
        salt: keys.salt,
        items: before..items.len(),
        understood: keys.understood,
    }))
}

fn keys<'d>(
    fields: &Fields<'d>,
    of: Of<'d>,
    tier: Tier,
    items: &mut Vec<BlockItem<'d>>,
    oddities: &mut Tally<Oddity>,
) -> Result<Option<Keys<'d>>, Malformed> {
    let not_understood = Keys {
        salt: "",
        understood: 0,
    };
    // An adapter of which only a number is told (versions before `lora_name`), which may be another one tomorrow.
    let adapter_is_unknown = match fields.lora_name {
        Sent::Value(_) => false,
        Sent::Strange => true,
        Sent::Nothing => matches!(fields.lora_id, Sent::Value(())),
    };
    if adapter_is_unknown {
        return Ok(Some(not_understood));
    }
    Ok(match fields.extra_keys {
        Sent::Value(cursor) => Some(extra_keys::read(cursor, of, items)?),
        Sent::Strange => Some(not_understood),
        // Offloading never tells them, even where it tells the tokens: salted and pictured blocks look like plain ones.
        Sent::Nothing if tier != Tier::Device => None,
        Sent::Nothing => {
            oddities.add_many(
                Oddity::UntoldKeys,
                u64::try_from(of.blocks).unwrap_or(u64::MAX),
            );
            Some(Keys {
                salt: "",
                understood: of.blocks,
            })
        }
    })
}

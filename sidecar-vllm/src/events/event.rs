//! What the fields of an event mean.
//!
//! What could only be guessed is left out by degrees: an event's place, its text, or its namespace.

use std::ops::Range;

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use super::cursor::Malformed;
use super::decoder::{Event, Text};
use super::extra_keys::{self, Keys, Of};
use super::field::{Fields, Sent};
use super::oddity::Oddity;

/// The event that was sent, if it says anything about blocks.
pub(super) fn of<'d>(
    fields: &Fields<'d>,
    items: &mut Vec<BlockItem<'d>>,
    oddities: &mut Tally<Oddity>,
) -> Result<Option<Event<'d>>, Malformed> {
    let is_stored = match fields.kind {
        Sent::Value(b"BlockStored") => true,
        Sent::Value(b"BlockRemoved") => false,
        Sent::Value(b"AllBlocksCleared") => return Ok(Some(Event::Cleared)),
        _ => {
            oddities.add(Oddity::UnknownEvent);
            return Ok(None);
        }
    };
    let place = match place(fields, oddities) {
        Place::At(place) => place,
        Place::Elsewhere => return Ok(None),
        Place::Unreadable => return Ok(Some(Event::Unreadable)),
    };
    let (hashes, tier, group) = place;
    if !is_stored {
        let removed = Event::Removed {
            hashes,
            tier,
            group,
        };
        return Ok(Some(removed));
    }
    Ok(Some(Event::Stored {
        whole_prefix: keeps_whole_prefixes(&fields.attention),
        told: text(fields, hashes.len(), tier, items, oddities)?,
        hashes,
        tier,
        group,
    }))
}

/// Which blocks, and where.
enum Place {
    At((Range<usize>, Tier, u32)),
    /// On a medium that is not mirrored.
    Elsewhere,
    Unreadable,
}

fn place(fields: &Fields<'_>, oddities: &mut Tally<Oddity>) -> Place {
    let tier = match fields.medium {
        Sent::Nothing => Tier::Device,
        Sent::Strange => return Place::Unreadable,
        Sent::Value(medium) => match tier(medium) {
            Some(tier) => tier,
            None => {
                oddities.add(Oddity::UnknownMedium);
                return Place::Elsewhere;
            }
        },
    };
    let group = match fields.group {
        Sent::Nothing => 0,
        Sent::Strange => return Place::Unreadable,
        Sent::Value(group) => group,
    };
    match &fields.hashes {
        Sent::Value(hashes) => Place::At((hashes.clone(), tier, group)),
        Sent::Strange => Place::Unreadable,
        Sent::Nothing => {
            oddities.add(Oddity::MissingField);
            Place::Unreadable
        }
    }
}

/// What vLLM calls the places where blocks are: its own cache, its offloading connector's tiers, and the spellings of
/// other connectors. `GPU` is what it says on every accelerator, and on CPUs.
fn tier(medium: &[u8]) -> Option<Tier> {
    Some(match medium.to_ascii_uppercase().as_slice() {
        b"GPU" => Tier::Device,
        b"CPU" | b"CPU_PINNED" => Tier::Host,
        b"DISK" => Tier::Disk,
        b"STORAGE" | b"EXTERNAL" => Tier::External,
        _ => return None,
    })
}

/// Whether the cache of this kind of attention decides about prefixes. A kind that is not known is believed to: an engine
/// with one cache would have an empty view otherwise.
fn keeps_whole_prefixes(attention: &Sent<&[u8]>) -> bool {
    let Sent::Value(kind) = attention else {
        return true;
    };
    let others: [&[u8]; 6] = [
        b"sliding_window",
        b"sliding_window_mla",
        b"chunked_local_attention",
        b"mamba",
        b"encoder_only_attention",
        b"cross_attention",
    ];
    !others.contains(kind)
}

/// The text of stored blocks; nothing if they are only named.
fn text<'d>(
    fields: &Fields<'d>,
    blocks: usize,
    tier: Tier,
    items: &mut Vec<BlockItem<'d>>,
    oddities: &mut Tally<Oddity>,
) -> Result<Option<Text<'d>>, Malformed> {
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

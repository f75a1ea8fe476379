//! What the fields of an event mean.
//!
//! What could only be guessed is left out by degrees: an event's place, its text, or its namespace.

use std::ops::Range;

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use crate::cursor::Malformed;
use crate::decoder::Event;
use crate::dialect::{Dialect, Stored};
use crate::field::{Fields, Numbers, Sent};
use crate::oddity::Oddity;

/// The event that was sent, if it says anything about blocks.
pub(crate) fn of<'d, D: Dialect>(
    fields: &Fields<'d>,
    numbers: &Numbers,
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
    let stored = Stored {
        fields,
        numbers,
        blocks: hashes.len(),
        tier,
    };
    Ok(Some(Event::Stored {
        whole_prefix: keeps_whole_prefixes(&fields.attention),
        told: D::text(stored, items, oddities)?,
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

/// What engines call the places where blocks are: their own cache, lower tiers, and the spellings of connectors. `GPU` is
/// what they say on every accelerator, and on CPUs.
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

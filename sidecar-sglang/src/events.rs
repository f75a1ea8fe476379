//! SGLang's KV events, in the sidecar's terms.
//!
//! How such messages are heard and taken apart is the same for several engines ([`baton_kv_events`]); what SGLang's batches
//! have of their own is here. Written against 0.5.23, whose events are maps; older versions send arrays, and some in
//! between arrays with a map at their end. Either is read.
//!
//! The engine names a block by a hash of its tokens and those before, and writes other hashes for some namespaces but not
//! their names. So what begins a sequence is hashed again here ([`page_hash`]): if that is not its name, it is in a
//! namespace that nobody told, and stays out of all that are known, with everything behind it.

mod page_hash;
#[cfg(test)]
mod tests;

use baton_kv_events::Malformed;
use baton_kv_events::decoder::Text;
use baton_kv_events::dialect::{Dialect, Stored};
use baton_kv_events::field::{Field, Sent};
use baton_kv_events::oddity::Oddity;
use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

/// The decoder of SGLang's batches.
pub type Decoder = baton_kv_events::decoder::Decoder<SglangEvents>;

/// SGLang's events.
#[derive(Debug, Clone, Copy)]
pub struct SglangEvents;

impl Dialect for SglangEvents {
    const STORED: &'static [Field] = &[
        Field::Hashes,
        Field::Parent,
        Field::TokensOrPairs,
        Field::BlockSize,
        Field::LoraId,
        Field::Medium,
        Field::More, // cache_salt and session_id of versions between arrays and maps
    ];

    const REMOVED: &'static [Field] = &[Field::Hashes, Field::Medium];

    fn named(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"type" => Field::Type,
            b"block_hashes" => Field::Hashes,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::TokensOrPairs,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"lora_name" => Field::LoraName,
            b"medium" => Field::Medium,
            b"cache_salt" => Field::CacheSalt,
            // Who stored a block: others share it all the same.
            b"session_id" => Field::Passed,
            _ => return None,
        })
    }

    fn text<'d>(
        stored: Stored<'_, 'd>,
        items: &mut Vec<BlockItem<'d>>,
        oddities: &mut Tally<Oddity>,
    ) -> Result<Option<Text<'d>>, Malformed> {
        let fields = stored.fields;
        for missing in [
            matches!(fields.tokens, Sent::Nothing),
            matches!(fields.block_size, Sent::Nothing),
        ] {
            if missing {
                oddities.add(Oddity::MissingField);
            }
        }
        let (Sent::Value(tokens), Sent::Value(block_size)) = (&fields.tokens, fields.block_size)
        else {
            return Ok(None);
        };
        if tokens.is_empty() || fields.parent.is_strange() {
            return Ok(None);
        }
        let understood = if is_understood(&stored) {
            stored.blocks
        } else {
            0
        };
        Ok(Some(Text {
            parent: fields.parent.value(),
            tokens: tokens.clone(),
            block_size,
            lora: fields.lora_name.value().unwrap_or_default(),
            salt: fields.cache_salt.value().unwrap_or_default(),
            items: items.len()..items.len(),
            understood,
        }))
    }
}

/// Whether nothing but what is told sets the blocks apart. What follows another block is in that one's namespace.
fn is_understood(stored: &Stored<'_, '_>) -> bool {
    let fields = stored.fields;
    // Pairs of tokens are hashed as such, and are no prefix of any prompt.
    if fields.pairs || fields.cache_salt.is_strange() || fields.lora_name.is_strange() {
        return false;
    }
    if matches!(fields.parent, Sent::Value(_)) {
        return true;
    }
    if fields.lora_name.value().is_some() {
        // Its name has the secret number of an adapter's load in it.
        return true;
    }
    // An adapter of which only a number is told.
    if matches!(fields.lora_id, Sent::Value(())) {
        return false;
    }
    let first = fields
        .hashes
        .get()
        .and_then(|range| stored.numbers.hashes.get(range.start));
    let tokens = fields
        .tokens
        .get()
        .and_then(|range| stored.numbers.tokens.get(range.clone()));
    let size = fields
        .block_size
        .value()
        .and_then(|size| usize::try_from(size).ok());
    let (Some(name), Some(tokens), Some(size)) = (first, tokens, size) else {
        return false;
    };
    // Of another number of tokens than they should be the mirror makes what it must.
    let page = tokens.get(..size).unwrap_or(tokens);
    page_hash::begins_sequence(*name, page, fields.cache_salt.value())
}

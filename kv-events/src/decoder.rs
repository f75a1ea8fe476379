//! From the payload of a message to events of blocks.

use std::marker::PhantomData;
use std::ops::Range;

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::{
    BlockEvent, BlockItem, Content, EngineHash, Removed, Stored, Told,
};
use baton_sidecar_core::mirror::oddity::Tally;

use crate::cursor::{Cursor, Malformed};
use crate::dialect::Dialect;
use crate::field::Numbers;
use crate::oddity::Oddity;
use crate::reading::Reading;

/// Decodes payloads one after the other. Kept for a whole stream: its memory is used again.
#[derive(Debug)]
pub struct Decoder<D> {
    numbers: Numbers,
    dialect: PhantomData<fn() -> D>,
}

impl<D> Default for Decoder<D> {
    fn default() -> Self {
        Self {
            numbers: Numbers::default(),
            dialect: PhantomData,
        }
    }
}

/// A decoded payload.
#[derive(Debug)]
pub struct Batch<'d> {
    /// The engine's wall clock in seconds when it made the batch.
    pub time: f64,
    /// Data-parallel rank; absent if the engine does not say.
    pub rank: Option<u32>,
    /// What was strange about it.
    pub oddities: Tally<Oddity>,
    events: Vec<Event<'d>>,
    items: Vec<BlockItem<'d>>,
    numbers: &'d Numbers,
}

/// An event whose numbers and items are in the batch.
#[derive(Debug)]
pub(crate) enum Event<'d> {
    Stored {
        hashes: Range<usize>,
        tier: Tier,
        group: u32,
        whole_prefix: bool,
        told: Option<Text<'d>>,
    },
    Removed {
        hashes: Range<usize>,
        tier: Tier,
        group: u32,
    },
    Cleared,
    Unreadable,
}

/// What is told of stored blocks.
#[derive(Debug)]
pub struct Text<'d> {
    /// The block before the first one; absent if the first one begins a sequence.
    pub parent: Option<EngineHash>,
    /// Where the tokens are among the batch's numbers.
    pub tokens: Range<usize>,
    /// Tokens of each block.
    pub block_size: u32,
    /// LoRA adapter, empty for the base model.
    pub lora: &'d str,
    /// Cache salt, empty without one.
    pub salt: &'d str,
    /// Where the multimodal items are among those of the batch.
    pub items: Range<usize>,
    /// How many of the blocks, from the first, have no other identity than what is told here.
    pub understood: usize,
}

impl<D: Dialect> Decoder<D> {
    /// Decodes one payload.
    pub fn decode<'d>(&'d mut self, payload: &'d [u8]) -> Result<Batch<'d>, Malformed> {
        self.numbers.hashes.clear();
        self.numbers.tokens.clear();
        self.numbers.digests = false;
        let mut cursor = Cursor::new(payload);
        let mut reading = Reading::default();
        reading.batch::<D>(&mut cursor, &mut self.numbers)?;
        if !cursor.rest().is_empty() {
            return Err(cursor.malformed("something follows the batch"));
        }
        let Some(time) = reading.time else {
            return Err(cursor.malformed("a batch without a time"));
        };
        if !reading.has_events {
            return Err(cursor.malformed("a batch without events"));
        }
        Ok(Batch {
            time,
            rank: reading.rank,
            oddities: reading.oddities,
            events: reading.events,
            items: reading.items,
            numbers: &self.numbers,
        })
    }
}

impl Batch<'_> {
    /// Whether blocks are named by the bytes of a digest instead of a number.
    pub fn has_digests(&self) -> bool {
        self.numbers.digests
    }

    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = BlockEvent<'_>> {
        self.events.iter().map(|event| self.event(event))
    }

    fn event<'b>(&'b self, event: &'b Event<'_>) -> BlockEvent<'b> {
        match event {
            Event::Stored {
                hashes,
                tier,
                group,
                whole_prefix,
                told,
            } => BlockEvent::Stored(Stored {
                hashes: &self.numbers.hashes[hashes.clone()],
                tier: *tier,
                group: *group,
                whole_prefix: *whole_prefix,
                content: told.as_ref().map_or(Content::Named, |text| {
                    Content::Told(Told {
                        parent: text.parent,
                        tokens: &self.numbers.tokens[text.tokens.clone()],
                        block_size: text.block_size,
                        lora: text.lora,
                        salt: text.salt,
                        items: &self.items[text.items.clone()],
                        understood: text.understood,
                    })
                }),
            }),
            Event::Removed {
                hashes,
                tier,
                group,
            } => BlockEvent::Removed(Removed {
                hashes: &self.numbers.hashes[hashes.clone()],
                tier: *tier,
                group: *group,
            }),
            // The engine's own cache was reset. It does not say whether its connector's was (`reset_connector`), so the
            // lower tiers are not believed any longer either.
            Event::Cleared => BlockEvent::Cleared { tier: None },
            Event::Unreadable => BlockEvent::Unreadable,
        }
    }
}

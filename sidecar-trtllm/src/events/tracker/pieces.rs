//! An event in the mirror's terms: runs of whole blocks, each in one tier.

use std::collections::{HashMap, HashSet};

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::Stored as StoredBlocks;
use baton_sidecar_core::mirror::event::{BlockEvent, Content, EngineHash, Removed, Told};

use super::super::decode::{Block, Change, Event};
use super::super::v1_hash;
use super::Names;

/// The cache that decides about prefixes, for the mirror.
const DECIDES: u32 = 0;

/// All others.
const OTHER: u32 = 1;

/// Part of what an event does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Blocks came, with their tokens.
    Stored(Stored),
    /// A block came whose tokens were told before.
    Came(EngineHash, Tier),
    /// Blocks went.
    Went(Vec<EngineHash>, Tier),
    /// Blocks came into a cache that does not decide, or went.
    Other {
        /// Which.
        hashes: Vec<EngineHash>,
        /// They went.
        went: bool,
    },
    /// Nobody can say what happened.
    Unreadable,
}

/// Consecutive blocks in one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What the first of them follows.
    pub parent: Option<EngineHash>,
    /// Their names.
    pub hashes: Vec<EngineHash>,
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// Tokens of each.
    pub block_size: u32,
    /// Where they are.
    pub tier: Tier,
    /// Cache salt.
    pub salt: String,
    /// How many of them, from the first, have no other identity than what is told.
    pub understood: usize,
}

impl Piece {
    /// For the mirror.
    pub fn event(&self) -> BlockEvent<'_> {
        match self {
            Self::Stored(stored) => BlockEvent::Stored(StoredBlocks {
                hashes: &stored.hashes,
                tier: stored.tier,
                group: DECIDES,
                whole_prefix: true,
                content: Content::Told(stored.told()),
            }),
            Self::Came(hash, tier) => came(std::slice::from_ref(hash), *tier, DECIDES),
            Self::Went(hashes, tier) => went(hashes, *tier, DECIDES),
            Self::Other { hashes, went: true } => went(hashes, Tier::Device, OTHER),
            Self::Other {
                hashes,
                went: false,
            } => came(hashes, Tier::Device, OTHER),
            Self::Unreadable => BlockEvent::Unreadable,
        }
    }
}

impl Stored {
    fn told(&self) -> Told<'_> {
        Told {
            parent: self.parent,
            tokens: &self.tokens,
            block_size: self.block_size,
            lora: "",
            salt: &self.salt,
            items: &[],
            understood: self.understood,
        }
    }
}

fn came(hashes: &[EngineHash], tier: Tier, group: u32) -> BlockEvent<'_> {
    BlockEvent::Stored(StoredBlocks {
        hashes,
        tier,
        group,
        whole_prefix: group == DECIDES,
        content: Content::Named,
    })
}

fn went(hashes: &[EngineHash], tier: Tier, group: u32) -> BlockEvent<'_> {
    BlockEvent::Removed(Removed {
        hashes,
        tier,
        group,
    })
}

/// What must be remembered of blocks: a removal does not say where they were, nor how long they are.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Those that are not on the device.
    elsewhere: HashMap<EngineHash, Tier>,
    /// Those that end a sequence with fewer tokens than others have. No prompt finds them, so nobody is told of them.
    partial: HashSet<EngineHash>,
}

impl Places {
    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn note(&mut self, hash: EngineHash, tier: Tier) {
        match tier {
            Tier::Device => self.elsewhere.remove(&hash),
            other => self.elsewhere.insert(hash, other),
        };
    }

    fn is_partial(&mut self, block: &Block, size: u32) -> bool {
        let partial = u32::try_from(block.tokens.len()) != Ok(size);
        if partial {
            self.partial.insert(block.hash);
        }
        partial
    }
}

/// Of an event of the cache that decides.
pub(super) fn of(
    event: Event,
    size: u32,
    places: &mut Places,
    names: Option<&mut Names>,
) -> Vec<Piece> {
    match event.change {
        Change::Created | Change::Nothing | Change::Unknown => Vec::new(),
        Change::Unreadable => vec![Piece::Unreadable],
        Change::Stored { parent, blocks } => {
            let names = names.filter(|_| event.v1_names);
            let mut whole = blocks;
            whole.retain(|block| !places.is_partial(block, size));
            for block in &whole {
                places.note(block.hash, tier(block.level));
            }
            runs(parent, whole, size, names)
        }
        Change::Removed(hashes) => removed(hashes, places),
        Change::Moved { hash, .. } if places.partial.contains(&hash) => Vec::new(),
        Change::Moved { hash, from, to } => {
            places.note(hash, tier(to));
            // It is known by its name as long as it is somewhere.
            vec![
                Piece::Came(hash, tier(to)),
                Piece::Went(vec![hash], tier(from)),
            ]
        }
    }
}

/// Of an event of another one, of which only that it was there counts.
pub(super) fn of_another_cache(event: Event) -> Vec<Piece> {
    let (hashes, went) = match event.change {
        Change::Stored { blocks, .. } => (blocks.iter().map(|block| block.hash).collect(), false),
        Change::Removed(hashes) => (hashes, true),
        Change::Unreadable => return vec![Piece::Unreadable],
        Change::Created | Change::Moved { .. } | Change::Nothing | Change::Unknown => {
            return Vec::new();
        }
    };
    vec![Piece::Other { hashes, went }]
}

fn tier(level: u32) -> Tier {
    match level {
        0 => Tier::Device,
        1 => Tier::Host,
        _ => Tier::Disk,
    }
}

fn removed(hashes: Vec<EngineHash>, places: &mut Places) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for hash in hashes {
        if places.partial.remove(&hash) {
            continue;
        }
        let from = places.elsewhere.remove(&hash).unwrap_or(Tier::Device);
        match pieces.last_mut() {
            Some(Piece::Went(run, tier)) if *tier == from => run.push(hash),
            _ => pieces.push(Piece::Went(vec![hash], from)),
        }
    }
    pieces
}

/// Stored blocks, cut where the tier changes.
fn runs(
    parent: Option<EngineHash>,
    blocks: Vec<Block>,
    size: u32,
    mut names: Option<&mut Names>,
) -> Vec<Piece> {
    let salt = blocks.first().and_then(|block| block.salt.clone());
    let salt = salt.filter(|_| parent.is_none()).unwrap_or_default();
    let (mut before, mut whole) = (parent, true);
    let mut pieces: Vec<Stored> = Vec::new();
    for block in blocks {
        whole &= is_understood(&block, before, &salt, names.as_deref_mut());
        let (tier, hash) = (tier(block.level), block.hash);
        match pieces.last_mut() {
            Some(run) if run.tier == tier => {
                run.hashes.push(hash);
                run.tokens.extend(block.tokens);
                run.understood += usize::from(whole);
            }
            _ => pieces.push(Stored {
                parent: before,
                hashes: vec![hash],
                tokens: block.tokens,
                block_size: size,
                tier,
                salt: salt.clone(),
                understood: usize::from(whole),
            }),
        }
        before = Some(hash);
    }
    pieces.into_iter().map(Piece::Stored).collect()
}

/// Whether nothing but what is told sets a block apart. Without `names` to compare with, what it is called says nothing.
fn is_understood(
    block: &Block,
    before: Option<EngineHash>,
    salt: &str,
    names: Option<&mut Names>,
) -> bool {
    let Some(names) = names.filter(|_| block.text) else {
        return block.text;
    };
    let plain = match before {
        None if !salt.is_empty() => v1_hash::salted(&block.tokens, salt).contains(&block.hash),
        _ => v1_hash::plain(&block.tokens, before) == block.hash,
    };
    names.plain += u64::from(plain);
    names.strange += u64::from(!plain && before.is_none());
    plain
}

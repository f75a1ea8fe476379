//! What polled events mean after those before: pure, without a clock and without a wire.
//!
//! Numbers count up for each rank, so whatever is missing shows, and numbers that begin anew are another start of the engine.
//! Only one of the engine's caches decides about prefixes: the one whose layers attend to most. Of blocks in it the mirror is
//! told where they are; a removal says little, so what it may be about is remembered here.

mod pieces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use super::decode::{Cache, Change, Event};
use pieces::Places;
pub use pieces::{Piece, Stored};

/// Most events that are kept back until it is known how large blocks are.
const MOST_WAITING: usize = 4096;

/// What is to be done after a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Events of a rank never came.
    Missed {
        /// Of which rank.
        rank: u32,
        /// How many.
        events: u64,
        /// What has become of them.
        how: Missed,
    },
    /// What was told of a rank was of a cache that does not decide.
    Lose {
        /// Which rank.
        rank: u32,
    },
    /// An event, in the mirror's terms.
    Apply {
        /// Of which rank.
        rank: u32,
        /// Its number.
        id: u64,
        /// What it does, in this order.
        pieces: Vec<Piece>,
    },
    /// Something was not understood.
    Odd(Odd),
}

/// What has become of events that never came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// The engine's buffer was full, and it dropped the oldest.
    Dropped,
    /// Somebody else polled them: the engine's buffer was not full.
    Taken,
    /// The answer to a poll was lost on its way.
    Lost,
}

/// What was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Odd {
    /// An event of an unknown kind.
    UnknownEvent,
    /// Events kept back because it is not known how large blocks are.
    UnknownBlockSize,
}

/// Events of another start of the engine: they are for whoever follows that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnotherStart;

/// What is known of the engine beforehand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Tokens of a block.
    pub block_size: Option<u32>,
    /// Events that the engine keeps for each rank.
    pub buffer: Option<u64>,
    /// Blocks count as plain whatever they are called.
    pub trust_names: bool,
}

/// Follows the events of one start of an engine.
#[derive(Debug)]
pub struct Tracker {
    known: Known,
    ranks: BTreeMap<u32, Rank>,
    /// Most events that one poll had: the buffer holds that many, at least.
    largest: u64,
    /// The answer to a poll was lost.
    lost: bool,
    waiting: Vec<Event>,
    names: Names,
}

/// How often blocks were called as expected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Names {
    /// Blocks whose names follow from their tokens.
    pub plain: u64,
    /// Blocks at the beginning of a sequence whose names do not.
    pub strange: u64,
}

#[derive(Debug, Default)]
struct Rank {
    last: Option<u64>,
    /// The cache that decides, of those that were heard of.
    cache: Option<Cache>,
    /// Blocks of it were told.
    told: bool,
    /// Where its blocks are.
    places: Places,
}

impl Rank {
    /// Whether this cache decides, and whether it is another one than so far.
    fn decides(&mut self, cache: Cache) -> (bool, bool) {
        let before = self.cache;
        let goes_before = |other: Cache| {
            let key = |cache: Cache| (cache.window, std::cmp::Reverse(cache.group));
            key(cache) > key(other)
        };
        if before.is_none_or(goes_before) {
            self.cache = Some(cache);
            self.places.forget();
            return (true, before.is_some());
        }
        (before == Some(cache), false)
    }
}

impl Tracker {
    /// Of an engine that was not heard yet.
    pub fn new(known: Known) -> Self {
        Self {
            known,
            ranks: BTreeMap::new(),
            largest: 0,
            lost: false,
            waiting: Vec::new(),
            names: Names::default(),
        }
    }

    /// A poll was not answered, or not to its end: what it would have told is gone.
    pub fn lost(&mut self) {
        self.lost = true;
    }

    /// How blocks are called.
    pub fn names(&self) -> Names {
        self.names
    }

    /// Ranks that were heard of.
    pub fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks.keys().copied()
    }

    /// What a poll answered.
    pub fn read(&mut self, events: Vec<Event>) -> Result<Vec<Step>, AnotherStart> {
        if self.is_another_start(&events) {
            return Err(AnotherStart);
        }
        let mut steps = self.missed(&events);
        self.lost = false;
        self.largest = self.largest.max(events.len() as u64);
        self.waiting.extend(events);
        if self.known.block_size.is_none() {
            self.known.block_size = self.learn_block_size();
        }
        match self.known.block_size {
            Some(size) => {
                for event in std::mem::take(&mut self.waiting) {
                    self.step(event, size, &mut steps);
                }
            }
            None if !self.waiting.is_empty() => steps.push(Step::Odd(Odd::UnknownBlockSize)),
            None => {}
        }
        Ok(steps)
    }

    /// A queue tells each number once: one that is not higher is another queue's.
    fn is_another_start(&self, events: &[Event]) -> bool {
        let last = |rank| self.ranks.get(&rank).and_then(|rank: &Rank| rank.last);
        events
            .iter()
            .any(|event| last(event.rank).is_some_and(|last| event.id <= last))
    }

    /// What is missing, and why. Notes the last number of each rank.
    fn missed(&mut self, events: &[Event]) -> Vec<Step> {
        let how = self.how(events.len() as u64);
        let mut steps = Vec::new();
        for event in events {
            let rank = self.ranks.entry(event.rank).or_default();
            let missing = rank
                .last
                .map_or(0, |last| event.id.saturating_sub(last.saturating_add(1)));
            rank.last = Some(event.id);
            if missing > 0 {
                rank.places.forget();
                steps.push(Step::Missed {
                    rank: event.rank,
                    events: missing,
                    how,
                });
            }
        }
        steps
    }

    /// What has become of what is missing before a poll that had so many events. Where it is not known how many the engine
    /// keeps, it is as many as it once had.
    fn how(&self, events: u64) -> Missed {
        let ranks = self.ranks.len().max(1) as u64;
        let buffer = self
            .known
            .buffer
            .map_or(self.largest, |each| each.saturating_mul(ranks));
        match (self.lost, events < buffer) {
            (true, _) => Missed::Lost,
            (false, true) => Missed::Taken,
            (false, false) => Missed::Dropped,
        }
    }

    /// A block that another one follows is a whole one.
    fn learn_block_size(&self) -> Option<u32> {
        let mut longest = 0;
        let mut lengths = HashMap::new();
        for event in &self.waiting {
            let Change::Stored { parent, blocks } = &event.change else {
                continue;
            };
            let whole = parent.and_then(|parent| lengths.get(&parent).copied());
            let whole = whole.or_else(|| (blocks.len() > 1).then(|| blocks[0].tokens.len()));
            if let Some(whole) = whole {
                return u32::try_from(whole).ok();
            }
            for block in blocks {
                lengths.insert(block.hash, block.tokens.len());
                longest = longest.max(block.tokens.len());
            }
        }
        let enough = self.waiting.len() >= MOST_WAITING && longest > 0;
        u32::try_from(longest).ok().filter(|_| enough)
    }

    fn step(&mut self, event: Event, size: u32, steps: &mut Vec<Step>) {
        let rank = self.ranks.entry(event.rank).or_default();
        let (decides, anew) = rank.decides(event.cache);
        if anew && rank.told {
            steps.push(Step::Lose { rank: event.rank });
        }
        if event.change == Change::Unknown {
            steps.push(Step::Odd(Odd::UnknownEvent));
        }
        let (rank_id, id) = (event.rank, event.id);
        let pieces = if decides {
            rank.told |= matches!(event.change, Change::Stored { .. });
            let names = if self.known.trust_names {
                None
            } else {
                Some(&mut self.names)
            };
            pieces::of(event, size, &mut rank.places, names)
        } else {
            pieces::of_another_cache(event)
        };
        steps.push(Step::Apply {
            rank: rank_id,
            id,
            pieces,
        });
    }
}

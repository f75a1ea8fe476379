//! Finding who holds how much of a sequence.
//!
//! All who hold the first block are candidates, looked after 64 at a time, each a bit of a word. For those whose blocks
//! have no holes and are in one tier, the sequence is bisected: wherever the same candidates hold both ends of a stretch,
//! nothing in between need be looked at. What bisection would look at in its next three steps is loaded at once, so that
//! the cache misses do not wait for each other. For all others each block is looked at.

use crate::target::{Holder, TIERS, Target};
use crate::view::View;
use crate::word::{Holding, INLINE, bits};

/// Candidates that are looked after at the same time.
const CHUNK: usize = 64;

/// Blocks that are loaded at once when each is looked at.
const GROUP: usize = 16;

/// How much of a sequence a target holds: the longest part from its beginning without a gap, over all of its tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Who.
    pub target: Target,
    /// How many blocks, each counted for the lowest of the tiers that have it.
    pub by_tier: [u32; TIERS],
}

impl Match {
    /// How many blocks in all.
    pub fn blocks(&self) -> u32 {
        self.by_tier.iter().sum()
    }
}

/// What [`crate::Index::find`] found. Made once and used again.
#[derive(Debug, Default)]
pub struct Found {
    matches: Vec<Match>,
}

impl Found {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Targets that hold at least the first block, in the order of their numbers.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }
}

/// A table says something that this view does not know.
struct Stale;

/// Whether the view was good enough to find.
pub(crate) fn search(view: &View, sequence: &[u64], found: &mut Found) -> bool {
    found.matches.clear();
    if sequence.is_empty() {
        return true;
    }
    let sequence = &sequence[..sequence.len().min(u32::MAX as usize)];
    let search = Search { view, sequence };
    search.all(&mut found.matches).is_ok()
}

/// A place in the sequence, and which candidates hold everything up to it.
#[derive(Clone, Copy)]
struct Edge {
    place: usize,
    holding: Holding,
    candidates: u64,
}

struct Search<'a> {
    view: &'a View,
    sequence: &'a [u64],
}

impl Search<'_> {
    fn all(&self, matches: &mut Vec<Match>) -> Result<(), Stale> {
        self.fetch_between(0, self.sequence.len() - 1);
        let (first, ()) = self.look(0, |holders| {
            matches.reserve(holders.len());
            let mut before = None;
            for holder in holders {
                // Of a target's tiers, the lowest comes first.
                let target = Some(holder.target());
                if std::mem::replace(&mut before, target) != target {
                    matches.push(one_block(*holder));
                }
            }
        })?;
        if self.sequence.len() > 1 {
            for chunk in matches.chunks_mut(CHUNK) {
                self.chunk(first, chunk)?;
            }
        }
        Ok(())
    }

    fn chunk(&self, first: Holding, chunk: &mut [Match]) -> Result<(), Stale> {
        let all = u64::MAX >> (CHUNK - chunk.len());
        let straight = bits(all).filter(|bit| self.view.targets.is_straight(chunk[*bit].target));
        let straight = straight.fold(0, |straight, bit| straight | 1 << bit);
        if straight != 0 {
            let last = self.sequence.len() - 1;
            let start = Edge {
                place: 0,
                holding: first,
                candidates: straight,
            };
            let end = match self.as_known(last, start, start) {
                Some(end) => end,
                None => self.edge(last, start, 0, chunk)?,
            };
            bits(end.candidates).for_each(|bit| extend(&mut chunk[bit], last + 1));
            self.bisect(start, end, 0, chunk)?;
        }
        if straight != all {
            self.walk(first, all & !straight, chunk)?;
        }
        Ok(())
    }

    /// Settles how far those get that hold `low` and not `high`.
    fn bisect(&self, low: Edge, high: Edge, depth: u32, chunk: &mut [Match]) -> Result<(), Stale> {
        let lost = low.candidates & !high.candidates;
        if lost == 0 {
            return Ok(());
        }
        if high.place - low.place == 1 {
            bits(lost).for_each(|bit| extend(&mut chunk[bit], high.place));
            return Ok(());
        }
        if depth.is_multiple_of(3) && depth > 0 {
            self.fetch_between(low.place, high.place);
        }
        let middle = low.place.midpoint(high.place);
        let middle = if let Some(known) = self.as_known(middle, low, high) {
            known
        } else {
            self.edge(middle, low, high.candidates, chunk)?
        };
        self.bisect(low, middle, depth + 1, chunk)?;
        self.bisect(middle, high, depth + 1, chunk)
    }

    /// The edge at a place that has the same holders as a place whose candidates are known.
    fn as_known(&self, place: usize, low: Edge, high: Edge) -> Option<Edge> {
        let holding = self.view.holding(self.sequence[place]);
        let same = [low, high].into_iter().find(|edge| edge.holding == holding);
        same.map(|edge| Edge { place, ..edge })
    }

    /// The edge at a place after `low`, where `sure` hold more than that.
    fn edge(&self, place: usize, low: Edge, sure: u64, chunk: &[Match]) -> Result<Edge, Stale> {
        let asked = low.candidates & !sure;
        let (holding, held) = self.look(place, |holders| among(holders, asked, chunk))?;
        Ok(Edge {
            place,
            holding,
            candidates: sure | held,
        })
    }

    /// Looks at each block until none of the candidates is left.
    fn walk(&self, first: Holding, candidates: u64, chunk: &mut [Match]) -> Result<(), Stale> {
        let mut tiers = [0; CHUNK];
        for bit in bits(candidates) {
            let tier = chunk[bit].by_tier.iter().position(|blocks| *blocks > 0);
            tiers[bit] = tier.unwrap_or_default();
            chunk[bit].by_tier = [0; TIERS];
        }
        let mut going = candidates;
        let mut known = first;
        let mut from = 0;
        for place in 1..self.sequence.len() {
            if place % GROUP == 1 {
                self.fetch(place..(place + GROUP).min(self.sequence.len()));
            }
            if self.view.holding(self.sequence[place]) == known {
                continue;
            }
            count(going, &tiers, place - from, chunk);
            from = place;
            (known, going) = self.look(place, |holders| {
                let still = among(holders, going, chunk);
                bits(still).for_each(|bit| tiers[bit] = tier_of(holders, chunk[bit].target));
                still
            })?;
            if going == 0 {
                return Ok(());
            }
        }
        count(going, &tiers, self.sequence.len() - from, chunk);
        Ok(())
    }

    /// Looks at the holders of a block, in order.
    fn look<R>(
        &self,
        place: usize,
        with: impl FnOnce(&[Holder]) -> R,
    ) -> Result<(Holding, R), Stale> {
        let hash = self.sequence[place];
        let mut with = Some(with);
        let mut holding = self.view.holding(hash);
        loop {
            let Some(name) = holding.set() else {
                let mut holders = [Holder(0); INLINE];
                let count = holding.holders().len();
                holders
                    .iter_mut()
                    .zip(holding.holders())
                    .for_each(|(to, holder)| *to = holder);
                holders[..count].sort_unstable();
                let with = with.take().ok_or(Stale)?;
                return Ok((holding, with(&holders[..count])));
            };
            let seen = self.view.sets.look(name, |holders| {
                // The end of a serial number comes again; a block that says the same before and after meant this set.
                let meant = self.view.holding(hash) == holding;
                meant
                    .then(|| with.take().map(|with| with(holders)))
                    .flatten()
            });
            if let Some(seen) = seen.flatten() {
                return Ok((holding, seen));
            }
            let now = self.view.holding(hash);
            if now == holding {
                return Err(Stale);
            }
            holding = now;
        }
    }

    /// Has fetched what the first three steps of a bisection will look at.
    fn fetch_between(&self, low: usize, high: usize) {
        let eighth = |part: usize| low + (high - low) * part / 8;
        self.fetch((0..=8).map(eighth));
    }

    fn fetch(&self, places: impl IntoIterator<Item = usize>) {
        for place in places {
            self.view.fetch(self.sequence[place]);
        }
    }
}

/// Which of the asked candidates are among holders.
fn among(holders: &[Holder], asked: u64, chunk: &[Match]) -> u64 {
    let held = bits(asked).filter(|bit| {
        let target = chunk[*bit].target;
        let place = holders.partition_point(|holder| holder.target() < target);
        holders
            .get(place)
            .is_some_and(|holder| holder.target() == target)
    });
    held.fold(0, |held, bit| held | 1 << bit)
}

/// The lowest tier in which a target, one of the holders, holds.
fn tier_of(holders: &[Holder], target: Target) -> usize {
    let place = holders.partition_point(|holder| holder.target() < target);
    holders[place].tier().place()
}

/// The first block's holder, before more is known.
fn one_block(holder: Holder) -> Match {
    // Without writing a part of what is then read as a whole, which would have to wait.
    let by_tier = std::array::from_fn(|tier| u32::from(tier == holder.tier().place()));
    let target = holder.target();
    Match { target, by_tier }
}

/// A match in one tier turns out to be so long.
fn extend(found: &mut Match, blocks: usize) {
    let blocks = blocks as u32;
    // All tiers alike, without a branch.
    found.by_tier = found.by_tier.map(|tier| if tier > 0 { blocks } else { 0 });
}

/// Counts a stretch of blocks that have the same holders.
fn count(going: u64, tiers: &[usize; CHUNK], blocks: usize, chunk: &mut [Match]) {
    for bit in bits(going) {
        chunk[bit].by_tier[tiers[bit]] += blocks as u32;
    }
}

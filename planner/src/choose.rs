//! All plans that are possible, and the cheapest of them.
//!
//! The two sides of a split are costed once for each worker; what depends on the pair is the transfer alone. So pairs are
//! looked at from the cheapest sides on, and no further than one could still win.

use std::sync::Arc;

use rand::Rng;

use crate::Work;
use crate::book::{Booked, to_f64};
use crate::cost::{self, Cached, Computing, Cost, Decoding, work};
use crate::links::{Known, LinkFigures, Links, Moving};
use crate::topology::{Place, Topology};
use crate::worker::{Figures, Limits, Worker};

/// Plans whose costs differ by less than this share are equals, among which chance decides: always taking the first would
/// pile work on one worker.
const EQUAL: f64 = 0.001;

/// How many plans are remembered that lost.
const OTHERS: usize = 4;

/// What of a request decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its prompt's length in tokens.
    pub tokens: u64,
}

/// What a worker may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duty {
    /// Prefill legs.
    pub prefill: bool,
    /// Decode legs.
    pub decode: bool,
    /// Whole requests.
    pub local: bool,
}

/// One worker as it stands when a plan is made.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Its books and what was learnt of it.
    pub worker: &'a Arc<Worker>,
    /// What it may be used for.
    pub duty: Duty,
    /// How big it is.
    pub limits: Limits,
    /// How much of the prompt it has.
    pub cached: Cached,
    /// Where it stands.
    pub place: &'a Place,
    /// It was set apart for decode, whose tokens are to come evenly.
    pub guarded: bool,
    /// Seconds that computing the prompt here counts as more: somewhere else it would be kept together with what it
    /// belongs to.
    pub penalty: f64,
}

/// A plan, with workers by their places in the list that it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plan {
    /// One worker does it all.
    Local {
        /// Which.
        worker: usize,
    },
    /// Prefill here, decode there.
    Split {
        /// Who computes the prompt.
        prefill: usize,
        /// Who decodes.
        decode: usize,
    },
}

/// A plan and what it is predicted to cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Who would serve.
    pub plan: Plan,
    /// How long it would take.
    pub cost: Cost,
}

/// The plan that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// It.
    pub candidate: Candidate,
    /// The next best that were looked at, the best first.
    pub others: Vec<Candidate>,
}

/// Which two workers can hand over.
pub trait Pairing {
    /// Whether the first can hand over to the second; places in the list of workers.
    fn fits(&self, prefill: usize, decode: usize) -> bool;
}

impl<F: Fn(usize, usize) -> bool> Pairing for F {
    fn fits(&self, prefill: usize, decode: usize) -> bool {
        self(prefill, decode)
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nobody for it.
    #[error("no worker may serve it")]
    Nobody,
    /// The prompt is longer than any of them can take.
    #[error("its prompt is longer than any worker can take")]
    TooLong,
}

/// Weights of a cost's parts that no measurement gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// What a token is worth that a request before this one is about to compute.
    pub expected: f64,
    /// What a token is worth that is likely to be cached and not known to be.
    pub likely: f64,
    /// What a cached token costs, of one that is not, if it is below the device's memory.
    pub lower_tier: f64,
    /// What computing a prompt costs each sequence that decodes there, as a share.
    pub interference: f64,
    /// The same where the worker was set apart for decode.
    pub guarded_interference: f64,
    /// What computing a prompt costs those who come after it, as a share, where there is much to do.
    pub crowding: f64,
    /// Seconds of waiting from which on there is much to do.
    pub crowded: f64,
    /// Fixed price of a handoff in seconds: two more legs over HTTP.
    pub handoff: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            expected: 0.95,
            likely: 0.5,
            lower_tier: 0.25,
            interference: 0.1,
            guarded_interference: 0.3,
            crowding: 2.0,
            crowded: 2.0,
            handoff: 0.003,
        }
    }
}

/// KV on its way.
#[derive(Debug, Clone, Copy)]
pub struct Transit {
    from: u32,
    to: u32,
    level: usize,
    bytes: f64,
    step: f64,
    since: f64,
}

/// What all plans of a fleet share.
#[derive(Debug, Default)]
pub struct Planner {
    /// Where KV may and should move.
    pub topology: Topology,
    /// How fast it does.
    pub links: Links,
    /// Weights.
    pub tuning: Tuning,
}

/// One worker's sides of all plans that it is in.
struct Sides<'a> {
    standing: &'a Standing<'a>,
    figures: Figures,
    computing: Option<Computing>,
    decoding: Option<Decoding>,
}

impl Planner {
    /// The cheapest plan, one of the cheapest by chance.
    pub fn cheapest(
        &self,
        ask: Ask,
        workers: &[Standing<'_>],
        pairing: &impl Pairing,
        now: f64,
        rng: &mut impl Rng,
    ) -> Result<Choice, Refusal> {
        let sides = self.sides(ask, workers, now);
        let mut best = Best::default();
        for (worker, side) in sides.iter().enumerate() {
            if let Some(cost) = Self::local(side) {
                let plan = Plan::Local { worker };
                best.offer(Candidate { plan, cost }, rng);
            }
        }
        self.splits(&sides, pairing, rng, &mut best);
        let others = best.others;
        let chosen = best.chosen.map(|candidate| Choice { candidate, others });
        chosen.ok_or_else(|| refusal(ask, workers))
    }

    /// All plans that are possible, the cheapest first.
    pub fn plans(
        &self,
        ask: Ask,
        workers: &[Standing<'_>],
        pairing: &impl Pairing,
        now: f64,
    ) -> Vec<Candidate> {
        let sides = self.sides(ask, workers, now);
        let known = self.links.known();
        let locals = sides.iter().enumerate().filter_map(|(worker, side)| {
            let plan = Plan::Local { worker };
            Self::local(side).map(|cost| Candidate { plan, cost })
        });
        let mut plans: Vec<Candidate> = locals.collect();
        for (prefill, from) in sides.iter().enumerate() {
            for (decode, to) in sides.iter().enumerate() {
                if prefill != decode
                    && pairing.fits(prefill, decode)
                    && let Some(cost) = self.split(&known, from, to)
                {
                    let plan = Plan::Split { prefill, decode };
                    plans.push(Candidate { plan, cost });
                }
            }
        }
        plans.sort_by(|one, other| one.cost.total().total_cmp(&other.cost.total()));
        plans
    }

    /// KV is asked for: `moved` tokens of it, by the holder of `booked`. What is learnt of the link when it has come is
    /// the time until then, less what decode itself was to take.
    pub fn begin_transfer(
        &self,
        booked: &mut Booked,
        from: &Standing<'_>,
        to: &Standing<'_>,
        bytes: u64,
        now: f64,
    ) -> Transit {
        let decoding = to.worker.figures(now);
        let before = from.worker.figures(now).bytes_out.max(decoding.bytes_in);
        booked.moves(bytes, from.worker);
        Transit {
            from: from.worker.number(),
            to: to.worker.number(),
            level: self.topology.nearness(from.place, to.place),
            bytes: to_f64(bytes.saturating_add(before)),
            step: decoding.step,
            since: now,
        }
    }

    /// The KV has come, and a token was made from it.
    pub fn end_transfer(&self, transit: &Transit, now: f64) {
        let took = now - transit.since - transit.step;
        let link = &self.topology.levels()[transit.level];
        let moving = Moving {
            from: transit.from,
            to: transit.to,
            level: transit.level,
            link,
            bytes: transit.bytes,
        };
        // Never nothing: the clock is finer than any link.
        self.links.observe(&moving, took.max(1e-5));
    }

    /// What is known of the link between two workers in their places.
    pub fn link(&self, from: (&Worker, &Place), to: (&Worker, &Place)) -> LinkFigures<'_> {
        let level = self.topology.nearness(from.1, to.1);
        self.links.figures(&Moving {
            from: from.0.number(),
            to: to.0.number(),
            level,
            link: &self.topology.levels()[level],
            bytes: 0.0,
        })
    }

    /// Bytes that a plan with this worker as its decode side moves.
    pub fn moved_bytes(ask: Ask, decode: &Standing<'_>) -> u64 {
        cost::moved_bytes(decode, ask)
    }

    /// One of all plans by chance: one that costs `temperature` times the cheapest plan more than that is chosen e times
    /// more seldom.
    pub fn sampled(
        &self,
        ask: Ask,
        workers: &[Standing<'_>],
        pairing: &impl Pairing,
        now: f64,
        temperature: f64,
        rng: &mut impl Rng,
    ) -> Result<Choice, Refusal> {
        let mut plans = self.plans(ask, workers, pairing, now);
        let least = plans.first().ok_or_else(|| refusal(ask, workers))?;
        let least = least.cost.total();
        let scale = (least * temperature).max(1e-6);
        let weight = |plan: &Candidate| ((least - plan.cost.total()) / scale).exp();
        let mut left = rng.random_range(0.0..plans.iter().map(weight).sum::<f64>());
        let chosen = plans.iter().position(|plan| {
            left -= weight(plan);
            left <= 0.0
        });
        let candidate = plans.remove(chosen.unwrap_or(0));
        plans.truncate(OTHERS);
        Ok(Choice {
            candidate,
            others: plans,
        })
    }

    /// What of a request a worker would have to compute.
    pub fn work(&self, ask: Ask, worker: &Standing<'_>) -> Work {
        work(ask, worker.cached, &self.tuning)
    }

    fn sides<'a>(&self, ask: Ask, workers: &'a [Standing<'a>], now: f64) -> Vec<Sides<'a>> {
        let sides = workers.iter().map(|standing| {
            let duty = if takes(standing, ask) {
                standing.duty
            } else {
                Duty::default()
            };
            let figures = standing.worker.figures(now);
            let computes = duty.prefill || duty.local;
            Sides {
                standing,
                figures,
                computing: computes.then(|| Computing::new(standing, &figures, ask, &self.tuning)),
                decoding: duty.decode.then(|| Decoding::new(standing, &figures, ask)),
            }
        });
        sides.collect()
    }

    fn local(side: &Sides<'_>) -> Option<Cost> {
        let computing = side.computing.filter(|_| side.standing.duty.local)?;
        let mut cost = computing.cost();
        cost.decode = side.figures.step;
        Some(cost)
    }

    fn split(&self, known: &Known<'_>, from: &Sides<'_>, to: &Sides<'_>) -> Option<Cost> {
        let computing = from.computing.filter(|_| from.standing.duty.prefill)?;
        let decoding = to.decoding?;
        let (source, target) = (from.standing, to.standing);
        if self.topology.forbids(source.place, target.place).is_some() {
            return None;
        }
        let level = self.topology.nearness(source.place, target.place);
        let before = from.figures.bytes_out.max(to.figures.bytes_in);
        let moving = Moving {
            from: source.worker.number(),
            to: target.worker.number(),
            level,
            link: &self.topology.levels()[level],
            bytes: to_f64(decoding.bytes.saturating_add(before)),
        };
        let mut cost = computing.cost();
        cost.waiting += decoding.room;
        cost.transfer = known.seconds(&moving) + self.tuning.handoff;
        cost.decode = decoding.step;
        cost.preference += self.topology.penalty(source.place, target.place);
        Some(cost)
    }

    /// The pairs that may win, cheapest sides first.
    fn splits(
        &self,
        sides: &[Sides<'_>],
        pairing: &impl Pairing,
        rng: &mut impl Rng,
        best: &mut Best,
    ) {
        let prefills = sides.iter().enumerate().filter_map(|(at, side)| {
            let computing = side.computing.filter(|_| side.standing.duty.prefill)?;
            Some((computing.total(), at))
        });
        let decodes = sides
            .iter()
            .enumerate()
            .filter_map(|(at, side)| Some((side.decoding?.total(), at)));
        let (prefills, decodes) = (sorted(prefills), sorted(decodes));
        let Some((least, _)) = decodes.first() else {
            return;
        };
        let known = self.links.known();
        let handoff = self.tuning.handoff;
        for (one, prefill) in &prefills {
            if one + least + handoff > best.bound() {
                return;
            }
            for (other, decode) in &decodes {
                if one + other + handoff > best.bound() {
                    break;
                }
                if prefill != decode
                    && pairing.fits(*prefill, *decode)
                    && let Some(cost) = self.split(&known, &sides[*prefill], &sides[*decode])
                {
                    let (prefill, decode) = (*prefill, *decode);
                    let plan = Plan::Split { prefill, decode };
                    best.offer(Candidate { plan, cost }, rng);
                }
            }
        }
    }
}

fn sorted(sides: impl Iterator<Item = (f64, usize)>) -> Vec<(f64, usize)> {
    let mut sides: Vec<_> = sides.collect();
    sides.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    sides
}

/// The cheapest plan so far, how many were as cheap, and the next best that were looked at.
#[derive(Default)]
struct Best {
    chosen: Option<Candidate>,
    equals: u32,
    others: Vec<Candidate>,
}

impl Best {
    /// What costs more than this cannot win.
    fn bound(&self) -> f64 {
        let best = self.chosen.as_ref();
        best.map_or(f64::INFINITY, |best| best.cost.total() * (1.0 + EQUAL))
    }

    fn offer(&mut self, candidate: Candidate, rng: &mut impl Rng) {
        let Some(best) = self.chosen else {
            self.chosen = Some(candidate);
            self.equals = 1;
            return;
        };
        let (cost, least) = (candidate.cost.total(), best.cost.total());
        let better = cost < least * (1.0 - EQUAL);
        let equal = !better && cost <= least * (1.0 + EQUAL);
        self.equals = if better {
            1
        } else {
            self.equals + u32::from(equal)
        };
        if better || (equal && rng.random_range(0..self.equals) == 0) {
            self.chosen = Some(candidate);
            self.lost(best);
        } else {
            self.lost(candidate);
        }
    }

    fn lost(&mut self, candidate: Candidate) {
        let cost = |candidate: &Candidate| candidate.cost.total();
        let at = self
            .others
            .partition_point(|other| cost(other) <= cost(&candidate));
        if at < OTHERS {
            self.others.truncate(OTHERS - 1);
            self.others.insert(at, candidate);
        }
    }
}

/// Whether a worker can take a request of this length at all.
fn takes(standing: &Standing<'_>, ask: Ask) -> bool {
    let limits = &standing.limits;
    let most = limits.context.into_iter().chain(limits.kv_tokens).min();
    most.is_none_or(|most| ask.tokens <= most)
}

fn refusal(ask: Ask, workers: &[Standing<'_>]) -> Refusal {
    let free = |standing: &&Standing<'_>| standing.duty != Duty::default();
    let mut able = workers.iter().filter(free).peekable();
    if able.peek().is_some() && !able.any(|standing| takes(standing, ask)) {
        Refusal::TooLong
    } else {
        Refusal::Nobody
    }
}

#[cfg(test)]
mod tests;

//! All plans that are possible, and the cheapest of them.
//!
//! The two sides of a split are costed once for each worker; what depends on the pair is the transfer alone. So pairs are
//! looked at from the cheapest sides on, and no further than one could still win.

use rand::Rng;

use crate::Work;
use crate::best::{Best, OTHERS};
use crate::book::{Booked, to_f64};
use crate::cost::{self, Computing, Cost, Decoding, work};
use crate::links::{Known, LinkFigures, Links, Moving};
use crate::plan::{Ask, Candidate, Choice, Duty, Pairing, Plan, Refusal, Standing};
use crate::topology::{Place, Topology};
use crate::tuning::Tuning;
use crate::worker::{Figures, Worker};

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

    /// So many bytes took this long from one host to the other, whoever moved them.
    pub fn link_measured(
        &self,
        from: (&Worker, &Place),
        to: (&Worker, &Place),
        bytes: u64,
        seconds: f64,
    ) {
        let level = self.topology.nearness(from.1, to.1);
        let moving = Moving {
            from: from.0.number(),
            to: to.0.number(),
            level,
            link: &self.topology.levels()[level],
            bytes: to_f64(bytes),
        };
        self.links.observe(&moving, seconds);
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
                computing: computes
                    .then(|| Computing::new(standing, &figures, ask, &self.tuning, now)),
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
        cost.decode = decoding.begins(cost.waiting + cost.prefill);
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

/// Whether a worker can take a request of this length at all.
fn takes(standing: &Standing<'_>, ask: Ask) -> bool {
    let limits = &standing.limits;
    let most = limits.context.into_iter().chain(limits.kv_tokens).min();
    most.is_none_or(|most| ask.longest <= most)
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

//! NVIDIA Dynamo's published rule (1.6.1, defaults), written anew from its description.
//!
//! A worker's cost, in blocks, is what it has to prefill with this request, less what it holds of it, and what it decodes
//! with this request; the cheapest worker is chosen, one at random of several. What a worker has to do is the router's own
//! booking: prefill tokens until the first token, blocks (each counted once) until the end of the leg. Weights whose
//! default is 0 and tiers below the device are left out, as there are none here.
//!
//! Where there are roles the prefill worker is chosen first, then the decode worker without credit for what it holds. With
//! conditional disaggregation (`isl_bounding`) a request stays on the decode worker that would be the cheapest for the
//! whole of it, if that has little enough left to compute.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::policy::{Arrival, Choice, News, Policy, Seen};
use super::{Pools, pools};

/// Fewer uncached tokens than this may be computed by a decode worker …
const LOCAL_TOKENS: f64 = 2048.0;

/// … if they are less than this share of the prompt.
const LOCAL_SHARE: f64 = 0.7;

/// The rule.
#[derive(Debug)]
pub struct Dynamo {
    conditional: bool,
    random: StdRng,
    booked: Vec<Booked>,
    legs: HashMap<u32, Vec<Leg>>,
}

/// What a worker has to do.
#[derive(Debug, Clone, Default)]
struct Booked {
    prefill_tokens: u64,
    /// How many legs use each full block.
    blocks: HashMap<u64, u32>,
    /// Last blocks that are not full, which nobody shares.
    partial: u64,
}

#[derive(Debug)]
struct Leg {
    worker: usize,
    /// Until the first token.
    prefill_tokens: u64,
    blocks: std::sync::Arc<[u64]>,
    partial: u64,
}

impl Dynamo {
    /// The rule; `conditional` is whether decode workers may serve whole requests.
    pub fn new(conditional: bool, seed: u64) -> Self {
        Self {
            conditional,
            random: StdRng::seed_from_u64(seed),
            booked: Vec::new(),
            legs: HashMap::new(),
        }
    }

    fn cheapest(
        &mut self,
        pool: &[usize],
        request: &Arrival,
        fleet: &Seen<'_>,
        credit: bool,
    ) -> usize {
        let costs: Vec<f64> = pool
            .iter()
            .map(|worker| {
                let held = if credit {
                    fleet.cached[*worker].blocks
                } else {
                    0
                };
                self.booked[*worker].cost(request, held, fleet.workers[*worker].block_size)
            })
            .collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let equal: Vec<usize> = (0..pool.len())
            .filter(|place| costs[*place] <= least)
            .collect();
        pool[equal[self.random.random_range(0..equal.len())]]
    }

    fn book(&mut self, request: &Arrival, worker: usize, prefill_tokens: u64, block_size: u32) {
        let leg = Leg {
            worker,
            prefill_tokens,
            blocks: request.blocks.clone(),
            partial: u64::from(!request.tokens.is_multiple_of(block_size)),
        };
        self.booked[worker].add(&leg);
        self.legs.entry(request.request).or_default().push(leg);
    }

    /// Whether so little of a prompt is left to compute on a decode worker that it does that itself.
    fn stays_local(request: &Arrival, uncached: u64) -> bool {
        let (uncached, tokens) = (small(uncached), f64::from(request.tokens));
        uncached < LOCAL_TOKENS && uncached / tokens < LOCAL_SHARE
    }
}

impl Policy for Dynamo {
    fn name(&self) -> &'static str {
        if self.conditional {
            "dynamo_conditional"
        } else {
            "dynamo"
        }
    }

    fn choose(&mut self, _now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice {
        self.booked.resize(fleet.workers.len(), Booked::default());
        let uncached = |worker: usize| {
            let block_size = u64::from(fleet.workers[worker].block_size);
            u64::from(request.tokens) - u64::from(fleet.cached[worker].blocks) * block_size
        };
        let block_size = |worker: usize| fleet.workers[worker].block_size;
        match pools(fleet.workers) {
            Pools::Whole(workers) => {
                let worker = self.cheapest(&workers, request, fleet, true);
                self.book(request, worker, uncached(worker), block_size(worker));
                Choice::Local { worker }
            }
            Pools::Split { prefill, decode } => {
                if self.conditional {
                    let worker = self.cheapest(&decode, request, fleet, true);
                    if Self::stays_local(request, uncached(worker)) {
                        self.book(request, worker, uncached(worker), block_size(worker));
                        return Choice::Local { worker };
                    }
                }
                let prefill = self.cheapest(&prefill, request, fleet, true);
                self.book(request, prefill, uncached(prefill), block_size(prefill));
                let decode = self.cheapest(&decode, request, fleet, false);
                self.book(request, decode, 0, block_size(decode));
                Choice::Split { prefill, decode }
            }
        }
    }

    fn told(&mut self, _now: f64, news: &News<'_>) {
        match news {
            News::FirstToken { request, .. } => {
                for leg in self.legs.get_mut(request).into_iter().flatten() {
                    let tokens = std::mem::take(&mut leg.prefill_tokens);
                    self.booked[leg.worker].prefill_tokens -= tokens;
                }
            }
            News::PrefillReady {
                request, worker, ..
            } => {
                let legs = self.legs.get_mut(request).into_iter();
                for leg in legs.flat_map(|legs| legs.extract_if(.., |leg| leg.worker == *worker)) {
                    self.booked[leg.worker].remove(&leg);
                }
            }
            News::Finished { request, .. } => {
                for leg in self.legs.remove(request).unwrap_or_default() {
                    self.booked[leg.worker].remove(&leg);
                }
            }
            _ => {}
        }
    }
}

impl Booked {
    /// What a request costs here, in blocks, of which `held` are held already.
    fn cost(&self, request: &Arrival, held: u32, block_size: u32) -> f64 {
        let prefill =
            small(self.prefill_tokens + u64::from(request.tokens)) / f64::from(block_size);
        let fresh = request.blocks.iter();
        let fresh = fresh
            .filter(|block| !self.blocks.contains_key(block))
            .count();
        let partial = self.partial + u64::from(!request.tokens.is_multiple_of(block_size));
        let decode = small((self.blocks.len() + fresh) as u64 + partial);
        (prefill - f64::from(held)).max(0.0) + decode
    }

    fn add(&mut self, leg: &Leg) {
        self.prefill_tokens += leg.prefill_tokens;
        self.partial += leg.partial;
        for block in &*leg.blocks {
            *self.blocks.entry(*block).or_default() += 1;
        }
    }

    fn remove(&mut self, leg: &Leg) {
        self.prefill_tokens -= leg.prefill_tokens;
        self.partial -= leg.partial;
        for block in &*leg.blocks {
            if let Some(users) = self.blocks.get_mut(block) {
                *users -= 1;
                if *users == 0 {
                    self.blocks.remove(block);
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "tokens of a fleet are few")]
fn small(of: u64) -> f64 {
    of as f64
}

#[cfg(test)]
mod tests {
    use baton_proto::worker::Role;

    use super::*;
    use crate::routing::policies::fixture::{arrival, facts, held};

    /// Costs of three workers for a request of 1,100 tokens: two full blocks of 512, and a third that is not full.
    #[test]
    fn the_cost_is_what_is_to_be_prefilled_and_decoded() {
        let request = arrival(7, 1100, &[1, 2]);
        let idle = Booked::default();
        // 1100 / 512 - 0 and three blocks to decode.
        assert_close(idle.cost(&request, 0, 512), 2.148_437_5 + 3.0);
        assert_close(idle.cost(&request, 2, 512), 0.148_437_5 + 3.0);
        let busy = Booked {
            prefill_tokens: 2048,
            blocks: HashMap::from([(1, 1), (8, 2), (9, 1)]),
            partial: 4,
        };
        // (2048 + 1100) / 512 - 1; blocks 1, 8, 9 and, new, 2; four partial ones and its own.
        assert_close(busy.cost(&request, 1, 512), 6.148_437_5 - 1.0 + 4.0 + 5.0);
        // More credit than there is to prefill counts no further.
        assert_close(idle.cost(&request, 9, 512), 3.0);
    }

    #[test]
    fn a_hit_outweighs_load_until_it_does_not() {
        let mut dynamo = Dynamo::new(false, 1);
        let workers = [Role::Any, Role::Any].map(facts);
        let cached = held(&[4, 0]);
        let seen = Seen {
            workers: &workers,
            cached: &cached,
        };
        let blocks = [1, 2, 3, 4, 5];
        let mut choices = Vec::new();
        for number in 0..4 {
            let request = arrival(number, 2560, &blocks);
            choices.push(dynamo.choose(0.0, &request, &seen));
        }
        // Each there adds a block to prefill; blocks to decode are the same ones. 5 - 4 + 5, then 6 - 4 + 5, 7 - 4 + 5 and
        // 8 - 4 + 5 against 5 + 5: the hit is worth four requests (a fifth would be a tie).
        assert_eq!(choices, [Choice::Local { worker: 0 }; 4]);
        assert_eq!(dynamo.booked[0].prefill_tokens, 4 * 512);
        let other = arrival(9, 512, &[50]);
        let nothing = held(&[0, 0]);
        let seen = Seen {
            cached: &nothing,
            ..seen
        };
        assert_eq!(
            dynamo.choose(0.0, &other, &seen),
            Choice::Local { worker: 1 }
        );
    }

    #[test]
    fn what_is_booked_goes_when_its_time_comes() {
        let mut dynamo = Dynamo::new(false, 1);
        let workers = [Role::Prefill, Role::Decode].map(facts);
        let cached = held(&[1, 1]);
        let seen = Seen {
            workers: &workers,
            cached: &cached,
        };
        let request = arrival(3, 1100, &[1, 2]);
        let split = Choice::Split {
            prefill: 0,
            decode: 1,
        };
        assert_eq!(dynamo.choose(0.0, &request, &seen), split);
        let booked = |dynamo: &Dynamo| {
            let of = |booked: &Booked| (booked.prefill_tokens, booked.blocks.len(), booked.partial);
            dynamo.booked.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(booked(&dynamo), [(588, 2, 1), (0, 2, 1)]);
        let ready = News::PrefillReady {
            request: 3,
            worker: 0,
            cached: 512,
        };
        dynamo.told(1.0, &ready);
        assert_eq!(booked(&dynamo), [(0, 0, 0), (0, 2, 1)]);
        let finished = News::Finished {
            request: 3,
            worker: 1,
            cached: 512,
            generated: 9,
        };
        dynamo.told(2.0, &finished);
        assert_eq!(booked(&dynamo), [(0, 0, 0); 2]);
        assert!(dynamo.legs.is_empty());
    }

    #[test]
    fn little_that_is_uncached_stays_on_the_decode_worker() {
        let workers = [Role::Prefill, Role::Decode, Role::Decode].map(facts);
        let choice = |tokens, held_by_last| {
            let cached = held(&[0, 0, held_by_last]);
            let seen = Seen {
                workers: &workers,
                cached: &cached,
            };
            let blocks: Vec<u64> = (1..=u64::from(tokens / 512)).collect();
            Dynamo::new(true, 1).choose(0.0, &arrival(1, tokens, &blocks), &seen)
        };
        let local = Choice::Local { worker: 2 };
        // 2047 of 5119 tokens are left; then 2048; then 1000 of 1512, under 0.7; then 1200 of 1712, above.
        assert_eq!(choice(5119, 6), local);
        assert!(matches!(choice(5120, 6), Choice::Split { .. }));
        assert_eq!(choice(1512, 1), local);
        assert!(matches!(choice(1712, 1), Choice::Split { .. }));
    }

    fn assert_close(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-9, "{one}, not {other}");
    }
}

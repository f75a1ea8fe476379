//! Baton's own planner, fed with what its router would know.
//!
//! The planner is the router's, to the last line. What the router does around it is done here as it does it there: books
//! are kept by guards, blocks of requests on their way are expected where they were sent, and where no events come, what
//! was computed counts for a while.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use baton_planner::{
    Ask, Booked, Cached, Duty, Kind, Limits, Load, Place, Plan, Planner, Promise, Standing,
    Transit, Work, Worker,
};
use baton_proto::worker::Role;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::policy::{Arrival, Choice, Facts, News, Policy, Seen};

/// How long a prompt that was computed counts where no events tell.
const APPROXIMATE_S: f64 = 120.0;

/// Tokens after which a sequence's KV is booked anew.
const GROWTH: u32 = 64;

/// The planner and what a router keeps beside it.
#[derive(Debug)]
pub struct Baton {
    planner: Planner,
    random: StdRng,
    place: Place,
    workers: Vec<Known>,
    requests: HashMap<u32, Request>,
}

/// One worker as a router knows it.
#[derive(Debug)]
struct Known {
    books: Arc<Worker>,
    limits: Limits,
    block_tokens: u64,
    blocks: u32,
    expected: HashMap<u64, u32>,
    /// What was computed where no events tell, and until when that counts.
    approximate: VecDeque<(f64, Arc<[u64]>)>,
    silent: bool,
}

/// A request on its way.
#[derive(Debug)]
struct Request {
    tokens: u64,
    uncached: u64,
    blocks: Arc<[u64]>,
    prefill: usize,
    decode: usize,
    leg: Booked,
    held: Option<Booked>,
    /// Its decode leg will come.
    promise: Option<Promise>,
    transit: Option<Transit>,
    expects: bool,
    first: f64,
    last: f64,
    generated: u32,
}

impl Known {
    fn new(facts: &Facts, silent: bool) -> Self {
        let kv_tokens = u64::from(facts.blocks) * u64::from(facts.block_size);
        Self {
            books: Worker::new(),
            limits: Limits {
                kv_tokens: Some(kv_tokens),
                sequences: Some(facts.max_sequences),
                context: Some(facts.context_length.into()),
                bytes_per_token: Some(facts.kv_bytes_per_token.into()),
            },
            block_tokens: facts.block_size.into(),
            blocks: facts.blocks,
            expected: HashMap::new(),
            approximate: VecDeque::new(),
            silent,
        }
    }

    fn expect(&mut self, blocks: &[u64]) {
        for block in blocks {
            *self.expected.entry(*block).or_default() += 1;
        }
    }

    fn forget(&mut self, blocks: &[u64]) {
        for block in blocks {
            match self.expected.get_mut(block) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.expected.remove(block);
                }
            }
        }
    }

    fn expire(&mut self, now: f64) {
        while let Some((until, _)) = self.approximate.front()
            && *until < now
        {
            let (_, blocks) = self.approximate.pop_front().unwrap_or_default();
            self.forget(&blocks);
        }
    }

    fn cached(&self, request: &Arrival, blocks: u32) -> Cached {
        let tokens = |blocks: u64| (blocks * self.block_tokens).min(u64::from(request.tokens) - 1);
        let known = tokens(blocks.into());
        let expected = request
            .blocks
            .partition_point(|block| self.expected.contains_key(block));
        let beyond = tokens(expected as u64).saturating_sub(known);
        Cached {
            known,
            lower: 0,
            expected: if self.silent { 0 } else { beyond },
            likely: if self.silent { beyond } else { 0 },
        }
    }
}

impl Baton {
    /// Knows nothing yet.
    pub fn new(seed: u64) -> Self {
        let planner = Planner::default();
        Self {
            place: planner.topology.place(&BTreeMap::new()),
            planner,
            random: StdRng::seed_from_u64(seed),
            workers: Vec::new(),
            requests: HashMap::new(),
        }
    }

    fn meet(&mut self, fleet: &Seen<'_>) {
        if self.workers.is_empty() {
            let workers = fleet.workers.iter().zip(fleet.cached);
            let known = workers.map(|(facts, cached)| Known::new(facts, !cached.known));
            self.workers = known.collect();
            let mut kinds: HashMap<Role, Arc<Kind>> = HashMap::new();
            for (known, facts) in self.workers.iter().zip(fleet.workers) {
                known.books.is_of(kinds.entry(facts.role).or_default());
            }
        }
    }

    fn standings<'a>(&'a self, request: &Arrival, fleet: &Seen<'_>) -> Vec<Standing<'a>> {
        let set_apart = |role| role == Role::Prefill;
        let others = fleet.workers.iter().any(|facts| !set_apart(facts.role));
        let workers = self.workers.iter().zip(fleet.workers).zip(fleet.cached);
        let standings = workers.map(|((known, facts), cached)| Standing {
            worker: &known.books,
            duty: Duty {
                prefill: facts.role.prefills(),
                decode: facts.role.decodes(),
                local: !(others && set_apart(facts.role)),
            },
            limits: known.limits,
            cached: known.cached(request, cached.blocks),
            place: &self.place,
            ahead: 0,
            guarded: facts.role == Role::Decode,
            penalty: 0.0,
        });
        standings.collect()
    }

    fn book(&mut self, now: f64, request: &Arrival, plan: Plan, work: Work, due: f64) {
        let (prefill, decode) = match plan {
            Plan::Local { worker } => (worker, worker),
            Plan::Split { prefill, decode } => (prefill, decode),
        };
        let tokens = request.tokens.into();
        let promise = (prefill != decode).then(|| self.workers[decode].books.promise(tokens, due));
        let known = &mut self.workers[prefill];
        let leg = known.books.book(work, tokens, now);
        known.expect(&request.blocks);
        let request_state = Request {
            tokens,
            uncached: work.tokens,
            blocks: Arc::clone(&request.blocks),
            prefill,
            decode,
            leg,
            held: None,
            promise,
            transit: None,
            expects: true,
            first: now,
            last: now,
            generated: 0,
        };
        self.requests.insert(request.request, request_state);
    }

    /// The prompt is computed: events tell of it from here on, or never.
    fn computed(&mut self, now: f64, request: u32) {
        let Some(request) = self.requests.get_mut(&request) else {
            return;
        };
        if !std::mem::take(&mut request.expects) {
            return;
        }
        request.leg.computed(now);
        let known = &mut self.workers[request.prefill];
        if known.silent {
            let until = now + APPROXIMATE_S;
            known
                .approximate
                .push_back((until, Arc::clone(&request.blocks)));
            while known.expected.len() > known.blocks as usize
                && let Some((_, oldest)) = known.approximate.pop_front()
            {
                known.forget(&oldest);
            }
        } else {
            known.forget(&request.blocks);
        }
    }

    fn prefill_ready(&mut self, now: f64, number: u32) {
        self.computed(now, number);
        let Some(request) = self.requests.get_mut(&number) else {
            return;
        };
        let (from, to) = (
            &self.workers[request.prefill],
            &self.workers[request.decode],
        );
        let standing = |known: &'_ Known| (Arc::clone(&known.books), known.limits);
        let ((from_books, from_limits), (to_books, to_limits)) = (standing(from), standing(to));
        let stand = |worker, limits| Standing {
            worker,
            duty: Duty::default(),
            limits,
            cached: Cached::default(),
            place: &self.place,
            ahead: 0,
            guarded: false,
            penalty: 0.0,
        };
        request.leg.held();
        let mut decode = to_books.book(Work::default(), request.tokens, now);
        let ask = Ask {
            tokens: request.tokens,
            longest: request.tokens,
        };
        let (from, to) = (stand(&from_books, from_limits), stand(&to_books, to_limits));
        let bytes = Planner::moved_bytes(ask, &to);
        let transit = self
            .planner
            .begin_transfer(&mut decode, &from, &to, bytes, now);
        request.transit = Some(transit);
        request.promise = None;
        request.held = Some(std::mem::replace(&mut request.leg, decode));
    }

    fn first_token(&mut self, now: f64, number: u32) {
        self.computed(now, number);
        let Some(request) = self.requests.get_mut(&number) else {
            return;
        };
        (request.first, request.last) = (now, now);
        request.leg.arrived();
        request.held = None;
        if let Some(transit) = request.transit.take() {
            self.planner.end_transfer(&transit, now);
        }
    }

    fn finished(&mut self, now: f64, number: u32, generated: u32) {
        self.computed(now, number);
        let Some(request) = self.requests.remove(&number) else {
            return;
        };
        let books = &self.workers[request.decode].books;
        books.answered(generated.into());
        if generated >= 8 {
            books.stepped((now - request.first) / f64::from(generated - 1));
        }
    }
}

impl Policy for Baton {
    fn name(&self) -> &'static str {
        "baton"
    }

    fn choose(&mut self, now: f64, request: &Arrival, fleet: &Seen<'_>) -> Choice {
        self.meet(fleet);
        for known in &mut self.workers {
            known.expire(now);
        }
        let ask = Ask {
            tokens: request.tokens.into(),
            longest: request.tokens.into(),
        };
        let standings = self.standings(request, fleet);
        let mut random = self.random.clone();
        let chosen = self
            .planner
            .cheapest(ask, &standings, &|_, _| true, now, &mut random);
        let Ok(chosen) = chosen else {
            return Choice::Refuse;
        };
        let plan = chosen.candidate.plan;
        let (Plan::Local { worker }
        | Plan::Split {
            prefill: worker, ..
        }) = plan;
        let work = self.planner.work(ask, &standings[worker]);
        self.random = random;
        let due = now + chosen.candidate.cost.until_decode();
        self.book(now, request, plan, work, due);
        match plan {
            Plan::Local { worker } => Choice::Local { worker },
            Plan::Split { prefill, decode } => Choice::Split { prefill, decode },
        }
    }

    fn uncached(&self, request: u32) -> Option<u32> {
        let request = self.requests.get(&request)?;
        u32::try_from(request.uncached).ok()
    }

    fn told(&mut self, now: f64, news: &News<'_>) {
        match *news {
            News::PrefillReady { request, .. } => self.prefill_ready(now, request),
            News::FirstToken { request, .. } => self.first_token(now, request),
            News::Finished {
                request, generated, ..
            } => self.finished(now, request, generated),
            News::Load { worker, load } => {
                let Some(known) = self.workers.get(worker) else {
                    return;
                };
                let free = u64::from(load.free_blocks) * known.block_tokens;
                let all = known.limits.kv_tokens.unwrap_or(free);
                known.books.report(Load {
                    seq: load.sequence,
                    sequences: Some(load.running + load.waiting),
                    queued_tokens: Some(load.queued_prefill_tokens),
                    kv_tokens: Some(all.saturating_sub(free)),
                });
            }
            News::Token { request, .. } => {
                if let Some(request) = self.requests.get_mut(&request) {
                    request.generated += 1;
                    if request.generated.is_multiple_of(GROWTH) {
                        let grown = request.tokens + u64::from(request.generated);
                        request.leg.grown(grown);
                    }
                }
            }
            News::Transferred { .. } | News::Kv { .. } => {}
        }
    }

    fn wants_tokens(&self) -> bool {
        true
    }
}

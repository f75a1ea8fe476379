//! A step: who gets how many tokens, and what comes of it. Each function here has its counterpart of the same name in
//! [`crate::emulated::core`].

use super::leg::{Handoff, Phase};
use super::{Engine, Fetch, Finish, Output, Planned};
use crate::emulated::speed::StepLoad;

impl Engine {
    /// Begins the next step, unless one is under way; adds what is to be fetched.
    pub fn plan(&mut self, fetches: &mut Vec<Fetch>) -> Planned {
        debug_assert!(self.step.is_none(), "one step at a time");
        loop {
            let before = fetches.len();
            let mut budget = self.config.max_batched_tokens;
            let mut shares = self.share_among_running(&mut budget);
            // Behind a sequence that finds no room nobody overtakes.
            while budget > 0 && self.running.len() < self.config.max_sequences {
                let Some(request) = self.waiting.front().copied() else {
                    break;
                };
                if self.begin(request, &mut budget, &mut shares, fetches) {
                    continue;
                }
                if !shares.is_empty() || !self.let_fetched_overtake() {
                    break;
                }
            }
            if !shares.is_empty() {
                let takes = self.config.speed.of(&self.load(&shares), &mut self.random);
                self.stats.busy += takes;
                self.step = Some(shares);
                return Planned::Step(takes);
            }
            if fetches.len() == before {
                return Planned::Idle;
            }
            // A step in which KV is sent for and nothing computed takes no time.
            self.stats.steps += 1;
        }
    }

    /// Nothing runs, and the first finds no room: those behind it whose KV came hold blocks and can go on. (The emulated engine
    /// waits for ever here. Here a router may overload an engine as it likes.)
    fn let_fetched_overtake(&mut self) -> bool {
        let is_fetched = |request: &u32| self.sequences[request].phase == Phase::Fetched;
        let place = self.waiting.iter().position(is_fetched);
        let fetched = place.and_then(|place| self.waiting.remove(place));
        fetched
            .map(|request| self.waiting.push_front(request))
            .is_some()
    }

    fn share_among_running(&mut self, budget: &mut usize) -> Vec<(u32, usize)> {
        let mut shares = Vec::with_capacity(self.running.len() + 1);
        let preemptions = self.stats.preemptions;
        let mut place = 0;
        // Whoever is preempted stood behind whoever is looked at, or is it.
        while let Some(request) = self.running.get(place).copied() {
            place += 1;
            let sequence = &self.sequences[&request];
            let tokens = (sequence.tokens() - sequence.computed).min(*budget);
            if tokens > 0 && self.make_room_by_preemption(request, tokens) {
                *budget -= tokens;
                shares.push((request, tokens));
            }
        }
        if self.stats.preemptions > preemptions {
            shares.retain(|(request, _)| self.running.contains(request));
        }
        shares
    }

    /// Room for more tokens of a running sequence, at the cost of the youngest ones. False if it was itself the youngest.
    fn make_room_by_preemption(&mut self, request: u32, tokens: usize) -> bool {
        loop {
            if self.make_room(request, tokens) {
                return true;
            }
            let Some(youngest) = self.running.pop() else {
                return false;
            };
            self.stats.preemptions += 1;
            if let Some(sequence) = self.sequences.get_mut(&youngest) {
                let blocks = sequence.forget_kv();
                // Its prompt was fetched once; what it lost now it computes.
                if let Handoff::Fetch { .. } = sequence.leg.handoff {
                    sequence.leg.handoff = Handoff::None;
                }
                self.pool.give_back(&blocks);
                self.waiting.push_front(youngest);
            }
            if youngest == request {
                return false;
            }
        }
    }

    fn make_room(&mut self, request: u32, tokens: usize) -> bool {
        let Some(sequence) = self.sequences.get_mut(&request) else {
            return false;
        };
        let needed = (sequence.computed + tokens).div_ceil(self.config.block_size as usize);
        let missing = needed.saturating_sub(sequence.blocks.len());
        if missing == 0 {
            return true;
        }
        let taken = self.pool.take(missing);
        taken.map(|blocks| sequence.blocks.extend(blocks)).is_some()
    }

    /// Lets the first waiting sequence begin: it gets tokens, or its KV is sent for. False if there is no room.
    fn begin(
        &mut self,
        request: u32,
        budget: &mut usize,
        shares: &mut Vec<(u32, usize)>,
        fetches: &mut Vec<Fetch>,
    ) -> bool {
        let sequence = &self.sequences[&request];
        let (phase, handoff) = (sequence.phase, sequence.leg.handoff);
        if let (Handoff::Fetch { from }, Phase::Waiting) = (handoff, phase) {
            return self.begin_fetch(request, from, fetches);
        }
        let fresh = phase == Phase::Waiting;
        if fresh {
            self.use_cached(request);
        }
        let sequence = &self.sequences[&request];
        let tokens = (sequence.tokens() - sequence.computed).min(*budget);
        if !self.make_room(request, tokens) {
            if fresh {
                self.let_go(request);
            }
            return false;
        }
        *budget -= tokens;
        self.waiting.pop_front();
        self.running.push(request);
        self.started(request);
        shares.push((request, tokens));
        true
    }

    fn begin_fetch(&mut self, request: u32, from: usize, fetches: &mut Vec<Fetch>) -> bool {
        self.use_cached(request);
        let sequence = &self.sequences[&request];
        let (first, prompt) = (sequence.computed, sequence.leg.prompt as usize);
        if !self.make_room(request, prompt - first) {
            self.let_go(request);
            return false;
        }
        self.waiting.pop_front();
        let block_size = self.config.block_size as usize;
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.phase = Phase::Fetching;
        }
        let tokens = (prompt.div_ceil(block_size) * block_size - first) as u64;
        fetches.push(Fetch {
            request,
            from,
            tokens,
        });
        true
    }

    /// Begins behind what is cached; at least one token is left to compute.
    fn use_cached(&mut self, request: u32) {
        let Some(sequence) = self.sequences.get_mut(&request) else {
            return;
        };
        let block_size = self.config.block_size as usize;
        let most = (sequence.tokens() - 1) / block_size;
        let known = most.min(sequence.hashes.len());
        let hits = self.pool.longest_prefix(&sequence.hashes[..known]);
        self.pool.share(&hits);
        sequence.computed = hits.len() * block_size;
        sequence.local_hit = sequence.computed.min(sequence.leg.prompt as usize);
        sequence.stored = hits.len();
        sequence.blocks = hits;
    }

    /// Undoes [`Engine::use_cached`].
    fn let_go(&mut self, request: u32) {
        if let Some(sequence) = self.sequences.get_mut(&request) {
            let blocks = sequence.forget_kv();
            self.pool.give_back(&blocks);
        }
    }

    fn started(&mut self, request: u32) {
        let Some(sequence) = self.sequences.get_mut(&request) else {
            return;
        };
        sequence.phase = Phase::Running;
        if !std::mem::replace(&mut sequence.started, true)
            && !matches!(sequence.leg.handoff, Handoff::Fetch { .. })
        {
            self.stats.prompt_tokens += u64::from(sequence.leg.prompt);
            self.stats.cached_tokens += sequence.local_hit as u64;
        }
    }

    fn load(&self, shares: &[(u32, usize)]) -> StepLoad {
        let mut load = StepLoad::default();
        for (request, tokens) in shares {
            let sequence = &self.sequences[request];
            if sequence.generated > 0 && *tokens == 1 {
                load.decode_sequences += 1;
                load.decode_context += sequence.computed;
            } else {
                load.prefill_tokens += tokens;
                #[expect(clippy::cast_precision_loss, reason = "a prompt is small")]
                let (before, tokens) = (sequence.computed as f64, *tokens as f64);
                load.prefill_attention += tokens * (before + tokens / 2.0);
            }
        }
        load
    }

    /// The step that is under way is over: adds the tokens that came of it.
    pub fn finish_step(&mut self, outputs: &mut Vec<Output>) {
        let shares = self.step.take().unwrap_or_default();
        self.stats.steps += 1;
        for (request, tokens) in shares {
            let Some(sequence) = self.sequences.get_mut(&request) else {
                continue;
            };
            sequence.computed += tokens;
            self.store_full_blocks(request);
            let sequence = &self.sequences[&request];
            if sequence.computed == sequence.tokens() {
                outputs.extend(self.sample(request));
            }
        }
    }

    fn sample(&mut self, request: u32) -> Option<Output> {
        let sequence = self.sequences.get_mut(&request)?;
        sequence.generated += 1;
        let generated = sequence.generated;
        let ends = generated == sequence.leg.answer;
        Some(Output {
            request,
            generated,
            finish: ends.then(|| self.finish(request)).flatten(),
        })
    }

    /// Ends a sequence; its blocks stay if decode is to fetch them.
    fn finish(&mut self, request: u32) -> Option<Finish> {
        let sequence = self.sequences.remove(&request)?;
        self.running.retain(|running| *running != request);
        let held = sequence.leg.handoff == Handoff::Hold;
        if held {
            self.held.insert(request, sequence.blocks);
        } else {
            self.pool.give_back(&sequence.blocks);
        }
        Some(Finish {
            cached: u32::try_from(sequence.local_hit).unwrap_or(u32::MAX),
            held,
        })
    }
}

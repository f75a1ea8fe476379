//! A step: who gets how many tokens, and what comes of it.

use std::time::Duration;

use tokio::time::Instant;

use super::handoff::{HeldKv, Remote};
use super::sequence::{Addressed, End, Finish, Handoff, Output, Phase, Sequence};
use super::state::State;
use super::{CoreConfig, Measured, Tokenizer, Told};
use crate::emulated::model;
use crate::emulated::speed::StepLoad;

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Planned {
    Step(Step, Vec<Fetch>),
    /// Nothing before this instant, unless something comes.
    Idle {
        until: Option<Instant>,
    },
    /// A request that the engine does not survive has come to its turn.
    Death(&'static str),
}

/// Tokens per sequence, and how long they take.
#[derive(Debug)]
pub(super) struct Step {
    shares: Vec<(u64, usize)>,
    pub(super) takes: Duration,
}

/// KV that a sequence waits for.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) key: u64,
    pub(super) remote: Remote,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
}

/// Why a waiting sequence does not begin now.
enum NotNow {
    /// No room.
    Full,
    /// The engine dies.
    Death(&'static str),
}

impl State {
    /// Plans the next step.
    pub(super) fn plan(&mut self, config: &CoreConfig, now: Instant) -> Planned {
        self.expire(now);
        let mut budget = config.max_batched_tokens;
        let mut shares = self.share_among_running(&mut budget, config);
        let mut fetches = Vec::new();
        // Behind a sequence that finds no room nobody overtakes.
        while budget > 0 && self.running.len() < config.max_sequences {
            let Some(key) = self.next_waiting() else {
                break;
            };
            match self.begin(key, &mut budget, &mut fetches, config) {
                Ok(share) => shares.extend(share.map(|tokens| (key, tokens))),
                Err(NotNow::Full) => break,
                Err(NotNow::Death(of)) => return Planned::Death(of),
            }
        }
        if shares.is_empty() && fetches.is_empty() {
            return Planned::Idle {
                until: self.next_expiry(),
            };
        }
        let takes = if shares.is_empty() {
            Duration::ZERO
        } else {
            let load = self.load(&shares);
            config.speed.of(&load, &mut self.random)
        };
        Planned::Step(Step { shares, takes }, fetches)
    }

    fn next_waiting(&self) -> Option<u64> {
        let waits_for_ever = |key: &&u64| {
            let sequence = self.sequences.get(key);
            sequence.is_some_and(|sequence| sequence.handoff == Handoff::FetchOfNothing)
        };
        self.waiting
            .iter()
            .find(|key| !waits_for_ever(key))
            .copied()
    }

    fn share_among_running(
        &mut self,
        budget: &mut usize,
        config: &CoreConfig,
    ) -> Vec<(u64, usize)> {
        let mut shares = Vec::new();
        for key in self.running.clone() {
            let Some(sequence) = self.sequences.get(&key) else {
                continue;
            };
            let tokens = (sequence.tokens.len() - sequence.computed).min(*budget);
            if tokens == 0 || sequence.phase != Phase::Running {
                continue;
            }
            if self.make_room_by_preemption(key, tokens, config) {
                *budget -= tokens;
                shares.push((key, tokens));
            }
        }
        shares.retain(|(key, _)| self.running.contains(key));
        shares
    }

    /// Room for more tokens of a running sequence, at the cost of the youngest ones. False if it was itself the youngest.
    fn make_room_by_preemption(&mut self, key: u64, tokens: usize, config: &CoreConfig) -> bool {
        loop {
            if self.make_room(key, tokens, config) {
                return true;
            }
            let Some(youngest) = self.running.pop() else {
                return false;
            };
            self.stats.preemptions += 1;
            if let Some(sequence) = self.sequences.get_mut(&youngest) {
                let blocks = std::mem::take(&mut sequence.blocks);
                sequence.forget_kv();
                // Its prompt was fetched once; what it lost now it computes.
                sequence.handoff = match sequence.handoff {
                    Handoff::Fetch(_) => Handoff::None,
                    ref other => other.clone(),
                };
                self.pool.give_back(&blocks);
                self.waiting.push_front(youngest);
            }
            if youngest == key {
                return false;
            }
        }
    }

    /// Room for so many more tokens of a sequence.
    fn make_room(&mut self, key: u64, tokens: usize, config: &CoreConfig) -> bool {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return false;
        };
        let needed = (sequence.computed + tokens).div_ceil(config.block_size as usize);
        let missing = needed.saturating_sub(sequence.blocks.len());
        match self.pool.take(missing) {
            Some(blocks) => {
                sequence.blocks.extend(blocks);
                true
            }
            None => false,
        }
    }

    /// Lets a waiting sequence begin: it gets tokens, or its KV is sent for.
    fn begin(
        &mut self,
        key: u64,
        budget: &mut usize,
        fetches: &mut Vec<Fetch>,
        config: &CoreConfig,
    ) -> Result<Option<usize>, NotNow> {
        let Some(sequence) = self.sequences.get(&key) else {
            self.waiting.retain(|waiting| *waiting != key);
            return Ok(None);
        };
        if let (Handoff::Fetch(remote), Phase::Waiting) = (&sequence.handoff, sequence.phase) {
            let remote = remote.clone();
            let fetch = self.begin_fetch(key, remote, config)?;
            fetches.push(fetch);
            return Ok(None);
        }
        let fresh = sequence.phase == Phase::Waiting;
        if fresh {
            self.use_cached(key, config);
        }
        let left = self.sequences[&key].tokens.len() - self.sequences[&key].computed;
        let tokens = left.min(*budget);
        if !self.make_room(key, tokens, config) {
            if fresh {
                self.let_go(key);
            }
            return Err(NotNow::Full);
        }
        *budget -= tokens;
        self.waiting.retain(|waiting| *waiting != key);
        self.running.push(key);
        self.started(key, config);
        Ok(Some(tokens))
    }

    fn begin_fetch(
        &mut self,
        key: u64,
        remote: Remote,
        config: &CoreConfig,
    ) -> Result<Fetch, NotNow> {
        let tokens = self.sequences[&key].prompt_len;
        let needed = tokens.div_ceil(config.block_size as usize);
        if remote.blocks.len() < needed && !remote.blocks.is_empty() {
            return Err(NotNow::Death(
                "AssertionError: fewer remote blocks than the prompt needs",
            ));
        }
        if remote.blocks.is_empty() {
            return Err(NotNow::Death("AssertionError: num_external_tokens == 0"));
        }
        self.use_cached(key, config);
        let first_token = self.sequences[&key].computed;
        if !self.make_room(key, tokens - first_token, config) {
            self.let_go(key);
            return Err(NotNow::Full);
        }
        self.stats.external_queries += (tokens - first_token) as u64;
        self.stats.external_hits += (tokens - first_token) as u64;
        self.waiting.retain(|waiting| *waiting != key);
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.phase = Phase::Fetching;
        }
        Ok(Fetch {
            key,
            remote,
            first_token,
            tokens,
        })
    }

    /// Begins behind what is cached; at least one token is left to compute, unless the next one is said already.
    fn use_cached(&mut self, key: u64, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        let block_size = config.block_size as usize;
        let said = match &sequence.handoff {
            Handoff::Fetch(remote) => remote.first_token.is_some(),
            _ => false,
        };
        let most = (sequence.tokens.len() - usize::from(!said)) / block_size;
        if !sequence.cache.looks() {
            return;
        }
        let most = most.min(sequence.hashes.len());
        let mut hits = self.pool.longest_prefix(&sequence.hashes[..most]);
        self.pool.share(&hits);
        let here = hits.len();
        hits.extend(self.pool.load_back(
            &sequence.hashes[here..most],
            here.checked_sub(1).map(|last| sequence.hashes[last]),
            &sequence.tokens[here * block_size..most * block_size],
            &sequence.keys,
        ));
        sequence.local_hit = (hits.len() * block_size).min(sequence.prompt_len);
        sequence.computed = hits.len() * block_size;
        sequence.stored = hits.len();
        sequence.blocks = hits;
    }

    /// Undoes [`State::use_cached`].
    fn let_go(&mut self, key: u64) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            let blocks = std::mem::take(&mut sequence.blocks);
            sequence.forget_kv();
            self.pool.give_back(&blocks);
        }
    }

    fn started(&mut self, key: u64, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        sequence.phase = Phase::Running;
        if sequence.started.is_some() {
            return;
        }
        sequence.started = Some(Instant::now());
        self.measured
            .push(Measured::Queued(sequence.arrived.elapsed()));
        self.stats.prompt_tokens += sequence.prompt_len as u64;
        if sequence.cache.looks() {
            self.stats.cache_queries += sequence.prompt_len as u64;
            self.stats.cache_hits += sequence.local_hit as u64;
        }
        if config.connected && sequence.fetched == 0 && sequence.cache.looks() {
            // The connector is asked for what is not here, and has nothing.
            self.stats.external_queries += (sequence.prompt_len - sequence.local_hit) as u64;
        }
        let computed = sequence.computed_here();
        self.stats.computed_tokens += computed as u64;
        if sequence.report_hits && sequence.local_hit > 0 {
            let blocks = sequence.local_hit / config.block_size as usize;
            self.pool.announce(
                &sequence.hashes[..blocks],
                None,
                &sequence.tokens[..sequence.local_hit],
                &sequence.keys,
            );
        }
    }

    fn load(&self, shares: &[(u64, usize)]) -> StepLoad {
        let mut load = StepLoad::default();
        for (key, tokens) in shares {
            let sequence = &self.sequences[key];
            if sequence.generated() > 0 && *tokens == 1 {
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

    /// Computes a step's tokens: their KV, and the next token of every sequence that is through.
    pub(super) fn apply(
        &mut self,
        step: &Step,
        config: &CoreConfig,
        tokenizer: &Tokenizer,
    ) -> Vec<Addressed> {
        let mut outputs = Vec::new();
        self.stats.steps += 1;
        let mut told = 0;
        for (key, tokens) in &step.shares {
            // It was aborted meanwhile.
            if !self.sequences.contains_key(key) {
                continue;
            }
            self.compute(*key, *tokens, config);
            if config.told == Told::WhenFull || self.sequences[key].generated() == 0 {
                self.store_full_blocks(*key, config);
            }
            let sequence = &self.sequences[key];
            if sequence.computed == sequence.tokens.len() {
                told += sequence.tokens_to_tell();
                outputs.extend(self.sample(*key, config, tokenizer));
            }
        }
        let computed = step.shares.iter().map(|(_, tokens)| tokens).sum();
        self.measured.push(Measured::Step { computed, told });
        outputs
    }

    /// Writes the rows of the next tokens, and looks at them.
    fn compute(&mut self, key: u64, tokens: usize, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        let (row, block_size) = (config.row_bytes, config.block_size as usize);
        let place = |sequence: &Sequence, at: usize| {
            (sequence.blocks[at / block_size], (at % block_size) * row)
        };
        let mut previous = match sequence.computed.checked_sub(1) {
            None => sequence.kv_seed(),
            Some(last) => {
                let (block, within) = place(sequence, last);
                model::beginning(&self.pool.read(block, within, row))
            }
        };
        let (mut at, end) = (sequence.computed, sequence.computed + tokens);
        let mut written = Vec::new();
        while at < end {
            // As many rows at once as are left in the block.
            let (block, within) = place(sequence, at);
            let rows = (block_size - at % block_size).min(end - at);
            written.resize(rows * row, 0);
            for (token, row) in sequence.tokens[at..].iter().zip(written.chunks_mut(row)) {
                previous = model::write_row(previous, *token, row);
            }
            self.pool.write(block, within, &written);
            at += rows;
        }
        sequence.computed += tokens;
        let mut unattended = sequence.unattended();
        while let Some(at) = unattended.next() {
            let (block, within) = place(sequence, at);
            let rows = (block_size - at % block_size).min(unattended.len() + 1);
            sequence.attend(&self.pool.read(block, within, rows * row), row);
            unattended = sequence.unattended();
        }
    }

    /// Lets others find the blocks that are full now.
    pub(super) fn store_full_blocks(&mut self, key: u64, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        let block_size = config.block_size as usize;
        sequence.extend_hashes(block_size, config.hash);
        if !sequence.cache.leaves() {
            return;
        }
        let full = sequence.computed / block_size;
        let fresh = sequence.stored..full;
        if fresh.is_empty() {
            return;
        }
        let parent = fresh.start.checked_sub(1).map(|last| sequence.hashes[last]);
        let blocks: Vec<_> = fresh
            .clone()
            .map(|block| (sequence.blocks[block], sequence.hashes[block]))
            .collect();
        let tokens = &sequence.tokens[fresh.start * block_size..fresh.end * block_size];
        match config.told {
            Told::WhenFull => self.pool.store(&blocks, parent, tokens, &sequence.keys),
            Told::WhenInserted | Told::WithTails => {
                let used = self.pool.insert(&blocks, parent, tokens, &sequence.keys);
                sequence.blocks[fresh].copy_from_slice(&used);
            }
        }
        sequence.stored = full;
    }

    /// Lets others find the last block of a sequence that ends, which is not full.
    fn store_tail(&mut self, key: u64, config: &CoreConfig) {
        let Some(sequence) = self.sequences.get_mut(&key) else {
            return;
        };
        let block_size = config.block_size as usize;
        let full = sequence.computed / block_size;
        let tokens = &sequence.tokens[full * block_size..sequence.computed];
        if tokens.is_empty() || !sequence.cache.leaves() {
            return;
        }
        let parent = full.checked_sub(1).map(|last| sequence.hashes[last]);
        let hash = (config.hash)(parent.as_ref(), tokens, &sequence.keys);
        let block = (sequence.blocks[full], hash);
        let used = self.pool.insert(&[block], parent, tokens, &sequence.keys);
        sequence.blocks[full] = used[0];
    }

    fn sample(
        &mut self,
        key: u64,
        config: &CoreConfig,
        tokenizer: &Tokenizer,
    ) -> Option<Addressed> {
        let sequence = self.sequences.get_mut(&key)?;
        let now = Instant::now();
        match sequence.last_token.replace(now) {
            None => self
                .measured
                .push(Measured::FirstToken(now - sequence.arrived)),
            Some(last) => self.measured.push(Measured::NextToken(now - last)),
        }
        let id = sequence.next_token(tokenizer);
        self.stats.generated_tokens += 1;
        let (text, end) = sequence.push(id, tokenizer);
        let cached = sequence.cached();
        let Some(end) = end else {
            let finish = None;
            return Some(sequence.addressed(Output::Token {
                id,
                text,
                cached,
                finish,
            }));
        };
        if config.told.inserts() {
            self.store_full_blocks(key, config);
        }
        if config.told == Told::WithTails {
            self.store_tail(key, config);
        }
        let finish = Some(Box::new(self.finish(key, end, config)));
        let ended = self.remove(key)?;
        Some(ended.addressed(Output::Token {
            id,
            text,
            cached,
            finish,
        }))
    }

    /// Ends a sequence; its blocks stay if decode is to fetch them.
    fn finish(&mut self, key: u64, (reason, stop): End, config: &CoreConfig) -> Finish {
        *self.stats.finished.entry(reason).or_default() += 1;
        let sequence = self.sequences.get_mut(&key).expect("it was sampled");
        let held = (sequence.handoff == Handoff::Hold).then(|| HeldKv {
            request_id: sequence.id.clone(),
            blocks: std::mem::take(&mut sequence.blocks),
            tokens: sequence.computed,
        });
        let (cached, computed) = (sequence.cached(), sequence.computed_here());
        self.measured.push(Measured::Request {
            took: sequence.arrived.elapsed(),
            prompt: sequence.prompt_len,
            computed: sequence.prompt_len - cached,
            generated: sequence.generated(),
            limit: sequence.sampling.limit,
        });
        if let Some(held) = &held {
            self.hold(&held.request_id, held.blocks.clone(), config.lease);
        }
        Finish {
            reason,
            stop,
            cached,
            computed,
            held,
        }
    }
}

impl Sequence {
    /// Prompt tokens that were neither cached here nor fetched.
    fn computed_here(&self) -> usize {
        self.prompt_len - self.local_hit - self.fetched
    }

    /// What a step that ends with a token of this sequence is said to have computed: the first token stands for the whole
    /// prompt, whatever steps it took.
    fn tokens_to_tell(&self) -> usize {
        match self.generated() {
            0 => self.computed_here() + 1,
            _ => 1,
        }
    }

    /// Cached prompt tokens as the engine reports them: decode passes on what the prefill side had.
    pub(super) fn cached(&self) -> usize {
        match &self.handoff {
            // Prefill has said the first token: nothing was looked for but what is cached somewhere.
            Handoff::Fetch(remote) if remote.first_token.is_some() => {
                remote.cached.max(self.local_hit)
            }
            Handoff::Fetch(remote) if self.fetched > 0 => remote.cached,
            _ => self.local_hit,
        }
    }
}

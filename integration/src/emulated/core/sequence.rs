//! A request in the engine: what is asked, where it stands, what comes out.

use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Core;
use super::handoff::{HeldKv, Remote};
use crate::emulated::model::{self, Attention};
use crate::emulated::pool::{BlockHash, BlockId, CacheKeys};
use crate::emulated::tokenizer::Tokenizer;

/// What is to be done with KV beyond this engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handoff {
    /// Nothing.
    None,
    /// Hold the prompt's KV for a decode engine.
    Hold,
    /// Fetch the prompt's KV from its holder.
    Fetch(Remote),
    /// A fetch without `remote_request_id`: it waits for ever, and giving it up ends a real engine.
    FetchOfNothing,
}

impl Handoff {
    pub(super) fn kills_when_given_up(&self) -> bool {
        matches!(self, Self::FetchOfNothing)
    }
}

/// How tokens are chosen and when to stop.
#[derive(Debug, Clone, Default)]
pub struct Sampling {
    /// Tokens to generate at most.
    pub limit: usize,
    /// Before so many, nothing stops it.
    pub min_tokens: usize,
    /// 0 is greedy; equal seeds choose equally.
    pub seed: u64,
    /// Texts that end it.
    pub stop: Vec<String>,
    /// The stop text stays in the answer.
    pub include_stop: bool,
    /// Tokens that end it.
    pub stop_tokens: Vec<u32>,
    /// The end-of-sequence token does not end it.
    pub ignore_end: bool,
    /// This token, whatever the KV says.
    pub always: Option<u32>,
    /// One of these token sequences, chosen by the KV, then the end: what a grammar allows.
    pub one_of: Vec<Vec<u32>>,
}

/// A sequence that is to be continued.
#[derive(Debug, Clone)]
pub struct Request {
    /// The engine's own id of it.
    pub id: String,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What separates it from equal prompts.
    pub keys: CacheKeys,
    /// How it goes on.
    pub sampling: Sampling,
    /// Its KV beyond this engine.
    pub handoff: Handoff,
    /// Cached blocks that it uses are announced again.
    pub report_hits: bool,
    /// What it has to do with cached blocks.
    pub cache: CacheUse,
}

/// What a sequence has to do with cached blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheUse {
    /// It uses them, and leaves its own to others.
    #[default]
    Whole,
    /// It leaves its own to others, and computes all of them: its prompt's logits are wanted.
    Leaves,
    /// It uses them, and leaves none: nobody asked for it.
    Uses,
    /// None.
    Nothing,
}

impl CacheUse {
    /// Whether it looks for cached blocks.
    pub(super) fn looks(self) -> bool {
        matches!(self, Self::Whole | Self::Uses)
    }

    /// Whether others find its own.
    pub(super) fn leaves(self) -> bool {
        matches!(self, Self::Whole | Self::Leaves)
    }
}

/// What comes out of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// One more token.
    Token {
        /// Which.
        id: u32,
        /// What its text adds, as far as it is certain that no stop text cuts it off.
        text: String,
        /// Prompt tokens whose KV was cached: here, or where it came from.
        cached: usize,
        /// It was the last one.
        finish: Option<Box<Finish>>,
    },
    /// It was ended from outside.
    Aborted,
    /// Its KV could not be loaded.
    LoadFailed,
}

/// How a sequence ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// `length` or `stop`.
    pub reason: &'static str,
    /// The stop text or token.
    pub stop: Value,
    /// Prompt tokens whose KV was cached: here, or where it came from.
    pub cached: usize,
    /// Prompt tokens whose KV was computed here.
    pub computed: usize,
    /// The KV that is held for decode.
    pub held: Option<HeldKv>,
}

/// An output on its way.
#[derive(Debug)]
pub(super) struct Addressed {
    to: mpsc::Sender<Output>,
    output: Output,
}

impl Addressed {
    pub(super) fn deliver(self) {
        // Nobody listens any more: that ends in an abort. There is room for all outputs of a sequence.
        let _ = self.to.try_send(self.output);
    }
}

/// Outputs of a sequence. Dropping it before the end aborts the sequence.
#[derive(Debug)]
pub struct Submitted {
    core: Arc<Core>,
    key: u64,
    outputs: mpsc::Receiver<Output>,
}

impl Submitted {
    pub(super) fn new(core: Arc<Core>, key: u64, outputs: mpsc::Receiver<Output>) -> Self {
        Self { core, key, outputs }
    }

    /// The next output; `None` after the last one.
    pub async fn next(&mut self) -> Option<Output> {
        self.outputs.recv().await
    }

    /// The same, to be polled beside others.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Output>> {
        self.outputs.poll_recv(context)
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        self.core.abort(self.key);
    }
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Fetching,
    /// Its KV is here; it waits for a place in a step.
    Fetched,
    Running,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: String,
    pub(super) keys: CacheKeys,
    pub(super) sampling: Sampling,
    pub(super) handoff: Handoff,
    pub(super) report_hits: bool,
    pub(super) cache: CacheUse,
    pub(super) phase: Phase,
    /// Prompt and what was generated.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Of the full blocks of `tokens`.
    pub(super) hashes: Vec<BlockHash>,
    pub(super) blocks: Vec<BlockId>,
    /// Blocks that can be found by others.
    pub(super) stored: usize,
    /// Tokens whose KV is in the blocks.
    pub(super) computed: usize,
    /// Tokens whose KV `attention` has seen.
    attended: usize,
    attention: Attention,
    /// Cached here when it began.
    pub(super) local_hit: usize,
    /// Came from another engine.
    pub(super) fetched: usize,
    /// Nobody waits for it any more, but its KV is still on its way.
    pub(super) given_up: bool,
    pub(super) arrived: Instant,
    pub(super) started: Option<Instant>,
    pub(super) last_token: Option<Instant>,
    text: StoppableText,
    choice: Option<usize>,
    /// What comes out next, whatever the KV says: it was said elsewhere.
    pub(super) said_elsewhere: Option<u32>,
    outputs: mpsc::Sender<Output>,
}

impl Sequence {
    pub(super) fn new(request: Request) -> (Self, mpsc::Receiver<Output>) {
        let room = request.sampling.limit.min(1 << 16) + 2;
        let (outputs, receiver) = mpsc::channel(room);
        let sequence = Self {
            id: request.id,
            keys: request.keys,
            text: StoppableText::new(&request.sampling),
            sampling: request.sampling,
            handoff: request.handoff,
            report_hits: request.report_hits,
            cache: request.cache,
            phase: Phase::Waiting,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            hashes: Vec::new(),
            blocks: Vec::new(),
            stored: 0,
            computed: 0,
            attended: 0,
            attention: Attention::default(),
            local_hit: 0,
            fetched: 0,
            given_up: false,
            arrived: Instant::now(),
            started: None,
            last_token: None,
            choice: None,
            said_elsewhere: None,
            outputs,
        };
        (sequence, receiver)
    }

    /// Whether a caller means this one: the engine adds a suffix to the ids that callers know.
    pub(super) fn is_called(&self, id: &str) -> bool {
        self.id == id
            || self
                .id
                .rsplit_once('-')
                .is_some_and(|(known, _)| known == id)
    }

    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub(super) fn say(&self, output: Output) {
        self.addressed(output).deliver();
    }

    /// An output for whoever asked, to be delivered later.
    pub(super) fn addressed(&self, output: Output) -> Addressed {
        Addressed {
            to: self.outputs.clone(),
            output,
        }
    }

    /// Hashes of all full blocks so far.
    pub(super) fn extend_hashes(
        &mut self,
        block_size: usize,
        hash: fn(Option<&BlockHash>, &[u32], &CacheKeys) -> BlockHash,
    ) {
        for block in self.hashes.len()..self.tokens.len() / block_size {
            let tokens = &self.tokens[block * block_size..(block + 1) * block_size];
            let hash = hash(self.hashes.last(), tokens, &self.keys);
            self.hashes.push(hash);
        }
    }

    /// How many more rows it has not looked at, out of those that are there.
    pub(super) fn unattended(&self) -> std::ops::Range<usize> {
        self.attended..self.computed
    }

    pub(super) fn attend(&mut self, rows: &[u8], row_bytes: usize) {
        self.attention.look_at(rows);
        self.attended += rows.len() / row_bytes;
    }

    /// Begins anew: its blocks are gone, its tokens are not.
    pub(super) fn forget_kv(&mut self) {
        self.blocks.clear();
        self.stored = 0;
        self.computed = 0;
        self.attended = 0;
        self.attention = Attention::default();
        self.phase = Phase::Waiting;
    }

    /// What the first row depends on.
    pub(super) fn kv_seed(&self) -> u64 {
        model::seed(self.keys.lora.as_ref().map(|(name, _)| name.as_str()))
    }

    /// The next token, by the KV it has looked at, unless it was said elsewhere.
    pub(super) fn next_token(&mut self, tokenizer: &Tokenizer) -> u32 {
        debug_assert_eq!(self.attended, self.tokens.len());
        let token = self.token_by_kv(tokenizer);
        self.said_elsewhere.take().unwrap_or(token)
    }

    fn token_by_kv(&mut self, tokenizer: &Tokenizer) -> u32 {
        let logit = self.attention.logit(self.sampling.seed);
        let too_early = self.generated() < self.sampling.min_tokens;
        let end = self.sampling.always == tokenizer.end();
        if let Some(token) = self.sampling.always.filter(|_| !(end && too_early)) {
            return token;
        }
        if self.sampling.one_of.is_empty() {
            return tokenizer.token_of(logit);
        }
        let count = self.sampling.one_of.len();
        let at = self.generated();
        let choice = *self
            .choice
            .get_or_insert(usize::try_from(logit % count as u64).unwrap_or(0));
        let allowed = self.sampling.one_of[choice].get(at).copied();
        allowed.or(tokenizer.end()).unwrap_or_default()
    }

    /// Takes a generated token: what it adds to the text, and how the sequence ends, if it does.
    pub(super) fn push(&mut self, token: u32, tokenizer: &Tokenizer) -> (String, Option<End>) {
        self.tokens.push(token);
        let count = self.generated();
        let is_end = tokenizer.end() == Some(token) && !self.sampling.ignore_end;
        let may_stop = count >= self.sampling.min_tokens;
        if may_stop && (is_end || self.sampling.stop_tokens.contains(&token)) {
            let stop = if is_end { Value::Null } else { token.into() };
            return (self.text.rest(), Some(("stop", stop)));
        }
        let (mut text, stop) = self.text.push(&tokenizer.text(token), may_stop);
        if let Some(stop) = stop {
            return (text, Some(("stop", stop.into())));
        }
        if count < self.sampling.limit {
            return (text, None);
        }
        text.push_str(&self.text.rest());
        (text, Some(("length", Value::Null)))
    }
}

/// Why a sequence ended, and by which stop text or token.
pub(super) type End = (&'static str, Value);

/// Text as it is generated, of which so much is held back as could be the beginning of a stop text.
#[derive(Debug)]
struct StoppableText {
    stops: Vec<String>,
    include: bool,
    held_back: String,
}

impl StoppableText {
    fn new(sampling: &Sampling) -> Self {
        Self {
            stops: sampling.stop.clone(),
            include: sampling.include_stop,
            held_back: String::new(),
        }
    }

    /// What can be said now, and the stop text that was met.
    fn push(&mut self, text: &str, may_stop: bool) -> (String, Option<String>) {
        self.held_back.push_str(text);
        let met = self
            .stops
            .iter()
            .filter(|_| may_stop)
            .filter_map(|stop| Some((self.held_back.find(stop)?, stop)))
            .min();
        if let Some((at, stop)) = met {
            let stop = stop.clone();
            self.held_back
                .truncate(at + if self.include { stop.len() } else { 0 });
            return (std::mem::take(&mut self.held_back), Some(stop));
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(1);
        let mut certain = (self.held_back.len() + 1).saturating_sub(longest);
        while !self.held_back.is_char_boundary(certain) {
            certain -= 1;
        }
        let behind = self.held_back.split_off(certain);
        (std::mem::replace(&mut self.held_back, behind), None)
    }

    fn rest(&mut self) -> String {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(
        stops: &[&str],
        include: bool,
        texts: &[&str],
    ) -> (Vec<String>, Option<String>, String) {
        let sampling = Sampling {
            stop: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            include_stop: include,
            ..Sampling::default()
        };
        let mut text = StoppableText::new(&sampling);
        let mut said = Vec::new();
        for piece in texts {
            let (now, stop) = text.push(piece, true);
            said.push(now);
            if stop.is_some() {
                return (said, stop, text.rest());
            }
        }
        (said, None, text.rest())
    }

    #[test]
    fn without_stop_texts_everything_is_said_at_once() {
        let (said, stop, rest) = said(&[], false, &["a", "grüße", ""]);
        assert_eq!(said, ["a", "grüße", ""]);
        assert_eq!((stop, rest), (None, String::new()));
    }

    #[test]
    fn a_stop_text_across_tokens_is_cut_off() {
        let (said, stop, rest) = said(&["END"], false, &["ab", "E", "N", "Dx"]);
        assert_eq!(said.concat(), "ab");
        assert_eq!((stop.as_deref(), rest.as_str()), (Some("END"), ""));
    }

    #[test]
    fn or_kept_if_asked_for() {
        let (said, stop, _) = said(&["END"], true, &["abE", "NDx"]);
        assert_eq!(said.concat(), "abEND");
        assert_eq!(stop.as_deref(), Some("END"));
    }

    #[test]
    fn the_beginning_of_a_stop_text_comes_with_the_end() {
        let (said, stop, rest) = said(&["END"], false, &["xE", "N"]);
        assert_eq!((said.concat() + &rest, stop), ("xEN".to_owned(), None));
    }
}

//! How much of a prompt each worker has in its cache, as far as that can be known before it is asked.

use std::collections::HashMap;
use std::sync::Arc;

use baton_index::{Found, Index, Target};
use baton_proto::WorkerId;

use super::cached::{Basis, Cached};
use super::prompt::{Naming, Prompt};
use super::text::{PIECE_TOKENS, Text};
use crate::fleet::{Snapshot, Worker, WorkerView};

/// What is foretold of a request at one worker, to be compared with what its engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foretold {
    /// Its prompt's length.
    pub tokens: u64,
    /// What is cached of it.
    pub cached: Cached,
    /// Tokens per block.
    pub block_size: u32,
    /// The engine's report is about one sequence.
    pub comparable: bool,
    /// The worker tells of no KV events.
    pub unwatched: bool,
}

/// Names of the blocks of each prompt.
type Named = Arc<[Arc<[u64]>]>;

/// One worker's part of a prediction.
#[derive(Debug, Clone)]
struct Forecast {
    cached: Cached,
    /// If the prompt's tokens are known: what can be compared, and its blocks as this worker names them, for each of several
    /// prompts by themselves.
    by_tokens: Option<(Foretold, Named)>,
}

impl Foretold {
    /// What the engine must report as cached, if that can be told.
    pub fn exact(&self) -> Option<u64> {
        let exact = self.comparable && self.cached.basis == Basis::Exact;
        exact.then_some(self.cached.known)
    }
}

/// How much of one prompt each worker has.
#[derive(Debug, Clone, Default)]
pub struct Prediction {
    /// In the order of their ids.
    workers: Vec<(WorkerId, Forecast)>,
    /// Pieces of the request's text that whoever computes it will have.
    text: Option<Arc<[u64]>>,
}

impl Prediction {
    /// What a worker has; nothing if that is not known.
    pub fn cached(&self, worker: &WorkerId) -> Cached {
        self.forecast(worker)
            .map_or_else(Cached::default, |forecast| forecast.cached)
    }

    fn forecast(&self, worker: &WorkerId) -> Option<&Forecast> {
        let by_id = |(id, _): &(WorkerId, Forecast)| id.cmp(worker);
        let at = self.workers.binary_search_by(by_id).ok()?;
        Some(&self.workers[at].1)
    }

    /// What is foretold of the request at a worker, if anything is.
    pub fn foretold(&self, worker: &WorkerId) -> Option<Foretold> {
        let by_tokens = self.forecast(worker)?.by_tokens.as_ref();
        by_tokens.map(|(foretold, _)| *foretold)
    }

    /// What the engine must report, if that can be told.
    pub fn exact(&self, worker: &WorkerId) -> Option<u64> {
        self.foretold(worker)?.exact()
    }

    /// The blocks of the prompt, or of each prompt, as this worker names them.
    pub fn blocks(&self, worker: &Worker) -> &[Arc<[u64]>] {
        let forecast = self.forecast(worker.id());
        let by_tokens = forecast.and_then(|forecast| forecast.by_tokens.as_ref());
        by_tokens.map_or(&[], |(_, blocks)| blocks)
    }

    /// Pieces of the request's text that whoever computes it will have, where texts are what is compared.
    pub fn text(&self) -> Option<&Arc<[u64]>> {
        self.text.as_ref()
    }

    /// Whoever computes the request will have this text.
    #[must_use]
    pub fn noting(mut self, text: Option<&Text>) -> Self {
        self.text = text.map(|text| Arc::clone(text.pieces()));
        self
    }
}

/// All prompts of a request under one naming.
struct Chains {
    naming: Naming,
    blocks: Named,
    each: Vec<Chain>,
}

/// A prompt's blocks, and who holds how many of them.
struct Chain {
    block_size: u64,
    blocks: Arc<[u64]>,
    usable: u64,
    held: HashMap<Target, Blocks>,
}

/// How many of a prompt's first blocks a target holds.
#[derive(Debug, Clone, Copy, Default)]
struct Blocks {
    all: u64,
    /// Those that the device's memory has not.
    lower: u64,
}

/// How much of `prompt`, to `model`, each worker has.
pub fn predict(
    index: &Index,
    snapshot: &Snapshot,
    model: Option<&str>,
    prompt: Option<&Prompt>,
) -> Prediction {
    let Some(prompt) = prompt else {
        return Prediction::default();
    };
    // A fleet has few models and block sizes: each chain is hashed and looked up once.
    let mut chains: Vec<Chains> = Vec::new();
    let mut found = Found::new();
    let mut forecasts = Vec::with_capacity(snapshot.workers.len());
    for worker in &snapshot.workers {
        let Some(naming) = naming(worker, model, prompt) else {
            continue;
        };
        let known = chains.iter().position(|chain| chain.naming == naming);
        let at = known.unwrap_or_else(|| {
            chains.push(Chains::new(index, &mut found, prompt, naming));
            chains.len() - 1
        });
        let chain = &chains[at];
        let cached = chain.cached(worker);
        let foretold = Foretold {
            tokens: prompt.tokens(),
            cached,
            block_size: naming.block_size,
            comparable: prompt.is_single(),
            unwatched: worker.known_ranks().is_empty(),
        };
        let forecast = Forecast {
            cached,
            by_tokens: Some((foretold, Arc::clone(&chain.blocks))),
        };
        forecasts.push((worker.id().clone(), forecast));
    }
    Prediction {
        workers: forecasts,
        text: None,
    }
}

/// How much of a prompt of roughly so many tokens each worker may have, by the text that it is made of: what begins alike was
/// computed there lately. Nothing of that is known, and nothing is compared with what the engine reports.
pub fn predict_by_text(
    snapshot: &Snapshot,
    model: Option<&str>,
    text: &Text,
    tokens: u64,
) -> Prediction {
    let forecast = |view: &WorkerView| {
        let serves = model.is_none_or(|model| view.serves(model));
        let trusted = serves && !view.worker.is_quarantined();
        let pieces = trusted.then(|| view.worker.texts().matching(text.pieces()))?;
        let likely = (pieces * PIECE_TOKENS).min(tokens.saturating_sub(1));
        let cached = Cached {
            likely,
            basis: Basis::Approximate,
            ..Cached::default()
        };
        let forecast = Forecast {
            cached,
            by_tokens: None,
        };
        (likely > 0).then(|| (view.id().clone(), forecast))
    };
    Prediction {
        workers: snapshot.workers.iter().filter_map(forecast).collect(),
        text: None,
    }
}

/// How a worker will name the prompt's blocks. In a quarantine it does so in a way that nobody else knows.
fn naming(worker: &WorkerView, model: Option<&str>, prompt: &Prompt) -> Option<Naming> {
    let serves = model.is_none_or(|model| worker.serves(model));
    if !serves || worker.worker.is_quarantined() {
        return None;
    }
    prompt.naming(model, worker.info()?)
}

impl Chains {
    fn new(index: &Index, found: &mut Found, prompt: &Prompt, naming: Naming) -> Self {
        let chains = prompt.blocks(naming).map(|(blocks, usable)| {
            let block_size = naming.block_size.into();
            Chain::new(index, found, blocks.into(), usable, block_size)
        });
        let each: Vec<Chain> = chains.collect();
        Self {
            naming,
            blocks: each.iter().map(|chain| Arc::clone(&chain.blocks)).collect(),
            each,
        }
    }

    /// What a worker has of all of them together. What is shared among them counts for each.
    fn cached(&self, worker: &WorkerView) -> Cached {
        let each = self.each.iter().map(|chain| chain.cached(worker));
        let sum = |sum: Cached, more: Cached| Cached {
            known: sum.known + more.known,
            lower: sum.lower + more.lower,
            likely: sum.likely + more.likely,
            basis: sum.basis.less_sure(more.basis),
        };
        each.reduce(sum).unwrap_or_default()
    }
}

impl Chain {
    fn new(
        index: &Index,
        found: &mut Found,
        blocks: Arc<[u64]>,
        usable: u64,
        block_size: u64,
    ) -> Self {
        index.find(&blocks, found);
        let held = found.matches().iter();
        let held = held.map(|held| {
            let all = u64::from(held.blocks());
            let lower = all - u64::from(held.by_tier[0]);
            (held.target, Blocks { all, lower })
        });
        Self {
            block_size,
            usable,
            held: held.collect(),
            blocks,
        }
    }

    fn cached(&self, worker: &WorkerView) -> Cached {
        let tokens = |blocks: u64| blocks.min(self.usable) * self.block_size;
        let expected = tokens(worker.worker.expected().matching(&self.blocks));
        let ranks = worker.known_ranks();
        if ranks.is_empty() {
            let basis = if expected > 0 {
                Basis::Approximate
            } else {
                Basis::Unknown
            };
            return Cached {
                likely: expected,
                basis,
                ..Cached::default()
            };
        }
        let of_rank = ranks.iter().map(|rank| {
            let held = self.held.get(&rank.target.target());
            held.copied().unwrap_or_default()
        });
        // The engine chooses the rank: it has for sure what all of them have.
        let (least, most, lower) = of_rank.fold((u64::MAX, 0, 0), |(least, most, lower), held| {
            let all = tokens(held.all);
            (least.min(all), most.max(all), tokens(held.lower).max(lower))
        });
        if !worker.is_exactly_known() {
            let basis = if expected > least {
                Basis::Approximate
            } else {
                Basis::Uncertain
            };
            return Cached {
                likely: least.max(expected),
                basis,
                ..Cached::default()
            };
        }
        let basis = match (expected > least, least == most) {
            (true, _) => Basis::Expected,
            (false, true) => Basis::Exact,
            (false, false) => Basis::Uncertain,
        };
        Cached {
            known: least,
            lower: lower.min(least),
            likely: expected.saturating_sub(least),
            basis,
        }
    }
}

#[cfg(test)]
mod tests;

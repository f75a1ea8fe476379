//! What is asked: random completions of token ids with shared beginnings, adapters, salts, exact repetitions, and prompts
//! that end where a block does.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::real::http::{self, Answer};
use crate::real::report::Report;

/// Tokens of the tiny model that are no special ones.
const TOKENS: std::ops::Range<u32> = 5..1024;

/// Tokens in a block.
pub const BLOCK: usize = 32;

const BEGINNINGS: usize = 8;
const SALTS: [&str; 2] = ["red", "blue"];

/// How long a client goes on to ask whom it cannot reach.
const RETRY_BOUND: Duration = Duration::from_secs(60);

/// A completion to ask for.
#[derive(Debug, Clone)]
pub struct Ask {
    prompt: Vec<u32>,
    adapter: bool,
    salt: Option<&'static str>,
    max_tokens: u32,
}

impl Ask {
    /// The request's body.
    pub fn body(&self, model: &str) -> Value {
        let mut body = json!({
            "model": if self.adapter { ADAPTER } else { model },
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": true,
            "temperature": 0,
        });
        if let Some(salt) = self.salt {
            body["cache_salt"] = salt.into();
        }
        body
    }

    fn short(mut self) -> Self {
        self.max_tokens = 1;
        self
    }
}

/// The name that the adapter is served under.
pub const ADAPTER: &str = "ada";

/// A seeded stream of requests.
#[derive(Debug)]
pub struct Workload {
    random: StdRng,
    adapters: bool,
    beginnings: Vec<Vec<u32>>,
    asked: Vec<Ask>,
}

impl Workload {
    /// The same seed asks the same things, of an engine that has the adapter or has none.
    pub fn new(seed: u64, adapters: bool) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let beginnings = (0..BEGINNINGS).map(|_| tokens(&mut random, 12 * BLOCK));
        Self {
            beginnings: beginnings.collect(),
            adapters,
            random,
            asked: Vec::new(),
        }
    }

    /// The next completion.
    pub fn take(&mut self) -> Ask {
        let ask = self.ask();
        self.asked.push(ask.clone());
        ask
    }

    fn ask(&mut self) -> Ask {
        let random = &mut self.random;
        if !self.asked.is_empty() && random.random_bool(0.15) {
            // Its whole prompt may be cached, and the engine computes the last block once more.
            return self.asked[random.random_range(0..self.asked.len())].clone();
        }
        let beginning = &self.beginnings[random.random_range(0..BEGINNINGS)];
        let shared = random.random_range(0..=beginning.len());
        let mut prompt = beginning[..shared].to_vec();
        let own = random.random_range(1..4 * BLOCK);
        prompt.extend(tokens(random, own));
        if random.random_bool(0.25) && prompt.len() > BLOCK {
            prompt.truncate(prompt.len() / BLOCK * BLOCK);
        }
        Ask {
            prompt,
            adapter: random.random_bool(0.2) && self.adapters,
            salt: random
                .random_bool(0.25)
                .then(|| SALTS[random.random_range(0..SALTS.len())]),
            max_tokens: random.random_range(1..2 * u32::try_from(BLOCK).unwrap_or(1)),
        }
    }

    /// A short completion whose prompt has much in common with one that was asked lately.
    pub fn probe(&mut self) -> Ask {
        if self.asked.is_empty() {
            return self.take().short();
        }
        let latest = self.asked.len().min(20);
        let at = self.asked.len() - 1 - self.random.random_range(0..latest);
        let mut ask = self.asked[at].clone().short();
        let length = ask.prompt.len();
        match self.random.random_range(0..4) {
            0 => {}
            1 => ask.prompt.truncate(self.random.random_range(1..=length)),
            2 => ask.prompt.truncate((length / BLOCK).max(1) * BLOCK),
            _ => ask.prompt.extend(tokens(&mut self.random, BLOCK)),
        }
        ask
    }
}

fn tokens(random: &mut StdRng, length: usize) -> Vec<u32> {
    (0..length).map(|_| random.random_range(TOKENS)).collect()
}

/// What clients do when they are not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Everybody must be answered at once.
    None,
    /// They ask again: somebody in between is being restarted.
    AskAgain,
    /// They leave: the engine is killed.
    Leave,
}

/// What became of some requests.
#[derive(Debug, Default)]
pub struct Served {
    /// Requests that were answered.
    pub answered: usize,
    /// What went wrong, each time.
    pub failures: Vec<String>,
}

/// Clients of the router.
#[derive(Debug, Clone, Copy)]
pub struct Clients<'a> {
    /// `POST` here.
    pub url: &'a str,
    /// Model name.
    pub model: &'a str,
    /// How many at a time.
    pub at_a_time: usize,
    /// Who is told.
    pub report: &'a Report,
}

impl Clients<'_> {
    /// Sends all of them; calls `meanwhile` when a third has been answered.
    pub fn send<T>(
        self,
        asks: &[Ask],
        patience: Patience,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Served, T)> {
        let next = AtomicUsize::new(0);
        let served = Mutex::new(Served::default());
        let finished = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.at_a_time {
                scope.spawn(|| {
                    let agent = http::agent();
                    while let Some(ask) = asks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.one(&agent, ask, patience, &served);
                        finished.fetch_add(1, Ordering::Relaxed);
                        self.report.request();
                    }
                });
            }
            let third = || {
                let enough = finished.load(Ordering::Relaxed) * 3 >= asks.len();
                Ok(enough.then_some(()))
            };
            http::until("a third of the requests", RETRY_BOUND * 5, third)?;
            meanwhile()
        })
        .map(|done| (served.into_inner().unwrap_or_default(), done))
    }

    fn one(self, agent: &ureq::Agent, ask: &Ask, patience: Patience, served: &Mutex<Served>) {
        let body = ask.body(self.model);
        let mut failures = Vec::new();
        let mut once = || match completion(agent, self.url, &body) {
            Ok(_) => Ok(Some(true)),
            Err(error) => {
                failures.push(format!("{error:#}"));
                Ok((patience != Patience::AskAgain).then_some(false))
            }
        };
        let answered = http::until("an answer", RETRY_BOUND, &mut once).unwrap_or(false);
        if let Ok(mut served) = served.lock() {
            served.answered += usize::from(answered);
            served.failures.append(&mut failures);
        }
    }
}

/// Asks for one completion; its answer and its body.
pub fn completion(agent: &ureq::Agent, url: &str, body: &Value) -> Result<(Answer, Value)> {
    let answer = http::post(agent, url, body)?;
    let json = answer.json()?;
    let finished = json["choices"][0]["finish_reason"] == "length";
    ensure!(finished, "not finished by length: {}", answer.text);
    Ok((answer, json))
}

/// What the engine says of its hits.
pub fn reported(body: &Value) -> Result<u64> {
    let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
    let cached = cached.as_u64();
    cached.with_context(|| format!("no cached_tokens in {}", body["usage"]))
}

/// What the router predicted, from its plan's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predicted {
    /// What it rests on.
    pub basis: String,
    /// Tokens that are there.
    pub known: u64,
    /// Further tokens that may be there.
    pub likely: u64,
}

impl Predicted {
    /// Reads `… cached_tokens=64 likely_tokens=0 basis=exact`.
    pub fn read(plan: Option<&str>) -> Result<Self> {
        let plan = plan.context("an answer without its plan")?;
        let word = |name: &str| {
            let mut words = plan.split(' ').filter_map(|word| word.split_once('='));
            let found = words.find(|(key, _)| *key == name).map(|(_, value)| value);
            found.with_context(|| format!("a plan without {name}: {plan}"))
        };
        Ok(Self {
            basis: word("basis")?.to_owned(),
            known: word("cached_tokens")?.parse()?,
            likely: word("likely_tokens")?.parse()?,
        })
    }
}

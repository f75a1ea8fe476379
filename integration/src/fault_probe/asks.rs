//! What is asked, and what an engine says to it that is asked alone.

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::seat::{BLOCK, PREFILL_BLOCKS};
use super::stand::TOKEN;
use crate::real::http;

/// Tokens of the tiny model that are no special ones.
const TOKENS: std::ops::Range<u32> = 5..1024;

/// Prompt tokens of most requests.
const SHORT: usize = 5 * BLOCK + 7;

/// Blocks that such a prompt takes.
pub const USUAL_BLOCKS: usize = SHORT.div_ceil(BLOCK);

/// Prompt tokens of a request that takes the prefill engine a dozen steps.
const LONG: usize = 43 * BLOCK + 7;

/// Prompt tokens that SGLang's prefill engine has no room for; its decode engine has.
const TOO_LONG: usize = (PREFILL_BLOCKS + 10) * BLOCK;

/// Prompt tokens that its second decode engine has no room for; everybody else has.
const RATHER_LONG: usize = 70 * BLOCK;

/// Tokens of a usual answer.
const FEW: u32 = 12;

/// Tokens of an answer that takes long enough to do something meanwhile.
const MANY: u32 = 400;

/// A greedy completion. No two have a block in common.
#[derive(Debug, Clone)]
pub struct Ask {
    prompt: Vec<u32>,
    max_tokens: u32,
    /// Whether the answer comes piece by piece.
    pub stream: bool,
}

impl Ask {
    /// The request's body.
    pub fn body(&self, model: &str) -> Value {
        json!({
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": true,
            "temperature": 0,
            "stream": self.stream,
        })
    }

    /// What an engine says to it whole that computes all of it by itself: nobody else uses the salt.
    pub fn answer_alone(&self, engine: &str, model: &str, salt: &str) -> Result<String> {
        let mut body = self.whole(model);
        body["cache_salt"] = salt.into();
        let url = format!("{engine}/v1/completions");
        text(&http::post(&http::agent(), &url, &body)?)
    }

    /// What a worker says to it whole that may use all that its engine has cached.
    pub fn answer_of(&self, router: &str, model: &str, worker: &str) -> Result<String> {
        let request = http::agent()
            .post(format!("{router}/v1/completions"))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("baton-route", format!("local={worker}"));
        let answer = request.send(self.whole(model).to_string())?;
        text(&http::read(answer)?)
    }

    fn whole(&self, model: &str) -> Value {
        let mut body = self.body(model);
        body["stream"] = false.into();
        body
    }
}

fn text(answer: &http::Answer) -> Result<String> {
    let json = answer.json()?;
    let text = json["choices"][0]["text"].as_str();
    Ok(text.context("an answer without a text")?.to_owned())
}

/// A seeded stream of requests.
#[derive(Debug)]
pub struct Workload(StdRng);

impl Workload {
    /// The same seed asks the same things.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A short prompt and a short answer.
    pub fn usual(&mut self, stream: bool) -> Ask {
        self.ask(SHORT, FEW, stream)
    }

    /// A prompt that takes long.
    pub fn long_prompt(&mut self, stream: bool) -> Ask {
        self.ask(LONG, FEW, stream)
    }

    /// An answer that takes long.
    pub fn long_answer(&mut self, stream: bool) -> Ask {
        self.ask(SHORT, MANY, stream)
    }

    /// A prompt that the prefill engine refuses, and the decode engine would not.
    pub fn too_long(&mut self, stream: bool) -> Ask {
        self.ask(TOO_LONG, FEW, stream)
    }

    /// A prompt that the second decode engine refuses, and the prefill engine does not.
    pub fn rather_long(&mut self, stream: bool) -> Ask {
        self.ask(RATHER_LONG, FEW, stream)
    }

    fn ask(&mut self, prompt: usize, max_tokens: u32, stream: bool) -> Ask {
        let prompt = (0..prompt).map(|_| self.0.random_range(TOKENS)).collect();
        Ask {
            prompt,
            max_tokens,
            stream,
        }
    }
}

//! Whether a real engine makes the very tokens that its files give here, of random texts and chats; and whether sessions
//! through the router find the cache that was predicted for them.
//!
//! Prints a line for each thing that held, and fails at the first that does not.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_daemon::http::{Client, ClientLimits, full, read_limited};
use baton_integration::page::Page;
use baton_tokens::{Chat, Limits, Model, ModelFiles};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Compares an engine's tokens with those that its files give, and predicted cache hits with reported ones.
#[derive(Debug, Parser)]
struct Args {
    /// Base URL of the engine.
    #[arg(long)]
    engine: String,
    /// Base URL of the router.
    #[arg(long)]
    router: String,
    /// Directory of the engine's model.
    #[arg(long, value_name = "DIR")]
    model_dir: PathBuf,
    /// Name under which it is served.
    #[arg(long)]
    model: String,
    /// Texts and chats to compare.
    #[arg(long, default_value_t = 300)]
    chats: usize,
    /// Sessions of four turns through the router.
    #[arg(long, default_value_t = 8)]
    sessions: usize,
    /// The same seed asks the same things.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Turns of a session.
const TURNS: usize = 4;

/// What texts are put together from.
const PIECES: [&str; 24] = [
    "prefill",
    "decode",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "na\u{ef}ve",
    "cafe\u{301}",
    "\u{4e2d}\u{6587}",
    "\u{1f469}\u{200d}\u{1f467}",
    "0123456789",
    "3.14",
    "<|im_start|>",
    "<|im_end|>",
    "{{ x }}",
    "{% if %}",
    "\\n",
    "\"quoted\"",
    "</s>",
    "don't",
    "\u{200b}",
    "KV-cache",
    "\u{e9}\u{e8}",
];

struct Probe {
    args: Args,
    client: Client,
    tokenizer: Model,
}

#[tokio::main]
async fn main() -> ExitCode {
    match probe().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn probe() -> Result<()> {
    let args = Args::parse();
    let limits = ClientLimits {
        connect: Duration::from_secs(2),
        idle: Duration::from_secs(10),
    };
    let probe = Probe {
        tokenizer: tokenizer(&args)?,
        client: Client::new(limits),
        args,
    };
    let mut random = StdRng::seed_from_u64(probe.args.seed);
    let compared = probe.parity(&mut random).await?;
    println!("{compared} random texts and chats become the very same tokens");
    probe.sessions(&mut random).await
}

fn tokenizer(args: &Args) -> Result<Model> {
    let read = |name: &str| std::fs::read(args.model_dir.join(name)).map(Bytes::from);
    let template = read("chat_template.jinja").ok();
    let files = ModelFiles {
        tokenizer: read("tokenizer.json").context("there is no tokenizer.json")?,
        tokenizer_config: read("tokenizer_config.json").ok(),
        special_tokens_map: read("special_tokens_map.json").ok(),
        config: read("config.json").ok(),
        chat_template: template.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        ..ModelFiles::default()
    };
    Ok(Model::load(&files, Limits::default())?)
}

/// A text of so many pieces.
fn text(random: &mut StdRng, pieces: usize) -> String {
    (0..pieces)
        .filter_map(|_| PIECES.choose(random).copied())
        .collect()
}

fn content(random: &mut StdRng) -> Value {
    let pieces = random.random_range(1..40);
    if random.random_bool(0.2) {
        let half = pieces / 2 + 1;
        return json!([
            {"type": "text", "text": text(random, half)},
            {"type": "text", "text": text(random, half)},
        ]);
    }
    json!(text(random, pieces))
}

/// A chat as clients send them.
fn chat(random: &mut StdRng, model: &str) -> Value {
    let mut messages = Vec::new();
    if random.random_bool(0.5) {
        messages.push(json!({"role": "system", "content": content(random)}));
    }
    for _ in 0..random.random_range(0..4) {
        messages.push(json!({"role": "user", "content": content(random)}));
        messages.push(json!({"role": "assistant", "content": content(random)}));
    }
    messages.push(json!({"role": "user", "content": content(random)}));
    let mut chat = json!({"model": model, "messages": messages});
    if random.random_bool(0.2) {
        chat["add_generation_prompt"] = json!(false);
    }
    if random.random_bool(0.1) {
        chat["add_special_tokens"] = json!(true);
    }
    if random.random_bool(0.2) {
        chat["chat_template_kwargs"] = json!({"enable_thinking": random.random_bool(0.5)});
    }
    if random.random_bool(0.2) {
        chat["tools"] = json!([{"type": "function", "function": {
            "name": "time", "parameters": {"type": "object", "properties": {}},
        }}]);
    }
    chat
}

impl Probe {
    /// How many of the random requests were compared; all of them are equal.
    async fn parity(&self, random: &mut StdRng) -> Result<usize> {
        for turn in 0..self.args.chats {
            let is_chat = turn % 3 != 0;
            let body = if is_chat {
                chat(random, &self.args.model)
            } else {
                json!({"model": self.args.model, "prompt": text(random, 30), "add_special_tokens": random.random_bool(0.5)})
            };
            let text = body.to_string();
            let ours = if is_chat {
                self.tokenizer.chat(&Chat::from(text.as_bytes()))?.tokens
            } else {
                let mut prompts = self.tokenizer.completions(text.as_bytes())?;
                prompts.pop().unwrap_or_default()
            };
            let answer = self.post(&self.args.engine, "/tokenize", &body).await?;
            let theirs: Vec<u32> = serde_json::from_value(answer["tokens"].clone())?;
            ensure!(
                ours == theirs,
                "{text} becomes {theirs:?} there and {ours:?} here"
            );
        }
        Ok(self.args.chats)
    }

    /// Sessions of a few turns: what was predicted to be cached is what the engines report.
    async fn sessions(&self, random: &mut StdRng) -> Result<()> {
        let before = self.page().await?;
        for _ in 0..self.args.sessions {
            let mut messages = vec![json!({"role": "system", "content": text(random, 60)})];
            for _ in 0..TURNS {
                messages.push(json!({"role": "user", "content": text(random, 20)}));
                let body = json!({
                    "model": self.args.model, "messages": messages, "max_tokens": 8, "temperature": 0,
                });
                let answer = self
                    .post(&self.args.router, "/v1/chat/completions", &body)
                    .await?;
                let content = answer["choices"][0]["message"]["content"].clone();
                messages.push(json!({"role": "assistant", "content": content}));
                // Events of this turn are there before the next one is planned.
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }
        let after = self.page().await?;
        let grown = |name: &str, labels: &[(&str, &str)]| {
            after.sum(name, labels) - before.sum(name, labels)
        };
        let turns = i64::try_from(self.args.sessions * TURNS)?;
        let tokenised = grown("baton_router_prompts_total", &[("known", "tokenised")]);
        ensure!(
            tokenised == turns,
            "{tokenised} of {turns} chats were tokenised by the router"
        );
        println!("{turns} turns of sessions were tokenised by the router");
        let [compared, wrong, predicted, reported] = [
            "compared_requests",
            "mispredicted_requests",
            "predicted",
            "reported",
        ]
        .map(|name| grown(&format!("baton_router_cached_tokens_{name}_total"), &[]));
        ensure!(
            compared * 2 >= turns,
            "only {compared} of {turns} turns could be compared"
        );
        ensure!(
            wrong == 0,
            "{wrong} of {compared} turns found another cache than predicted"
        );
        ensure!(predicted > 0, "nothing was ever cached");
        println!(
            "{compared} turns found the cache that was predicted: {predicted} tokens predicted, {reported} reported"
        );
        let different = after.sum(
            "baton_router_tokenizer_comparisons_total",
            &[("outcome", "different")],
        );
        let equal = after.sum(
            "baton_router_tokenizer_comparisons_total",
            &[("outcome", "equal")],
        );
        ensure!(
            different == 0 && equal > 0,
            "comparisons: {equal} equal, {different} different"
        );
        println!("{equal} comparisons of the router with engines were equal");
        Ok(())
    }

    async fn page(&self) -> Result<Page> {
        let text = self.ask(Method::GET, &self.args.router, "/metrics", String::new());
        Ok(Page::new(text.await?))
    }

    async fn post(&self, base: &str, path: &str, body: &Value) -> Result<Value> {
        let answer = self.ask(Method::POST, base, path, body.to_string()).await?;
        serde_json::from_str(&answer).with_context(|| format!("{path} answered {answer}"))
    }

    async fn ask(&self, method: Method, base: &str, path: &str, body: String) -> Result<String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", base.trim_end_matches('/')))
            .header("content-type", "application/json")
            .body(full(body))?;
        let response = self
            .client
            .send(request, PATIENCE)
            .await
            .map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
        let status = response.status();
        let bytes = read_limited(response.into_body(), 16 << 20, PATIENCE).await;
        let bytes = bytes.map_err(|bad| anyhow::anyhow!("{path}: the answer {bad}"))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        ensure!(status.is_success(), "{path} answered {status}: {text}");
        Ok(text)
    }
}

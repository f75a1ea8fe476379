//! What differs between engines for a probe that starts them, whatever it then does.

use anyhow::{Context, Result};
use serde_json::Value;

use super::http;
use crate::page::Page;

/// Which engine a probe works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// What an engine tells of what it is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Doing {
    /// How much of its KV cache requests use: a share, or tokens.
    pub usage: f64,
    /// Requests that run.
    pub running: f64,
    /// Requests that wait, for whatever.
    pub waiting: f64,
    /// Prefilled requests whose lease ran out, as far as the engine has leases.
    pub expired: f64,
}

impl Doing {
    /// Nothing is held or under way.
    pub fn is_nothing(&self) -> bool {
        self.usage + self.running + self.waiting == 0.0
    }
}

impl Kind {
    /// The sidecar's binary.
    pub fn sidecar(self) -> &'static str {
        match self {
            Self::Vllm => "baton-sidecar-vllm",
            Self::Sglang => "baton-sidecar-sglang",
        }
    }

    /// Whether the engine serves. SGLang's `/health` asks it for a token.
    pub fn serves(self, engine: &str) -> bool {
        let path = match self {
            Self::Vllm => "health",
            Self::Sglang => "ready",
        };
        http::get(&format!("{engine}/{path}"), None).is_ok_and(|answer| answer.status == 200)
    }

    /// What the engine is doing.
    pub fn doing(self, engine: &str) -> Result<Doing> {
        match self {
            Self::Vllm => vllm(engine),
            Self::Sglang => sglang(engine),
        }
    }
}

fn vllm(engine: &str) -> Result<Doing> {
    let page = Page::new(http::get(&format!("{engine}/metrics"), None)?.text);
    let value = |name: &str| {
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let mut lines = page.text().lines();
        let value = lines.find(of_name).and_then(|line| line.rsplit(' ').next());
        let value = value.with_context(|| format!("{engine} does not tell {name}"))?;
        value
            .parse::<f64>()
            .with_context(|| format!("{name} is {value}"))
    };
    Ok(Doing {
        usage: value("vllm:kv_cache_usage_perc")?,
        running: value("vllm:num_requests_running")?,
        waiting: value("vllm:num_requests_waiting")?,
        // Engines without a connector have no such counter.
        expired: value("vllm:nixl_num_kv_expired_reqs_total").unwrap_or(0.0),
    })
}

/// Queues of a disaggregated engine in which requests wait for the other side.
const QUEUES: [&str; 5] = [
    "prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue_reqs",
    "decode_prealloc_queue_reqs",
    "decode_transfer_queue_reqs",
    "decode_retracted_queue_reqs",
];

fn sglang(engine: &str) -> Result<Doing> {
    let told = http::get(&format!("{engine}/v1/loads?include=all"), None)?.json()?;
    let load = told["loads"]
        .get(0)
        .with_context(|| format!("an engine without a load: {told}"))?;
    let number = |of: &Value, name: &str| {
        let number = of[name].as_f64();
        number.with_context(|| format!("{engine} does not tell {name}: {of}"))
    };
    let mut waiting = number(load, "num_waiting_reqs")?;
    let split = &load["disaggregation"];
    if split.is_object() {
        for queue in QUEUES {
            waiting += number(split, queue)?;
        }
    }
    Ok(Doing {
        usage: number(load, "num_used_tokens")?,
        running: number(load, "num_running_reqs")?,
        waiting,
        expired: 0.0,
    })
}

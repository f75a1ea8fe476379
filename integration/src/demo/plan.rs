//! A router's dry run: every plan it considered for a request, and what it predicted of each.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_daemon::http::{Client, full, small_body};
use http::Request;
use serde::Deserialize;

const BOUND: Duration = Duration::from_secs(10);

/// All plans that were possible.
#[derive(Debug, Clone, Deserialize)]
pub struct Explained {
    request: Facts,
    chosen: Option<Candidate>,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Deserialize)]
struct Facts {
    prompt_tokens_estimated: u64,
}

/// One plan.
#[derive(Debug, Clone, Deserialize)]
pub struct Candidate {
    /// `split` or `local`.
    pub plan: String,
    /// Predicted time to the first token.
    pub seconds: Parts,
}

/// A predicted time by its parts, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Parts {
    /// All parts.
    pub total: f64,
    /// Waiting for prompts that came before.
    pub waiting: f64,
    /// Computing the prompt.
    pub prefill: f64,
    /// Moving the KV.
    pub transfer: f64,
    /// Waiting for a step, and what sequences that decode there lose.
    pub decode: f64,
}

impl Explained {
    /// Length of the prompt in tokens, as the router estimates it.
    pub fn prompt_tokens(&self) -> u64 {
        self.request.prompt_tokens_estimated
    }

    /// The cheapest plan.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.chosen.as_ref()
    }

    /// The best plan of the kind that was not chosen.
    pub fn other(&self) -> Option<&Candidate> {
        let chosen = self.chosen()?;
        // The router lists them with the cheapest first.
        self.candidates
            .iter()
            .find(|candidate| candidate.plan != chosen.plan)
    }
}

impl Parts {
    /// Its parts by name, in the order in which they happen.
    pub fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("waiting", self.waiting),
            ("prefill", self.prefill),
            ("transfer", self.transfer),
            ("decode", self.decode),
        ]
    }

    /// Mean of several.
    pub fn mean(all: &[Self]) -> Self {
        let count = f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX)).max(1.0);
        let mean = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / count;
        Self {
            total: mean(|parts| parts.total),
            waiting: mean(|parts| parts.waiting),
            prefill: mean(|parts| parts.prefill),
            transfer: mean(|parts| parts.transfer),
            decode: mean(|parts| parts.decode),
        }
    }
}

/// Asks a router how it would serve this request now.
pub async fn explain(client: &Client, router: &str, body: String) -> Result<Explained> {
    let request = Request::post(format!("{router}/v1/plan")).body(full(body))?;
    let response = client.send(request, BOUND).await?;
    let status = response.status();
    let body = small_body(response.into_body()).await;
    ensure!(status == 200, "a dry run was answered with {status}");
    serde_json::from_slice(&body).context("a dry run gave unexpected JSON")
}

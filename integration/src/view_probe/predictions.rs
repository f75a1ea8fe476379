//! What the router predicts to be cached against what the engine reports, one request at a time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::load::{self, Ask, Predicted};
use super::look;
use super::quiet::Known;
use crate::real::http;

/// The events of a request are known, and it is expected no longer, within this.
const BOUND: Duration = Duration::from_secs(20);

/// What the probes of one quiet point found.
#[derive(Debug, Default)]
pub struct Found {
    /// Probes that were answered.
    pub probes: u64,
    /// Tokens that were predicted.
    pub predicted: u64,
    /// Tokens that the engine reported.
    pub reported: u64,
    /// Predictions that were wrong.
    pub wrong: Vec<String>,
}

/// Asks for one completion of which everything before it is known, and compares.
pub fn probe(router: &str, model: &str, ask: &Ask, known: Known, found: &mut Found) -> Result<()> {
    let body = ask.body(model);
    let basis = match known {
        Known::Exactly => "exact",
        Known::InPart => "uncertain",
    };
    let planned = planned(router, &body, basis)?;
    let url = format!("{router}/v1/completions");
    let (answer, json) = load::completion(&http::agent(), &url, &body)?;
    let predicted = Predicted::read(answer.plan.as_deref())?;
    ensure!(
        predicted.basis == basis,
        "the plan rests on {}",
        predicted.basis
    );
    let reported = load::reported(&json)?;
    let tokens = predicted.known + predicted.likely;
    let right = match known {
        Known::Exactly => tokens == reported && predicted.likely == 0 && planned == tokens,
        // The view is a part of what is there, so the engine finds at least as much.
        Known::InPart => tokens <= reported && predicted.known == 0,
    };
    if !right {
        found.wrong.push(format!(
            "planned {planned}, predicted {predicted:?}, reported {reported}"
        ));
    }
    found.probes += 1;
    found.predicted += tokens;
    found.reported += reported;
    Ok(())
}

/// The dry run's number, once it rests on what it should.
fn planned(router: &str, body: &Value, basis: &str) -> Result<u64> {
    let url = format!("{router}/v1/plan");
    let agent = http::agent();
    let what = format!("a prediction that is {basis}");
    http::until(&what, BOUND, || {
        let plan = http::post(&agent, &url, body)?.json()?;
        let candidates = plan["candidates"].as_array().context("no candidates")?;
        let cached = candidates
            .first()
            .map(|candidate| &candidate["cached"])
            .and_then(Value::as_object);
        let mut of_workers = cached.into_iter().flat_map(|cached| cached.values());
        let of_worker = of_workers.find(|cached| cached["basis"] == basis);
        let sum =
            |cached: &Value| Some(cached["tokens"].as_u64()? + cached["likely_tokens"].as_u64()?);
        Ok(of_worker.and_then(sum))
    })
}

/// The router's own comparison: requests, and those that were mispredicted.
pub fn compared(router: &str) -> Result<[i64; 2]> {
    let page = look::metrics(router)?;
    let all = ["compared_requests", "mispredicted_requests"];
    Ok(all.map(|name| page.sum(&format!("baton_router_cached_tokens_{name}_total"), &[])))
}

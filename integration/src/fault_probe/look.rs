//! What router, sidecars and engines tell of themselves.

use anyhow::{Context, Result, ensure};

use crate::page::Page;
use crate::real::http;
pub use crate::view_probe::look::is_ready;

/// A page of metrics.
pub fn page(base: &str) -> Result<Page> {
    let answer = http::get(&format!("{base}/metrics"), None)?;
    ensure!(
        answer.status == 200,
        "{base}/metrics was answered with {}",
        answer.status
    );
    Ok(Page::new(answer.text))
}

/// How many tickets a prefill sidecar has in a state.
pub fn tickets(sidecar: &str, state: &str) -> Result<i64> {
    Ok(page(sidecar)?.sum("baton_sidecar_tickets", &[("state", state)]))
}

/// How many legs of a stage are in a sidecar's engine.
pub fn in_flight(sidecar: &str, stage: &str) -> Result<i64> {
    Ok(page(sidecar)?.sum("baton_sidecar_in_flight", &[("stage", stage)]))
}

/// What an engine tells of what it is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Engine {
    /// Share of its blocks that are in use.
    pub usage: f64,
    /// Requests that run.
    pub running: f64,
    /// Requests that wait.
    pub waiting: f64,
    /// Prefilled requests whose lease ran out.
    pub expired: f64,
}

/// `GET /metrics` of an engine.
pub fn engine(base: &str) -> Result<Engine> {
    let page = page(base)?;
    let value = |name: &str| {
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let mut lines = page.text().lines();
        let value = lines.find(of_name).and_then(|line| line.rsplit(' ').next());
        let value = value.with_context(|| format!("{base} does not tell {name}"))?;
        value
            .parse::<f64>()
            .with_context(|| format!("{name} is {value}"))
    };
    // Engines without a connector have no such counter.
    let expired = value("vllm:nixl_num_kv_expired_reqs_total").unwrap_or(0.0);
    Ok(Engine {
        usage: value("vllm:kv_cache_usage_perc")?,
        running: value("vllm:num_requests_running")?,
        waiting: value("vllm:num_requests_waiting")?,
        expired,
    })
}

/// What the router has counted of attempts that went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    /// Those that failed, for whatever reason.
    pub failed: i64,
    /// Answers that were withheld because their KV was not to be trusted.
    pub withheld: i64,
}

/// `GET /metrics` of a router.
pub fn attempts(router: &str) -> Result<Attempts> {
    let page = page(router)?;
    let sum = |name: &str| page.sum(&format!("baton_router_{name}_total"), &[]);
    Ok(Attempts {
        failed: sum("failures"),
        withheld: sum("unsettled"),
    })
}

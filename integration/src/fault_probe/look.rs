//! What router, sidecars and engines tell of themselves.

use anyhow::{Result, ensure};

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

/// How often a decode sidecar has quarantined its engine's cache.
pub fn quarantines(sidecar: &str) -> Result<i64> {
    Ok(page(sidecar)?.sum("baton_sidecar_quarantines_total", &[]))
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

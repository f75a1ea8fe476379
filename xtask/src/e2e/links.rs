//! The way between the hosts of two workers is measured over the fabric of their engines, before any of them uses it.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::client::{Check, Outcome};
use crate::cluster::{ROUTER, TOKEN};
use crate::http;

/// Pairs are measured one after the other, soon after their workers have joined.
const BOUND: Duration = Duration::from_secs(60);

/// Every pair that can hand over has a link that was measured. To be asked before the first request.
pub(super) fn look() -> Outcome {
    let mut outcome = Outcome::default();
    let all = http::wait_for("links are measured", BOUND, || {
        let pairs = usable_pairs()?;
        let whole = !pairs.is_empty() && pairs.iter().all(is_measured);
        Ok(whole.then_some(pairs))
    });
    outcome.checks.push(Check {
        name: "links are measured before they are used".to_owned(),
        ok: all.is_ok(),
        detail: match all {
            Ok(pairs) => pairs.iter().map(shown).collect::<Vec<_>>().join("; "),
            Err(error) => format!("{error:#}"),
        },
    });
    outcome
}

fn usable_pairs() -> Result<Vec<Value>> {
    let fleet: Value = http::get_json(&format!("{ROUTER}/fleet"), Some(TOKEN))?;
    let pairs = fleet["pairs"].as_array().cloned().unwrap_or_default();
    let usable = pairs.into_iter().filter(|pair| pair["obstacle"].is_null());
    Ok(usable.collect())
}

fn is_measured(pair: &Value) -> bool {
    pair["link"]["measured"]
        .as_u64()
        .is_some_and(|times| times > 0)
}

fn shown(pair: &Value) -> String {
    format!(
        "{} to {}: {} bytes/s, {} s",
        pair["prefill"],
        pair["decode"],
        pair["link"]["bytes_per_second"],
        pair["link"]["latency_seconds"]
    )
}

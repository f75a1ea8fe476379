//! What is printed at the end.

use std::fmt::Write;
use std::time::Duration;

use super::Runs;
use super::answer::Answer;
use super::figures::{answers, equal_texts, first_tokens, gaps, percentile};
use super::load::Outcome;
use super::table::Table;
use super::why::{self, milliseconds};
use super::workload::Kind;

/// The report, and what does not hold.
pub struct Report {
    /// Text for a terminal.
    pub text: String,
    /// One sentence for each thing that should hold and does not.
    pub broken: Vec<String>,
}

impl Report {
    /// Of all runs.
    pub fn new(runs: &Runs) -> Self {
        let broken = broken(runs);
        let sections = [
            (
                "Plans: the router predicts the time to the first token of every plan and takes the shortest (means)",
                plans(runs),
            ),
            (
                "Latency in ms, prefill and decode apart (2 + 2 engines) against aggregated (4 engines)",
                latency(runs),
            ),
            ("KV moved from engine to engine", moved(runs)),
            ("Prompt tokens found in caches", caches(runs)),
            (
                "Workers that come and go under the same load",
                disturbed(runs),
            ),
            ("Failures seen by the client", failures(runs)),
        ];
        let mut text = String::new();
        for (title, section) in sections {
            let _ = write!(text, "\n{title}\n{section}");
        }
        Self { text, broken }
    }
}

fn plans(runs: &Runs) -> String {
    let outcomes = &runs.apart.outcomes;
    let planned = outcomes.iter().filter_map(|outcome| {
        let chosen = outcome.explained.as_ref()?.chosen()?;
        let answer = outcome.answer.as_ref().ok()?;
        Some((chosen.plan == "split") == answer.is_split())
    });
    let as_planned: Vec<bool> = planned.collect();
    let held = as_planned.iter().filter(|held| **held).count();
    format!(
        "{}{}  {held} of {} requests were served by the plan that the dry run just before had shown\n",
        why::plans(outcomes),
        why::examples(outcomes),
        as_planned.len()
    )
}

fn latency(runs: &Runs) -> String {
    let mut table = Table::new([
        "request",
        "",
        "apart p50",
        "p90",
        "p99",
        "aggregated p50",
        "p90",
        "p99",
    ]);
    for kind in Kind::ALL {
        table.row(latencies(runs, kind, "TTFT", first_tokens));
    }
    for kind in Kind::ALL {
        table.row(latencies(runs, kind, "ITL", gaps));
    }
    table.to_string()
}

fn latencies(
    runs: &Runs,
    kind: Kind,
    name: &str,
    times: fn(&[Outcome], Kind) -> Vec<Duration>,
) -> Vec<String> {
    let mut row = vec![kind.name().to_owned(), name.to_owned()];
    for run in [&runs.apart, &runs.aggregated] {
        let times = times(&run.outcomes, kind);
        let figure = |percent| milliseconds(percentile(&times, percent).as_secs_f64());
        row.extend([50, 90, 99].map(figure));
    }
    row
}

fn moved(runs: &Runs) -> String {
    let run = &runs.apart;
    let transfers = run.engines.sum("vllm:nixl_bytes_transferred_count", "");
    let bytes = run.engines.sum("vllm:nixl_bytes_transferred_sum", "");
    let told: u64 = answers(&run.outcomes, None).map(Answer::kv_bytes).sum();
    let split = answers(&run.outcomes, None)
        .filter(|answer| answer.is_split())
        .count();
    format!(
        "  engines: {:.1} MiB in {transfers:.0} transfers, {:.0} tokens; the router counted {:.1} MiB for {split} split requests\n",
        bytes / MIB,
        run.engines
            .sum(BY_SOURCE, "source=\"external_kv_transfer\""),
        count(told) / MIB,
    )
}

const MIB: f64 = 1024.0 * 1024.0;
const BY_SOURCE: &str = "vllm:prompt_tokens_by_source_total";

fn caches(runs: &Runs) -> String {
    let mut text =
        "  predicted: none, for the router has no view of caches yet and plans without\n"
            .to_owned();
    for (name, run) in [("apart", &runs.apart), ("aggregated", &runs.aggregated)] {
        let cached: u64 = answers(&run.outcomes, None)
            .map(|answer| answer.cached_tokens)
            .sum();
        let prompts: u64 = answers(&run.outcomes, None)
            .map(|answer| answer.prompt_tokens)
            .sum();
        let _ = writeln!(
            text,
            "  {name}: {cached} of {prompts} prompt tokens ({:.0} %) by the answers' usage; engines found {:.0} in their prefix caches and computed {:.0}",
            100.0 * count(cached) / count(prompts).max(1.0),
            run.engines.sum("vllm:prefix_cache_hits_total", ""),
            run.engines.sum(BY_SOURCE, "source=\"local_compute\""),
        );
    }
    text
}

fn disturbed(runs: &Runs) -> String {
    let mut text = String::new();
    for event in &runs.events {
        let _ = writeln!(text, "  {event}");
    }
    let failed = runs
        .disturbed
        .router
        .raised_since("baton_router_failures_total", &runs.apart.router);
    let attempts: Vec<String> = failed
        .iter()
        .map(|(labels, times)| format!("{times:.0} ({labels})"))
        .collect();
    if attempts.is_empty() {
        text.push_str("  no attempt inside the fleet failed\n");
    } else {
        let attempts = attempts.join(", ");
        let _ = writeln!(text, "  attempts that failed inside the fleet: {attempts}");
    }
    text
}

fn failures(runs: &Runs) -> String {
    let mut text = String::new();
    for (name, outcomes) in runs.named() {
        let failed = outcomes.len() - answers(outcomes, None).count();
        let _ = writeln!(text, "  {name}: {failed} of {}", runs.requests);
    }
    for (name, outcomes) in runs.compared() {
        let (equal, both) = equal_texts(outcomes, &runs.aggregated.outcomes);
        let _ = writeln!(
            text,
            "  {name}: {equal} of {both} texts equal those of the aggregated engines"
        );
    }
    text
}

fn broken(runs: &Runs) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, outcomes) in runs.named() {
        for outcome in outcomes {
            if let Err(why) = &outcome.answer {
                let (conversation, turn) = outcome.at;
                broken.push(format!(
                    "{name}: conversation {conversation}, turn {turn} failed: {why}"
                ));
            }
        }
        let unsent = runs.requests - outcomes.len();
        if unsent > 0 {
            broken.push(format!(
                "{name}: {unsent} requests could not be sent after a failed turn"
            ));
        }
    }
    for (name, outcomes) in runs.compared() {
        let (equal, both) = equal_texts(outcomes, &runs.aggregated.outcomes);
        if equal < both {
            let different = both - equal;
            broken.push(format!(
                "{name}: {different} texts differ from those of the aggregated engines"
            ));
        }
    }
    broken
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(number: u64) -> f64 {
    number as f64
}

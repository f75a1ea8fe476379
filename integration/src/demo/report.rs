//! What is printed at the end.

use std::fmt::Write;
use std::time::Duration;

use super::answer::Answer;
use super::engine::Engines;
use super::figures::{answers, equal_texts, first_tokens, gaps, percentile};
use super::table::Table;
use super::why::{self, milliseconds};
use super::workload::Kind;
use super::{Run, Runs};

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
        let each = runs.engines.of_each_role();
        let latencies = format!(
            "Latency in ms, prefill and decode apart ({each} + {each} engines) against aggregated ({} engines)",
            2 * each
        );
        let sections: [(&str, String); 6] = [
            (
                "Plans: the router predicts the time to the first token of every plan and takes the shortest (means)",
                plans(runs),
            ),
            (&latencies, latency(runs)),
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
        "{}{PARTS}{}  {held} of {} requests were served by the kind of plan that a dry run just before had shown\n",
        why::plans(outcomes),
        why::examples(outcomes),
        as_planned.len()
    )
}

const PARTS: &str = "  waiting: prompts that came before; prefill: computing the prompt; transfer: moving its KV; decode: waiting \
    for a step, and\n  with a local plan what sequences that decode there are held up by the prefill\n";

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
    let row = |name: &str, what: &str, times: &dyn Fn(&Run) -> Vec<Duration>| {
        let mut row = vec![name.to_owned(), what.to_owned()];
        for run in [&runs.apart, &runs.aggregated] {
            let times = times(run);
            let figure = |percent| milliseconds(percentile(&times, percent).as_secs_f64());
            row.extend([50, 90, 99].map(figure));
        }
        row
    };
    for kind in Kind::ALL {
        table.row(row(kind.name(), "TTFT", &|run| {
            first_tokens(&run.outcomes, kind)
        }));
    }
    for kind in Kind::ALL {
        table.row(row(kind.name(), "ITL", &|run| gaps(&run.outcomes, kind)));
    }
    table.row(row("this machine", "timers late", &|run| run.late.clone()));
    table.to_string()
}

fn moved(runs: &Runs) -> String {
    let run = &runs.apart;
    let told: u64 = answers(&run.outcomes, None).map(Answer::kv_bytes).sum();
    let split = answers(&run.outcomes, None)
        .filter(|answer| answer.is_split())
        .count();
    if runs.engines != Engines::Vllm {
        return match told {
            0 => format!("  for {split} split requests; these engines do not say how much\n"),
            _ => format!(
                "  {:.1} MiB were offered for {split} split requests, by engines that say how much\n",
                count(told) / MIB
            ),
        };
    }
    let transfers = run.engines.sum("vllm:nixl_bytes_transferred_count", "");
    let bytes = run.engines.sum("vllm:nixl_bytes_transferred_sum", "");
    format!(
        "  {:.1} MiB in {transfers:.0} transfers, of {:.1} MiB that were offered for {split} split requests: decode engines \
        had the rest in their caches\n",
        bytes / MIB,
        count(told) / MIB,
    )
}

const MIB: f64 = 1024.0 * 1024.0;

fn caches(runs: &Runs) -> String {
    let told = runs.engines == Engines::Vllm;
    let mut head = vec!["engines", "prompt tokens", "cached (usage of answers)"];
    if told {
        head.extend(["cached (engines)", "pulled from others", "computed"]);
    }
    let shown = head.len() - 1;
    let mut table = Table::new(head);
    for (name, run) in [("apart", &runs.apart), ("aggregated", &runs.aggregated)] {
        let sum = |tokens: fn(&Answer) -> u64| answers(&run.outcomes, None).map(tokens).sum();
        let source = |source: &str| {
            run.engines
                .sum("vllm:prompt_tokens_by_source_total", source)
        };
        let figures = [
            count(sum(|answer| answer.prompt_tokens)),
            count(sum(|answer| answer.cached_tokens)),
            run.engines.sum("vllm:prefix_cache_hits_total", ""),
            source("source=\"external_kv_transfer\""),
            source("source=\"local_compute\""),
        ];
        let figures = figures[..shown].iter();
        let figures = figures.map(|tokens| format!("{tokens:.0}"));
        table.row(std::iter::once(name.to_owned()).chain(figures));
    }
    format!(
        "{table}  a split prompt counts on both of its engines; the usage of its answer is the prefill engine's\n  \
        predicted: none, for these prompts are texts, and the emulated engines have no tokenizer files\n"
    )
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

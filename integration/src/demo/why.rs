//! Why the router planned as it did, in its own predictions.

use std::fmt::Write;

use super::load::Outcome;
use super::plan::Parts;
use super::table::Table;
use super::workload::Kind;

/// How many requests of each kind got which plan, and what was predicted of it and of the best plan of the other kind.
pub fn plans(outcomes: &[Outcome]) -> String {
    let mut table = Table::new([
        "request",
        "plan",
        "requests",
        "predicted ms",
        "other plan ms",
        "because, against the other plan",
    ]);
    for kind in Kind::ALL {
        for plan in ["split", "local"] {
            let predictions = predictions(outcomes, kind, plan);
            let (chosen, other): (Vec<Parts>, Vec<Parts>) = predictions.into_iter().unzip();
            if chosen.is_empty() {
                continue;
            }
            let (mean, other) = (Parts::mean(&chosen), Parts::mean(&other));
            table.row([
                kind.name().to_owned(),
                plan.to_owned(),
                chosen.len().to_string(),
                milliseconds(mean.total),
                milliseconds(other.total),
                because(&mean, &other),
            ]);
        }
    }
    table.to_string()
}

/// Predictions for the requests of a kind that were planned so: of the plan, and of the best of the other kind.
fn predictions(outcomes: &[Outcome], kind: Kind, plan: &str) -> Vec<(Parts, Parts)> {
    let explained = outcomes
        .iter()
        .filter(|outcome| outcome.kind == kind)
        .filter_map(|outcome| outcome.explained.as_ref());
    let planned = explained.filter_map(|explained| {
        let chosen = explained.chosen().filter(|chosen| chosen.plan == plan)?;
        Some((chosen.seconds, explained.other()?.seconds))
    });
    planned.collect()
}

/// What the chosen plan costs less and more than the other one, by part.
fn because(chosen: &Parts, other: &Parts) -> String {
    let pairs = chosen.named().into_iter().zip(other.named());
    let mut differences: Vec<(&str, f64)> = pairs
        .map(|((name, chosen), (_, other))| (name, chosen - other))
        // What is smaller would be shown as 0.
        .filter(|(_, seconds)| seconds.abs() >= 0.000_05)
        .collect();
    differences.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let words: Vec<String> = differences
        .iter()
        .map(|(name, seconds)| format!("{name} {:+.1}", seconds * 1000.0))
        .collect();
    words.join(", ")
}

/// One request of each kind, whole: prediction, plan, and what happened.
pub fn examples(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for kind in Kind::ALL {
        let of_kind = outcomes.iter().filter(|outcome| outcome.kind == kind);
        let as_planned: Vec<_> = of_kind
            .filter_map(|outcome| {
                let explained = outcome.explained.as_ref()?;
                let (chosen, answer) = (explained.chosen()?, outcome.answer.as_ref().ok()?);
                let held = (chosen.plan == "split") == answer.is_split();
                held.then_some((explained, chosen, answer))
            })
            .collect();
        // One from the middle of the load, when every worker had something to do.
        let Some((explained, chosen, answer)) = as_planned.get(as_planned.len() / 2) else {
            continue;
        };
        let parts: Vec<String> = chosen
            .seconds
            .named()
            .iter()
            .map(|(name, seconds)| format!("{name} {}", milliseconds(*seconds)))
            .collect();
        let _ = writeln!(
            text,
            "  e.g. a {}, estimated {} tokens: {}\n       predicted {} ms = {}; seen {} ms",
            kind.name(),
            explained.prompt_tokens(),
            answer.plan,
            milliseconds(chosen.seconds.total),
            parts.join(" + "),
            milliseconds(answer.first_token.as_secs_f64()),
        );
    }
    text
}

/// Seconds as milliseconds with a digit after the point.
pub fn milliseconds(seconds: f64) -> String {
    format!("{:.1}", seconds * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_explained_by_what_differs() {
        let split = Parts {
            total: 0.120,
            waiting: 0.0,
            prefill: 0.1,
            transfer: 0.013,
            decode: 0.007,
        };
        let local = Parts {
            total: 0.150,
            transfer: 0.0,
            decode: 0.05,
            ..split
        };
        assert_eq!(because(&split, &local), "decode -43.0, transfer +13.0");
        assert_eq!(because(&local, &split), "transfer -13.0, decode +43.0");
        assert_eq!(because(&split, &split), "");
    }
}

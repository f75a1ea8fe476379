//! Figures of all rounds, and printing them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::{Finds, HOLDERS, LENGTHS, Measured, Times};
use crate::mirror;

/// One round: Baton's index, its mirrors, and the peers by name.
pub(crate) struct Round {
    pub(crate) baton: Measured,
    pub(crate) mirror: mirror::Measured,
    pub(crate) peers: Vec<(&'static str, Measured)>,
}

/// The peer whose applying and memory is the reference.
pub(crate) const RADIX_TREE: &str = "radix_tree";

/// A line of output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Line {
    Progress { done: u64, total: u64, note: String },
    Figure(Figure),
}

/// A figure: the median of all rounds, and its least and greatest value.
#[derive(Serialize)]
pub(crate) struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    spread: [f64; 2],
    /// The same of `RadixTree`, or of finds: of the best peer.
    reference: f64,
    peers: BTreeMap<&'static str, f64>,
}

pub(crate) fn print(line: &Line) {
    // A line of numbers and names can always be serialised.
    println!("{}", serde_json::to_string(line).unwrap_or_default());
}

/// Prints all figures; `suffix` says which size they are of.
pub(crate) fn print_all(rounds: &[Round], suffix: &str) {
    let each = |figure: Figure| print(&Line::Figure(figure));
    let time = |measured: &Measured| measured.ns_per_block;
    let bytes = |measured: &Measured| measured.bytes_per_block;
    let costs = [
        cost(
            rounds,
            "ns_per_block",
            "ns",
            |round| time(&round.baton) + round.mirror.ns_per_block,
            time,
        ),
        cost(
            rounds,
            "ns_per_block.router",
            "ns",
            |round| time(&round.baton),
            time,
        ),
        cost(
            rounds,
            "ns_per_block.mirror",
            "ns",
            |round| round.mirror.ns_per_block,
            time,
        ),
        cost(
            rounds,
            "bytes_per_block",
            "bytes",
            |round| bytes(&round.baton),
            bytes,
        ),
        cost(
            rounds,
            "bytes_per_block.with_mirror",
            "bytes",
            |round| bytes(&round.baton) + round.mirror.bytes_per_block,
            bytes,
        ),
    ];
    costs
        .into_iter()
        .for_each(|figure| each(named(figure, suffix)));
    for (part, name) in [(0.5, "find_p50_us"), (0.99, "find_p99_us")] {
        each(named(
            find(rounds, name, |finds| &finds.trace, busy, part),
            suffix,
        ));
        let quiet_name = format!("{name}.quiet");
        each(named(
            find(rounds, &quiet_name, |finds| &finds.trace, quiet, part),
            suffix,
        ));
        for (place, (length, holders)) in lengths_and_holders().enumerate() {
            let name = format!("{name}.l{length}_h{holders}");
            each(named(
                find(rounds, &name, |finds| &finds.long[place], busy, part),
                suffix,
            ));
        }
    }
}

fn lengths_and_holders() -> impl Iterator<Item = (usize, usize)> {
    LENGTHS
        .into_iter()
        .flat_map(|length| HOLDERS.map(|holders| (length, holders)))
}

fn named(figure: Figure, suffix: &str) -> Figure {
    let name = format!("index.{}{suffix}", figure.name);
    Figure { name, ..figure }
}

fn busy(measured: &Measured) -> &Finds {
    &measured.busy
}

fn quiet(measured: &Measured) -> &Finds {
    &measured.quiet
}

fn cost(
    rounds: &[Round],
    name: &str,
    unit: &'static str,
    ours: impl Fn(&Round) -> f64,
    theirs: impl Fn(&Measured) -> f64,
) -> Figure {
    let figure = figure(rounds, name, unit, ours, theirs);
    let reference = figure.peers.get(RADIX_TREE).copied().unwrap_or_default();
    Figure {
        reference,
        ..figure
    }
}

fn find(
    rounds: &[Round],
    name: &str,
    which: impl Fn(&Finds) -> &Times,
    when: impl Fn(&Measured) -> &Finds,
    part: f64,
) -> Figure {
    let time = |measured: &Measured| which(when(measured)).microseconds(part);
    let figure = figure(rounds, name, "us", |round| time(&round.baton), time);
    let reference = figure.peers.values().copied().fold(f64::INFINITY, f64::min);
    Figure {
        reference,
        ..figure
    }
}

fn figure(
    rounds: &[Round],
    name: &str,
    unit: &'static str,
    ours: impl Fn(&Round) -> f64,
    theirs: impl Fn(&Measured) -> f64,
) -> Figure {
    let values = sorted(rounds.iter().map(ours));
    let mut by_peer: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (peer, measured) in rounds.iter().flat_map(|round| &round.peers) {
        by_peer.entry(peer).or_default().push(theirs(measured));
    }
    let peers = by_peer
        .into_iter()
        .map(|(peer, values)| (peer, median(&sorted(values))));
    Figure {
        name: name.to_owned(),
        value: median(&values),
        unit,
        spread: [values[0], values[values.len() - 1]],
        reference: 0.0,
        peers: peers.collect(),
    }
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

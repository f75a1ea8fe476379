//! `bench routing`: in virtual time, so it needs nothing but a processor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use super::table::short;
use super::{Figure, figures_of, show};
use crate::system::{self, Missing};
use crate::workspace::{self, cargo};

/// What `bench routing` is asked for.
#[derive(Args)]
pub(crate) struct RoutingArgs {
    /// Print figures as JSON, one object a line, instead of a table.
    #[arg(long)]
    json: bool,

    /// Rounds, each with another seed; a figure is the median of all [default: 1].
    #[arg(long)]
    rounds: Option<u32>,

    /// A short part of one trace on two fleets, in seconds: shows that everything still works.
    #[arg(long)]
    smoke: bool,

    /// Directory of the traces as they were published, uncompressed, instead of those in the program.
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,

    /// Only this trace: conversation or synthetic.
    #[arg(long, value_name = "NAME")]
    trace: Option<String>,

    /// Only fleets whose names begin so, such as split16 or any.
    #[arg(long, value_name = "PREFIX")]
    fleet: Option<String>,

    /// Only this speed-up of the trace for eight workers (a larger fleet gets as much more); may be given again.
    #[arg(long = "load", value_name = "NUMBER")]
    loads: Vec<f64>,

    /// Only this policy; may be given again.
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
}

pub(super) fn run(args: &RoutingArgs, missing: Missing) -> Result<()> {
    system::ensure_present(&system::BUILD, missing)?;
    let binary = ["--package", "baton-integration", "--bin", "baton-bench"];
    workspace::run(
        cargo()
            .args(["build", "--release", "--locked"])
            .args(binary),
    )?;
    let mut command = Command::new(workspace::release_binary("baton-bench"));
    command.arg("routing");
    command.args(args.smoke.then_some("--smoke"));
    let rounds = args.rounds.map(|rounds| rounds.to_string());
    let options = [
        ("--rounds", rounds.as_deref()),
        ("--trace", args.trace.as_deref()),
        ("--fleet", args.fleet.as_deref()),
    ];
    for (flag, value) in options {
        command.args(value.iter().flat_map(|value| [flag, *value]));
    }
    command.args(
        args.traces
            .iter()
            .flat_map(|path| ["--traces".as_ref(), path.as_os_str()]),
    );
    command.args(
        args.policies
            .iter()
            .flat_map(|name| ["--policy", name.as_str()]),
    );
    for load in &args.loads {
        command.args(["--load", &load.to_string()]);
    }
    let figures = figures_of(command, "routing")?;
    show(&figures, args.json, print)
}

/// Columns, and what of a cell's figures is in each.
const COLUMNS: [(&str, &str); 9] = [
    ("TTFT mean ms", "ttft_mean_ms"),
    ("p50", "ttft_p50_ms"),
    ("p99", "ttft_p99_ms"),
    ("ITL mean ms", "itl_mean_ms"),
    ("p99", "itl_p99_ms"),
    ("hits", "hit_rate"),
    ("balance", "balance"),
    ("split", "split_share"),
    ("refused", "refused"),
];

/// A table for each trace, fleet and load, a line for each policy.
fn print(figures: &[Figure]) {
    let mut cells: Vec<(&str, BTreeMap<&str, &Figure>)> = Vec::new();
    for figure in figures {
        let Some((metric, cell)) = parts(&figure.name) else {
            continue;
        };
        match cells.last_mut() {
            Some((last, metrics)) if *last == cell => {
                metrics.insert(metric, figure);
            }
            _ => cells.push((cell, BTreeMap::from([(metric, figure)]))),
        }
    }
    for (cell, metrics) in &cells {
        print_cell(cell, metrics);
    }
    for figure in figures
        .iter()
        .filter(|figure| parts(&figure.name).is_none())
    {
        let [best, worst] = figure.spread.map(short);
        let subject = figure.subject.as_deref().unwrap_or("baton");
        println!(
            "{}: {subject} to the best other, worst {worst}, best {best}",
            figure.name
        );
    }
}

/// `routing.METRIC.CELL`: metric and cell.
fn parts(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("routing.")?.split_once('.')
}

fn print_cell(cell: &str, metrics: &BTreeMap<&str, &Figure>) {
    let titles = COLUMNS.map(|(title, _)| title);
    println!("{cell}");
    println!("  {:20}{}", "", row(&titles.map(str::to_owned)));
    let Some(first) = metrics.values().next() else {
        return;
    };
    let subject = first.subject.as_deref().unwrap_or("baton");
    for policy in first.peers.keys().map(String::as_str).chain([subject]) {
        let values = COLUMNS.map(|(_, metric)| {
            let figure = metrics.get(metric);
            let value = figure.map(|figure| figure.peers.get(policy).unwrap_or(&figure.value));
            value.map_or_else(String::new, |value| short(*value))
        });
        println!("  {policy:20}{}", row(&values));
    }
    println!();
}

fn row(cells: &[String]) -> String {
    let aligned: Vec<String> = cells.iter().map(|cell| format!("{cell:>13}")).collect();
    aligned.concat()
}

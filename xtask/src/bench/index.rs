//! `bench index`: in `integration/peers/index-bench`, a workspace of its own.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use super::{Figure, figures_of, show, warn_if_busy};
use crate::system::{self, Missing, Need};
use crate::workspace::{self, cargo};

/// What `bench index` is asked for.
#[derive(Args)]
pub(crate) struct IndexArgs {
    /// Print figures as JSON, one object a line, instead of a table.
    #[arg(long)]
    json: bool,

    /// Rounds; a figure is the median of all [default: 3, or 1 with --smoke].
    #[arg(long)]
    rounds: Option<u32>,

    /// A small index, in seconds: shows that everything still works and measures nothing.
    #[arg(long)]
    smoke: bool,
}

pub(super) fn run(args: &IndexArgs, missing: Missing) -> Result<()> {
    system::ensure_present(&[Need::CxxCompiler], missing)?;
    let workspace = workspace::root().join("integration/peers/index-bench");
    let target = workspace::target_dir().join("peers");
    workspace::run(
        cargo()
            .args(["build", "--release", "--locked", "--manifest-path"])
            .arg(workspace.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target),
    )?;
    warn_if_busy();
    let mut command = Command::new(target.join("release/baton-index-bench"));
    let rounds = args.rounds.or(args.smoke.then_some(1)).unwrap_or(3);
    command.args(["--rounds", &rounds.to_string()]);
    command.args(args.smoke.then_some("--smoke"));
    let figures = figures_of(command, "index")?;
    show(&figures, args.json, |figures| {
        figures.iter().for_each(print);
    })
}

fn print(figure: &Figure) {
    let [least, most] = figure.spread;
    let reference = figure.reference.unwrap_or(f64::NAN);
    println!(
        "{:36} {:>9.2} {:5} [{least:.2}..{most:.2}]  reference {reference:.2}, ratio {:.2}",
        figure.name,
        figure.value,
        figure.unit,
        figure.value / reference
    );
}

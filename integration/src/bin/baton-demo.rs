//! The demo of emulated engines, as `cargo xtask demo` runs it: see `baton_integration::demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use baton_integration::demo::engine::Engines;
use baton_integration::demo::{self, Options, process};
use clap::{Parser, Subcommand};

/// Baton at work: emulated engines with sidecars, a router, a mixed load, a worker that dies.
///
/// Expects baton-router and the sidecars and emulated engines of the kind beside itself. Ctrl-C ends everything.
#[derive(Debug, Parser)]
#[command(name = "baton-demo", args_conflicts_with_subcommands = true)]
struct Args {
    /// Which engines.
    #[arg(long, value_enum, default_value_t)]
    engines: Engines,
    /// Requests of each of the three runs.
    #[arg(long, value_name = "N", default_value_t = 180, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    requests: u32,
    /// Seed of the workload: the same seed asks the same things.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the logs of all processes; it must exist.
    #[arg(long, value_name = "DIR", default_value = ".")]
    logs: PathBuf,
    #[command(subcommand)]
    internal: Option<Internal>,
}

#[derive(Debug, Subcommand)]
enum Internal {
    /// Become a program that ends when the demo does.
    #[command(name = process::BOUND, hide = true)]
    Bound {
        parent: i32,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Last line of a demo that went well.
const NEXT: &str = "Next: another load with `cargo xtask demo --requests 600 --seed 2`, real engines with \
    `cargo xtask demo --engine vllm`, yours as in README.md, \"Run it on your engines\".";

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.internal {
        Some(Internal::Bound { parent, command }) => {
            process::exec_bound(*parent, command).map(|never| match never {})
        }
        None => demonstrate(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn demonstrate(args: &Args) -> Result<ExitCode> {
    let stop = baton_daemon::signal::stop_token().context("signals cannot be handled")?;
    let options = Options {
        engines: args.engines,
        requests: usize::try_from(args.requests)?,
        seed: args.seed,
        logs: args.logs.clone(),
    };
    tokio::select! {
        () = stop.cancelled() => {
            eprintln!("stopped; every process of the demo has ended");
            Ok(ExitCode::from(130))
        }
        report = demo::run(&options) => {
            let report = report?;
            println!("{}", report.text);
            if !report.broken.is_empty() {
                bail!("{}\nlogs are in {}", report.broken.join("\n"), args.logs.display());
            }
            println!("{NEXT}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

//! Whether Baton's view of a real engine's KV cache is exact, as a command: it starts a router, a sidecar and an engine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use baton_integration::real::engine::Kind;
use baton_integration::real::report::Report;
use baton_integration::view_probe::stages::{self, Size};
use baton_integration::view_probe::stand::Parts;
use clap::Parser;

/// Checks that router and sidecar know what an engine holds, whatever happens to any of them.
///
/// Give the engine's command with its model after --; flags for few blocks, events and an adapter are added. Prints one JSON
/// object a line, as end-to-end clients do.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, verbatim_doc_comment)]
struct Args {
    /// Which engine the command starts.
    #[arg(long, value_enum, default_value = "vllm")]
    engine: Kind,
    /// Folder of Baton's binaries.
    #[arg(long, value_name = "DIR")]
    binaries: PathBuf,
    /// Where logs go.
    #[arg(long, value_name = "DIR")]
    logs: PathBuf,
    /// The name to serve the model under.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// A short cut of it: some dozen requests, one reset, one cut connection, one restart.
    #[arg(long)]
    smoke: bool,
    /// Completions of the first stage [default: 160, or 32 with --smoke].
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Completions at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    concurrency: usize,
    /// The engine's KV blocks.
    #[arg(long, value_name = "N", default_value_t = 64)]
    blocks: u64,
    /// The same seed asks the same things.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to launch the engine: program and arguments, such as the model.
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    let requests = args.requests.unwrap_or(if args.smoke { 32 } else { 160 });
    let size = Size {
        requests: requests.max(8),
        at_a_time: args.concurrency.max(1),
        probes: if args.smoke { 12 } else { 40 },
        whole: !args.smoke,
        seed: args.seed,
    };
    let report = Report::new(size.total());
    let parts = Parts {
        kind: args.engine,
        binaries: args.binaries.clone(),
        engine: args.command.clone(),
        model: args.model.clone(),
        logs: std::path::absolute(&args.logs)?,
        blocks: args.blocks,
        buffer_steps: None,
    };
    stages::run(parts, size, &report)?;
    Ok(report.held())
}

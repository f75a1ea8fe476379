//! Whether handoffs between real engines survive what can happen to anybody in them, as a command: it starts engines, their
//! sidecars and a router.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use baton_integration::fault_probe::rows;
use baton_integration::fault_probe::stand::Parts;
use baton_integration::real::engine::Kind;
use baton_integration::real::report::Report;
use clap::Parser;

/// Freezes and kills engines, sidecars, the router and clients in the middle of handoffs, and checks that nobody gets a wrong
/// answer or waits for ever, and that all blocks are free again.
///
/// Give the engine's command with its model after --; flags for few blocks, for handing over and, of vLLM, for a short lease
/// are added. Prints one JSON object a line, as end-to-end clients do.
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
    /// A short cut of it: one prefill and one decode engine, three rows.
    #[arg(long)]
    smoke: bool,
    /// Run only rows whose names contain this; repeatable. With --smoke on its two engines.
    #[arg(long, value_name = "PART")]
    row: Vec<String>,
    /// The same seed asks the same things.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to launch an engine: program and arguments, such as the model.
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
    let whole = !args.smoke;
    let report = Report::new(rows::count(args.engine, whole));
    let parts = Parts {
        kind: args.engine,
        binaries: args.binaries.clone(),
        engine: args.command.clone(),
        model: args.model.clone(),
        logs: std::path::absolute(&args.logs)?,
        whole,
    };
    rows::run(parts, &args.row, args.seed, &report)?;
    Ok(report.held())
}

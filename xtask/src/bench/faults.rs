//! `bench faults`: a whole fleet in one process, so that it needs nothing but a processor and loopback.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::{Figure, figures_and_status, show};
use crate::system::{self, Missing, Need};
use crate::workspace::{self, cargo};

/// Requests of a run, and of each sabotaged one.
const USUAL: (u64, u64) = (20_000, 1_000);

/// The same for a run that shows that everything still works.
const SMOKE: (u64, u64) = (400, 350);

/// The same with SGLang, two of whose protections are needed more seldom.
const SMOKE_SGLANG: (u64, u64) = (400, 800);

/// What `bench faults` is asked for.
#[derive(Args)]
pub(crate) struct FaultsArgs {
    /// Whom faults befall.
    #[arg(long, value_enum, default_value_t = Engine::Vllm)]
    engine: Engine,

    /// Print figures as JSON, one object a line, instead of a table.
    #[arg(long)]
    json: bool,

    /// Requests [default: 20000, or 400 with --smoke].
    #[arg(long)]
    requests: Option<u64>,

    /// Of requests and faults: what is asked and what goes wrong after how many requests is a function of it.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Only the run in which this protection is switched off.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,

    /// Print which faults there will be, and do nothing else.
    #[arg(long)]
    schedule: bool,

    /// Some hundred requests, in about five minutes.
    #[arg(long)]
    smoke: bool,
}

/// The engines of a run.
#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    /// vLLM: figures are called faults.NAME.
    Vllm,
    /// SGLang: faults.sglang.NAME.
    Sglang,
    /// TensorRT-LLM, which is emulated from paper: faults.trtllm.NAME.
    Trtllm,
    /// vLLM and SGLang behind the same routers: faults.mixed.NAME. Protections are those of each kind, and tried with it alone.
    Mixed,
}

/// A protection that can be switched off.
#[derive(Clone, Copy, ValueEnum)]
enum Sabotage {
    /// What a sidecar lets through once comes twice at the engine: faults.double_use must rise.
    Fence,
    /// Handoffs are said to be settled without asking (vLLM): faults.wrong must rise.
    Settle,
    /// Engines do not hear that KV is given back, or a leg is not wanted any more, or have no end to how long they hold KV
    /// (TensorRT-LLM): faults.leaked_blocks must rise.
    Release,
    /// Lost KV events leave no gap in their numbers: faults.view_wrong must rise.
    Gap,
    /// The rooms (SGLang) or ids (TensorRT-LLM) of handoffs come again and again: faults.wrong must rise.
    Rooms,
    /// An answer that was aborted (SGLang) or failed (TensorRT-LLM) is taken for a whole one: faults.wrong must rise.
    Verdict,
}

pub(super) fn run(args: &FaultsArgs, missing: Missing) -> Result<()> {
    system::ensure_present(&[Need::CxxCompiler], missing)?;
    let binary = ["--package", "baton-integration", "--bin", "baton-bench"];
    workspace::run(
        cargo()
            .args(["build", "--release", "--locked"])
            .args(binary),
    )?;
    let mut command = Command::new(workspace::release_binary("baton-bench"));
    let (usual, sabotaged) = match (args.smoke, args.engine) {
        (false, _) => USUAL,
        (true, Engine::Sglang) => SMOKE_SGLANG,
        (true, _) => SMOKE,
    };
    let requests = args.requests.unwrap_or(usual);
    command.arg("faults");
    command.args(["--engine", name(&args.engine).as_str()]);
    command.args(["--seed", &args.seed.to_string()]);
    command.args(["--requests", &requests.to_string()]);
    command.args(["--sabotaged-requests", &sabotaged.to_string()]);
    if let Some(sabotage) = args.sabotage {
        command.args(["--sabotage", name(&sabotage).as_str()]);
    }
    if args.schedule {
        let status = command.arg("--schedule").status()?;
        ensure!(
            status.success(),
            "the schedule could not be printed ({status})"
        );
        return Ok(());
    }
    let (figures, status) = figures_and_status(command, "faults")?;
    // Whatever failed, what was counted is worth seeing.
    show(&figures, args.json, |figures| {
        figures.iter().for_each(print)
    })?;
    ensure!(status.success(), "not all was as it must be ({status})");
    Ok(())
}

/// The word that stands for a value on the command line.
fn name(value: &impl ValueEnum) -> String {
    let word = value.to_possible_value();
    word.map_or_else(String::new, |word| word.get_name().to_owned())
}

fn print(figure: &Figure) {
    let value = super::table::short(figure.value);
    let whole = if figure.value.fract() == 0.0 {
        figure.value.to_string()
    } else {
        value
    };
    println!("{:40} {whole} {}", figure.name, figure.unit);
}

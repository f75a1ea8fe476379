//! The only entry for automation: what a developer types is what CI runs.
//!
//! Start reading at [`Command`]. `test` and `lint` are other people's tools in a fixed order; `e2e`, and `demo` where it is
//! told to, boot real engines with Baton beside them ([`cluster`]), in namespaces of their own ([`namespace`]), and send
//! real requests ([`client`]). The demo of emulated engines is a program of the integration crate.

mod bench;
mod checks;
mod client;
mod cluster;
mod demo;
mod e2e;
mod engines;
mod http;
mod namespace;
mod process;
mod progress;
mod report;
mod system;
mod wheel;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::system::Missing;

/// Build, test and run Baton.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Install missing Debian packages with apt-get (needs root; with CI=true this is the default).
    #[arg(long, global = true)]
    install: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run the workspace's tests: no engine, no network, about a minute.
    ///
    /// Uses cargo-nextest where it is installed, otherwise cargo test.
    Test,

    /// Check formatting, lints, and the dependencies' licences and sources.
    ///
    /// Runs `cargo fmt --check`, `cargo clippy -D warnings` and `cargo deny check bans licenses sources`; installs the
    /// pinned cargo-deny first where there is none.
    Lint,

    /// Prove Baton on real, unmodified engines.
    ///
    /// Installs the engine if needed, boots one prefill and two decode engines (one of SGLang) and an aggregated one as the
    /// reference, with sidecars and a router, in network and process namespaces of this run alone, and compares what clients
    /// get. Before that, one more engine with few blocks shows that router and sidecar know exactly what it holds, and two
    /// more that a handoff survives what happens to them. Logs and `report.json` are left in target/e2e/ENGINE.
    E2e(E2eArgs),

    /// See it work: two prefill and two decode engines, a mixed load, a worker that dies.
    ///
    /// Builds Baton and starts emulated engines with their sidecars and a router on free ports of 127.0.0.1; needs no GPU, no
    /// Python and no download beyond crates. Prints which plans were made and why, latencies with prefill and decode apart
    /// and together, KV bytes moved, cache hits, and what clients saw when a worker was killed and another drained.
    /// `--engine vllm` installs real engines (the first time some 1.2 GB are downloaded) and shows a handful of chats.
    /// Ctrl-C ends everything.
    Demo(DemoArgs),

    /// Measure Baton.
    #[command(subcommand)]
    Bench(bench::Bench),

    /// Build the Python package and test it.
    ///
    /// Makes a wheel of python/ with maturin, installs it in an environment of its own under target/wheel and runs its tests
    /// beside a router and an emulated engine. maturin comes from PyPI.
    Wheel,

    /// Real engines for tests and the demo.
    #[command(subcommand)]
    Engines(EnginesCommand),
}

#[derive(Subcommand)]
enum EnginesCommand {
    /// Install an engine by its pinned recipe in integration/engines/.
    ///
    /// Goes to target/engines/ENGINE, or to BATON_ENGINES_DIR/ENGINE. Does nothing if this very recipe is already
    /// installed there. BATON_VLLM_VENV and BATON_SGLANG_VENV name Python environments to use instead of installing one.
    Install {
        /// Which engine to install.
        #[arg(value_enum)]
        engine: EngineKind,
    },
}

/// An engine that has a recipe.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineKind {
    /// vLLM on the CPU, KV over NIXL.
    Vllm,
    /// SGLang on the CPU, KV over NIXL; two shims stand in for what exists for GPUs alone.
    Sglang,
}

/// An engine that the demo can show.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DemoEngine {
    /// Emulated vLLM: real protocol, real KV bytes, a GPU's times.
    Emulated,
    /// vLLM itself on the CPU, KV over NIXL.
    Vllm,
    /// Emulated SGLang.
    Sglang,
    /// Emulated TensorRT-LLM, which is made from its sources alone.
    Trtllm,
    /// Emulated engines of all three kinds behind one router.
    Mixed,
}

/// What `demo` is asked for.
#[derive(Args)]
struct DemoArgs {
    /// Which engine to run.
    #[arg(long, value_enum, default_value = "emulated")]
    engine: DemoEngine,

    /// Requests of each of the three runs of emulated engines [default: 180].
    #[arg(long, value_name = "N")]
    requests: Option<u32>,

    /// Seed of the workload of emulated engines: the same seed asks the same things [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Write logs here instead of target/demo, which every run empties.
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
}

/// A step of the proof, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum E2eStep {
    /// Memory that moves between processes over the engine's own NIXL, peers that die, and emulated engines that use it.
    Transfer,
    /// What router and sidecar know of a KV cache, through evictions, resets, losses and restarts.
    View,
    /// Handoffs while clients leave and engines freeze or die; all rows with --faults.
    Faults,
    /// The OpenAI surface, by the official client.
    Surface,
    /// Tokens of random texts and chats, and cache hits of sessions.
    Tokens,
    /// The engines against the recordings that the emulated engine is measured by.
    Conformance,
    /// Split answers against an aggregated engine's.
    Equality,
    /// Tickets that were tampered with.
    Tickets,
    /// What clients must not send.
    Refusals,
    /// Workers that come and go under load; not with --smoke.
    Churn,
}

impl E2eStep {
    /// Steps that look at the engines of the cluster, and not at ones of their own.
    const OF_THE_CLUSTER: [Self; 7] = [
        Self::Surface,
        Self::Tokens,
        Self::Conformance,
        Self::Equality,
        Self::Tickets,
        Self::Refusals,
        Self::Churn,
    ];

    /// Whether the step is made for this engine.
    fn is_for(self, engine: EngineKind) -> bool {
        let of_vllm_alone = [
            Self::Transfer,
            Self::Tokens,
            Self::Conformance,
            Self::Tickets,
            Self::Churn,
        ];
        engine == EngineKind::Vllm || !of_vllm_alone.contains(&self)
    }

    fn title(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::View => "exact view",
            Self::Faults => "handoffs under faults",
            Self::Surface => "surface",
            Self::Tokens => "tokens",
            Self::Conformance => "conformance",
            Self::Equality => "equality",
            Self::Tickets => "tampered tickets",
            Self::Refusals => "refusals",
            Self::Churn => "workers come and go",
        }
    }
}

/// What `e2e` is asked for.
#[derive(Args, Clone)]
struct E2eArgs {
    /// Which engine to run.
    #[arg(value_enum)]
    engine: EngineKind,

    /// A short cut of it: one decode engine, fewer requests, no workers that come and go, few faults; of SGLang no view.
    #[arg(long)]
    smoke: bool,

    /// Run all rows of the step `faults`, and nothing else unless --only names it: some ten minutes.
    ///
    /// Clients go away at every stage of a request; engines, sidecars and the router are frozen, killed and started again
    /// between its two legs; a lease runs out; there are more requests than anybody has room for. Nobody may get a wrong answer
    /// or wait for ever, and all blocks are free again within two seconds.
    #[arg(long, conflicts_with = "smoke")]
    faults: bool,

    /// Run this step alone; repeatable. `view` and `faults` boot engines of their own instead of all, `transfer`
    /// none.
    #[arg(long, value_enum, value_name = "STEP")]
    only: Vec<E2eStep>,

    /// How many greedy answers to compare with the aggregated engine's [default: 300, or 48 with --smoke; of SGLang 200, or
    /// 24].
    #[arg(long)]
    requests: Option<u32>,

    /// How many of them at a time.
    #[arg(long, default_value_t = 8)]
    concurrency: u32,

    /// Write logs here instead of target/e2e/ENGINE, which every run empties.
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let missing = if cli.install || std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        Missing::Install
    } else {
        Missing::Refuse
    };
    let outcome = match cli.command {
        Command::Test => checks::test(missing),
        Command::Lint => checks::lint(missing),
        Command::E2e(args) => e2e::run(&args, missing),
        Command::Demo(args) => demo::run(&args, missing),
        Command::Bench(bench) => bench::run(&bench, missing),
        Command::Wheel => wheel::test(missing),
        Command::Engines(EnginesCommand::Install { engine }) => engines::install(engine, missing),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

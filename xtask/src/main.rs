//! The only entry for automation: what a developer types is what CI runs.
//!
//! Start reading at [`Command`]. `test` and `lint` are other people's tools in a fixed order; `e2e` and `demo` boot real
//! engines with Baton beside them ([`cluster`]), in namespaces of their own ([`namespace`]), and send real requests
//! ([`client`]).

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
    /// Installs the engine if needed, boots one prefill and two decode engines and an aggregated one as the reference, with
    /// sidecars and a router, in network and process namespaces of this run alone, and compares what clients get. Logs and
    /// `report.json` are left in target/e2e/ENGINE.
    E2e(E2eArgs),

    /// See it work: a real prefill engine, a real decode engine, a handful of streamed chats.
    ///
    /// Installs what is missing (the first time some 1.2 GB are downloaded), boots the pair and shows for each chat where it
    /// was prefilled and decoded, how many bytes of KV cache moved and when the first token came. Ctrl-C ends everything.
    Demo {
        /// Which engine to run.
        #[arg(long, value_enum, default_value_t)]
        engine: EngineKind,
    },

    /// Real engines for tests and the demo.
    #[command(subcommand)]
    Engines(EnginesCommand),
}

#[derive(Subcommand)]
enum EnginesCommand {
    /// Install an engine by its pinned recipe in integration/engines/.
    ///
    /// Goes to target/engines/ENGINE, or to BATON_ENGINES_DIR/ENGINE. Does nothing if this very recipe is already
    /// installed there. BATON_VLLM_VENV names a Python environment to use instead of installing one.
    Install {
        /// Which engine to install.
        #[arg(value_enum)]
        engine: EngineKind,
    },
}

/// An engine that has a recipe.
#[derive(Clone, Copy, Default, ValueEnum)]
enum EngineKind {
    /// vLLM on the CPU, KV over NIXL.
    #[default]
    Vllm,
}

/// What `e2e` is asked for.
#[derive(Args, Clone)]
struct E2eArgs {
    /// Which engine to run.
    #[arg(value_enum)]
    engine: EngineKind,

    /// A short cut of it: one decode engine, fewer requests, no workers that come and go.
    #[arg(long)]
    smoke: bool,

    /// How many greedy answers to compare with the aggregated engine's [default: 300, or 48 with --smoke].
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
        Command::Demo { engine } => demo::run(engine, missing),
        Command::Engines(EnginesCommand::Install {
            engine: EngineKind::Vllm,
        }) => engines::vllm::install(missing),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! `bench`: what Baton costs, measured on processes of a release build.
//!
//! This half starts and ends everything and shows what came out; what is sent and counted is in `baton-bench`
//! (`integration/src/bench/`).

mod faults;
mod index;
mod routing;
mod setting;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use self::setting::Setting;
use crate::progress::Progress;
use crate::system::{self, Missing, Need};
use crate::{namespace, workspace};

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// What router and sidecars add to an engine, beside a minimal relay with the same hops.
    ///
    /// Starts emulated engines that answer without delay, Baton in front of them, and a minimal hyper relay that carries
    /// the same requests over the same hops; then loads Baton, the relay and an engine itself in turns: split and local,
    /// whole answers and streams of 16 chunks, prompts of 512 and 8192 words, 1 and 64 requests at a time. Every answer is
    /// compared with the engine's own. Takes about eight minutes after the build. What is compared, and what the figures
    /// depend on, is in docs/performance.md. Ctrl-C ends everything.
    Overhead(OverheadArgs),

    /// What it costs to know what engines hold.
    ///
    /// Reads one engine's KV events as a sidecar does, and the journal that comes of it as a router does, in CPU time for
    /// each block that comes or goes; then starts a router beside eight sidecars that hold a million blocks and waits until
    /// it knows all of them exactly. Takes about a minute after the build.
    Events(EventsArgs),

    /// The router's index of KV blocks, beside those of dynamo-kv-router.
    ///
    /// Applies what 64 emulated caches announce, 1 M and 4 M blocks large, to Baton's index and mirrors and to the peer's
    /// indexes, and asks all for the same prompts, without and with a writer beside. All must find the same. Builds a
    /// workspace of its own (188 crates: minutes, once); then takes up to ten minutes.
    Index(index::IndexArgs),

    /// Thousands of split requests while everything fails, and what must never come of it.
    ///
    /// A fleet of two routers, three prefill and three decode workers in one process, around emulated engines whose tokens are
    /// made of the KV that they hold, is asked by clients of which some leave, while engines, sidecars, routers and the
    /// network between them are killed, stopped, slowed, cut and drained by a schedule that the seed gives. Counts wrong
    /// answers, requests without an end, ends that do not say what they are, blocks that are held for nobody, handoffs used
    /// twice and views that claim too much. Then switches one protection off at a time: its counter must rise. Fails if
    /// anything is not as it must be. Takes some five minutes after the build. What is counted is in docs/performance.md.
    Faults(faults::FaultsArgs),

    /// How well requests are placed, beside other policies.
    ///
    /// Replays an hour of real requests and a synthetic trace on emulated fleets of 8, 16 and 64 workers in virtual time,
    /// with and without roles, at several loads up to saturation, and on fleets with a slow worker, a slow link or a worker
    /// that does not tell what it holds. Every policy sees what a router can see and nothing else. Reports time to first
    /// token, time between tokens, cache hits and balance of each. What is simulated is in docs/performance.md.
    Routing(routing::RoutingArgs),
}

/// What `bench events` is asked for.
#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Print figures as JSON, one object a line, instead of a table.
    #[arg(long)]
    json: bool,

    /// Rounds; a figure is the median of all [default: 5, or 1 with --smoke].
    #[arg(long)]
    rounds: Option<u32>,

    /// A hundredth of everything: shows that it works and measures nothing.
    #[arg(long)]
    smoke: bool,
}

/// What `bench overhead` is asked for.
#[derive(Args)]
pub(crate) struct OverheadArgs {
    /// Print figures as JSON, one object a line, instead of a table.
    #[arg(long)]
    json: bool,

    /// Rounds; a figure is the median of all [default: 5, or 1 with --smoke].
    #[arg(long)]
    rounds: Option<u32>,

    /// How long each measurement takes [default: 1.5].
    #[arg(long, conflicts_with = "requests")]
    seconds: Option<f64>,

    /// Count so many answers per measurement instead [default with --smoke: 64].
    #[arg(long)]
    requests: Option<u32>,

    /// Measure only the figures whose names begin so, such as overhead.cpu_us.split_512.
    #[arg(long, value_name = "NAME-PREFIX", default_value = "")]
    only: String,

    /// Engine to start instead of the emulated one; it is given the same flags.
    #[arg(long, value_name = "FILE")]
    engine_binary: Option<PathBuf>,

    /// The whole matrix in seconds: shows that everything still works and measures nothing.
    #[arg(long)]
    smoke: bool,
}

/// A line that `baton-bench` prints.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Progress { done: u64, total: u64, note: String },
    Figure(Figure),
}

/// A figure.
#[derive(Clone, Deserialize, Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: String,
    spread: [f64; 2],
    reference: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<f64>,
    /// Whose value it is, where it may be another one's than Baton's.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// The same of each peer, where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    peers: BTreeMap<String, f64>,
}

/// Builds what is needed and measures.
pub(crate) fn run(bench: &Bench, missing: Missing) -> Result<()> {
    match bench {
        Bench::Index(args) => return index::run(args, missing),
        Bench::Routing(args) => return routing::run(args, missing),
        Bench::Faults(args) => return faults::run(args, missing),
        Bench::Overhead(_) | Bench::Events(_) => {}
    }
    if namespace::is_inside() {
        namespace::prepare()?;
        return match bench {
            Bench::Overhead(args) => overhead(args),
            Bench::Events(args) => events(args),
            Bench::Index(args) => index::run(args, missing),
            Bench::Routing(args) => routing::run(args, missing),
            Bench::Faults(args) => faults::run(args, missing),
        };
    }
    let needs = [
        Need::CxxCompiler,
        Need::Libclang,
        Need::Ip,
        Need::Namespaces,
    ];
    system::ensure_present(&needs, missing)?;
    workspace::build_release()?;
    namespace::enter()
}

fn events(args: &EventsArgs) -> Result<()> {
    warn_if_busy();
    let mut command = Command::new(workspace::release_binary("baton-bench"));
    command.arg("events");
    let rounds = args.rounds.or(args.smoke.then_some(1));
    if let Some(rounds) = rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    if args.smoke {
        command.arg("--smoke");
    }
    let figures = figures_of(command, "events")?;
    show(&figures, args.json, |figures| {
        figures.iter().for_each(table::print_alone);
    })
}

fn show(figures: &[Figure], json: bool, print: impl FnOnce(&[Figure])) -> Result<()> {
    if json {
        for figure in figures {
            println!("{}", serde_json::to_string(figure)?);
        }
    } else {
        print(figures);
    }
    Ok(())
}

fn overhead(args: &OverheadArgs) -> Result<()> {
    let logs = workspace::target_dir().join("bench/overhead");
    fs::create_dir_all(&logs).with_context(|| format!("could not make {}", logs.display()))?;
    warn_if_busy();
    let emulated = || workspace::release_binary("baton-emulated-vllm");
    let engine = args.engine_binary.clone().unwrap_or_else(emulated);
    let mut setting = Setting::start(&engine, &logs)?;
    let plan = logs.join("plan.json");
    fs::write(&plan, serde_json::to_string_pretty(&setting.plan()?)?)
        .with_context(|| format!("could not write {}", plan.display()))?;
    let measured = measure(args, &plan);
    // What ended says more than what it ended.
    setting.check_running()?;
    show(&measured?, args.json, table::print)
}

/// Figures of a machine that does something else as well are worth little; only their ratios are worth something.
fn warn_if_busy() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let last_minute = load.split(' ').next().and_then(|load| load.parse().ok());
    if last_minute.is_some_and(|load: f64| load > 1.0) {
        eprintln!(
            "this machine is busy (load {}): compare ratios only",
            load.trim()
        );
    }
}

fn measure(args: &OverheadArgs, plan: &Path) -> Result<Vec<Figure>> {
    let mut command = Command::new(workspace::release_binary("baton-bench"));
    command
        .arg("overhead")
        .arg(plan)
        .args(["--only", &args.only]);
    let rounds = args.rounds.or(args.smoke.then_some(1));
    let requests = args.requests.or(args.smoke.then_some(64));
    let numbers = [
        ("--rounds", rounds.map(|rounds| rounds.to_string())),
        ("--seconds", args.seconds.map(|seconds| seconds.to_string())),
        ("--requests", requests.map(|requests| requests.to_string())),
        ("--warm-up-seconds", args.smoke.then(|| "0.02".to_owned())),
    ];
    for (flag, number) in numbers {
        command.args(number.iter().flat_map(|number| [flag, number.as_str()]));
    }
    figures_of(command, "overhead")
}

/// Runs a measuring program and reads what it prints.
fn figures_of(command: Command, what: &str) -> Result<Vec<Figure>> {
    let (figures, status) = figures_and_status(command, what)?;
    // What failed has been said by it.
    ensure!(status.success(), "the measurement failed ({status})");
    Ok(figures)
}

/// The same of a program whose figures count even if it fails.
fn figures_and_status(mut command: Command, what: &str) -> Result<(Vec<Figure>, ExitStatus)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start the measuring program")?;
    let output = child.stdout.take().context("it has no output")?;
    let mut progress = Progress::start(what);
    let mut figures = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        match serde_json::from_str(&line)
            .with_context(|| format!("the measuring program printed {line:?}"))?
        {
            Event::Progress { done, total, note } => progress.at(done, total, &note),
            Event::Figure(figure) => figures.push(figure),
        }
    }
    let status = child.wait()?;
    if status.success() {
        progress.done(&format!("{} figures, all of it right", figures.len()));
    }
    Ok((figures, status))
}

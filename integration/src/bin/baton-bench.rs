//! The measuring half of `cargo xtask bench`: loads what xtask has started and prints what it saw.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_integration::bench::events;
use baton_integration::bench::figure::Event;
use baton_integration::bench::load::Amount;
use baton_integration::bench::overhead::{self, Extent, Plan};
use baton_integration::bench::row;
use baton_integration::faults::{self, Engines, Sabotage};
use baton_integration::routing::{choice, matrix, summary};
use clap::{Parser, Subcommand};
use serde::Serialize;

/// Loads running processes and prints what it saw, one JSON object a line.
///
/// `cargo xtask bench` starts the processes and this program; it is of little use by itself.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// What Baton adds to an engine, beside a minimal relay.
    Overhead {
        /// Addresses and process ids of all that runs, in JSON.
        #[arg(value_name = "PLAN")]
        plan: PathBuf,
        /// Rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How long each measurement takes.
        #[arg(long, default_value_t = 1.5)]
        seconds: f64,
        /// How long clients ask before anything counts.
        #[arg(long, default_value_t = 0.2)]
        warm_up_seconds: f64,
        /// Count so many answers per measurement instead of measuring for a time.
        #[arg(long)]
        requests: Option<usize>,
        /// Measure only the figures whose names begin so.
        #[arg(long, value_name = "PREFIX", default_value = "")]
        only: String,
    },
    /// What it costs to know what engines hold.
    Events {
        /// Rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// A hundredth of everything: shows that it works, and measures nothing.
        #[arg(long)]
        smoke: bool,
    },
    /// Policies that choose workers, on emulated fleets in virtual time.
    Routing {
        /// Rounds, each with another seed.
        #[arg(long, default_value_t = 1)]
        rounds: usize,
        /// A short part of one trace on two small fleets.
        #[arg(long)]
        smoke: bool,
        /// Where the traces are, if not the embedded ones.
        #[arg(long, value_name = "DIR")]
        traces: Option<PathBuf>,
        /// Only this trace.
        #[arg(long, value_name = "NAME")]
        trace: Option<String>,
        /// Only fleets whose names begin so.
        #[arg(long, value_name = "PREFIX")]
        fleet: Option<String>,
        /// Only this speed-up for eight workers; may be given again.
        #[arg(long = "load", value_name = "NUMBER")]
        loads: Vec<f64>,
        /// Only this policy; may be given again.
        #[arg(long = "policy", value_name = "NAME")]
        policies: Vec<String>,
    },
    /// Thousands of split requests while everything fails.
    Faults {
        /// Whom faults befall.
        #[arg(long, value_enum, default_value_t)]
        engine: Engines,
        /// Requests.
        #[arg(long, default_value_t = 20_000)]
        requests: usize,
        /// Of requests and faults: the same seed is the same run, as far as time allows.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Requests of each of the sabotaged runs.
        #[arg(long, default_value_t = 600)]
        sabotaged_requests: usize,
        /// Only this sabotaged run.
        #[arg(long, value_enum)]
        sabotage: Option<Sabotage>,
        /// Print the faults, and do nothing.
        #[arg(long)]
        schedule: bool,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let (plan, rounds, seconds, warm_up_seconds, requests, only) = match &args.bench {
        Bench::Overhead {
            plan,
            rounds,
            seconds,
            warm_up_seconds,
            requests,
            only,
        } => (plan, rounds, seconds, warm_up_seconds, requests, only),
        Bench::Faults {
            engine,
            requests,
            seed,
            sabotaged_requests,
            sabotage,
            schedule,
        } => {
            let extent = |requests, sabotage| faults::Extent {
                engines: *engine,
                requests,
                seed: *seed,
                sabotage,
            };
            let whole = extent(*requests, None);
            if *schedule {
                return print_schedule(&whole);
            }
            let ones = match sabotage {
                Some(one) => std::slice::from_ref(one),
                None => engine.protections(),
            };
            let known = ones.iter().all(|one| engine.protections().contains(one));
            ensure!(known, "engines of this kind have no such protection");
            let ones = ones
                .iter()
                .map(|one| extent(*sabotaged_requests, Some(*one)));
            let survived = match sabotage {
                Some(_) => Ok(()),
                None => survive(&whole),
            };
            // Whatever came of the whole run, a test that is blind is worth knowing of.
            let seen = sabotaged(&ones.collect::<Vec<_>>());
            return match (survived, seen) {
                (Err(one), Err(other)) => bail!("{one:#}; {other:#}"),
                (survived, seen) => survived.and(seen),
            };
        }
        Bench::Events { rounds, smoke } => return measure_events(*rounds, *smoke),
        Bench::Routing {
            rounds,
            smoke,
            traces,
            trace,
            fleet,
            loads,
            policies,
        } => {
            return compare_policies(&matrix::Extent {
                rounds: *rounds,
                smoke: *smoke,
                traces: traces.clone(),
                trace: trace.clone(),
                fleet: fleet.clone(),
                loads: loads.clone(),
                policies: policies.clone(),
            });
        }
    };
    let text = std::fs::read_to_string(plan);
    let text = text.with_context(|| format!("cannot read {}", plan.display()))?;
    let plan: Plan = serde_json::from_str(&text).context("the plan is strange")?;
    let time = |seconds| Duration::try_from_secs_f64(seconds).context("a time is impossible");
    let amount = match requests {
        Some(requests) => Amount::Requests((*requests).max(1)),
        None => Amount::Time(time(*seconds)?),
    };
    let extent = Extent {
        rounds: (*rounds).max(1),
        warm_up: time(*warm_up_seconds)?,
        amount,
    };
    // One thread: it must take as little as it can of what it measures.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let figures = runtime.block_on(overhead::run(&plan, extent, only, progress))?;
    for figure in &figures {
        print(&Event::Figure(figure));
    }
    let mut wanted = row::names();
    wanted.retain(|name| name.starts_with(only.as_str()));
    let got: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    ensure!(
        got == wanted,
        "figures are missing: {wanted:?} were to be measured"
    );
    Ok(())
}

fn measure_events(rounds: usize, smoke: bool) -> Result<()> {
    let extent = events::Extent {
        rounds: rounds.max(1),
        smoke,
    };
    for figure in &events::run(extent, progress)? {
        print(&Event::Figure(figure));
    }
    Ok(())
}

fn compare_policies(extent: &matrix::Extent) -> Result<()> {
    let compared = matrix::run(extent, progress)?;
    for figure in &summary::figures(&compared) {
        print(&Event::Figure(figure));
    }
    for figure in choice::measure().figures() {
        print(&Event::Figure(&figure));
    }
    Ok(())
}

fn print_schedule(extent: &faults::Extent) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for (number, (requests, phase)) in extent.phases().iter().enumerate() {
        writeln!(out, "phase {number}, {requests} requests")?;
        for (lane, faults) in phase {
            for fault in faults {
                writeln!(out, "  {lane:?} {fault}")?;
            }
        }
    }
    Ok(())
}

/// The run in which nothing is switched off.
fn survive(extent: &faults::Extent) -> Result<()> {
    let tally = befall(extent, "requests")?;
    for told in tally.told() {
        eprintln!("{told}");
    }
    let failures = tally.failures(extent.engines);
    for figure in &tally.figures(extent.engines) {
        print(&Event::Figure(figure));
    }
    ensure!(failures.is_empty(), "{}", failures.join(", "));
    Ok(())
}

/// Runs in which one protection each is switched off: whatever it protects from must be seen.
fn sabotaged(extents: &[faults::Extent]) -> Result<()> {
    let mut blind = Vec::new();
    for extent in extents {
        let sabotage = extent.sabotage.context("something is switched off")?;
        let tally = befall(extent, &format!("without {}", sabotage.word()))?;
        let figure = faults::figure_of(extent.engines, sabotage, &tally);
        if figure.value == 0.0 {
            blind.push(figure.name.clone());
        }
        print(&Event::Figure(&figure));
    }
    ensure!(
        blind.is_empty(),
        "the test is blind: {} is 0",
        blind.join(", ")
    );
    Ok(())
}

fn befall(extent: &faults::Extent, note: &str) -> Result<faults::tally::Tally> {
    let (total, told) = (extent.requests, note.to_owned());
    let done = AtomicUsize::new(0);
    faults::run(extent, move |_| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(50) || done == total {
            progress(done, total, &told);
        }
    })
}

fn progress(done: usize, total: usize, note: &str) {
    let event: Event<'_> = Event::Progress { done, total, note };
    print(&event);
}

fn print(event: &Event<'_, impl Serialize>) {
    // Whoever reads may have gone; that ends this process soon enough.
    let line = serde_json::to_string(event).unwrap_or_default();
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

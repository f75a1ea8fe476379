//! What is run: traces, fleets, loads and policies, and how a run is summed up.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};

use super::outcome::Outcome;
use super::policies::{Baton, Dynamo, LeastLoaded, PrefixOnly, RoundRobin};
use super::policy::Policy;
use super::setting::{Delays, Flaw, FleetKind};
use super::simulation;
use super::summary::Summary;
use super::trace::{self, Trace};

/// A policy that takes part.
#[derive(Debug, Clone, Copy)]
pub struct Contender {
    /// Its name in figures.
    pub name: &'static str,
    /// Makes one.
    pub make: fn(seed: u64) -> Box<dyn Policy>,
    /// Whether it differs from the one before it only where workers have roles.
    pub needs_roles: bool,
}

/// All policies; the last one is who is compared with the others.
pub const CONTENDERS: [Contender; 6] = [
    contender("round_robin", |_| Box::new(RoundRobin::default())),
    contender("least_loaded", |_| Box::new(LeastLoaded::default())),
    contender("prefix_only", |_| Box::new(PrefixOnly::default())),
    contender("dynamo", |seed| Box::new(Dynamo::new(false, seed))),
    Contender {
        needs_roles: true,
        ..contender("dynamo_conditional", |seed| {
            Box::new(Dynamo::new(true, seed))
        })
    },
    contender("baton", |seed| Box::new(Baton::new(seed))),
];

const fn contender(name: &'static str, make: fn(u64) -> Box<dyn Policy>) -> Contender {
    Contender {
        name,
        make,
        needs_roles: false,
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Extent {
    /// A short part of one trace on two fleets.
    pub smoke: bool,
    /// Seeds.
    pub rounds: usize,
    /// Where the traces are, if not the embedded ones.
    pub traces: Option<PathBuf>,
    /// Only this trace.
    pub trace: Option<String>,
    /// Only fleets whose names begin so.
    pub fleet: Option<String>,
    /// Only these speed-ups for eight workers, instead of those of [`loads`]; all of those if there are none.
    pub loads: Vec<f64>,
    /// Only these policies; all if there are none.
    pub policies: Vec<String>,
}

/// Runs that are compared with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Place of the trace.
    trace: usize,
    /// Of the trace.
    pub trace_name: &'static str,
    /// The fleet.
    pub fleet: FleetKind,
    /// By how much the trace's times are divided.
    pub speedup: f64,
}

/// A cell with what each policy made of it, one summary for each seed.
#[derive(Debug, Clone)]
pub struct Compared {
    /// Which.
    pub cell: Cell,
    /// By policy, in their order.
    pub policies: Vec<(&'static str, Vec<Summary>)>,
}

/// Requests of a trace in a smoke run.
const SMOKE: usize = 400;

/// Speed-ups of a trace for eight workers, up to where most policies' queues grow for as long as it lasts; a fleet of more
/// workers gets as much more.
fn loads(trace: &str, split: bool) -> &'static [f64] {
    match (trace, split) {
        ("conversation", true) => &[0.5, 1.0, 1.25, 1.5],
        (_, true) => &[0.25, 0.5, 0.75, 1.0],
        (_, false) => &[0.5, 1.0, 1.5, 2.0],
    }
}

/// All fleets.
fn fleets() -> Vec<FleetKind> {
    let fleet = |split, workers, flaw| FleetKind {
        workers,
        split,
        flaw,
    };
    let mut all = Vec::new();
    for workers in [8, 16, 64] {
        all.extend([true, false].map(|split| fleet(split, workers, Flaw::None)));
    }
    for flaw in [Flaw::SlowWorker, Flaw::SlowLink, Flaw::SilentWorker] {
        all.push(fleet(true, 16, flaw));
    }
    all
}

/// Runs everything; `progress` is told what is done, of how much, and what ended last.
pub fn run(extent: &Extent, mut progress: impl FnMut(usize, usize, &str)) -> Result<Vec<Compared>> {
    let traces = load(extent, extent.traces.as_deref())?;
    let cells = cells(extent, &traces);
    let rounds = extent.rounds.max(1);
    let mut jobs = Vec::new();
    for cell in &cells {
        for contender in contenders(extent, cell) {
            jobs.extend((1..=rounds as u64).map(|seed| (cell, contender, seed)));
        }
    }
    ensure!(
        !jobs.is_empty(),
        "no trace, fleet or policy has such a name"
    );
    let mut done = 0;
    let summaries = in_parallel(
        &jobs,
        |(cell, contender, seed)| one(cell, &traces, *contender, *seed),
        |(cell, contender, _)| {
            done += 1;
            progress(done, jobs.len(), &format!("{cell} {}", contender.name));
        },
    )?;
    let mut summaries = summaries.into_iter();
    let mut of_cell = |cell: &Cell| {
        let contenders = contenders(extent, cell);
        let policies = contenders.map(|contender| {
            let rounds = summaries.by_ref().take(rounds).collect();
            (contender.name, rounds)
        });
        Compared {
            cell: cell.clone(),
            policies: policies.collect(),
        }
    };
    Ok(cells.iter().map(&mut of_cell).collect())
}

fn contenders(extent: &Extent, cell: &Cell) -> impl Iterator<Item = Contender> {
    let split = cell.fleet.split;
    CONTENDERS.into_iter().filter(move |contender| {
        let wanted = &extent.policies;
        (split || !contender.needs_roles)
            && (wanted.is_empty() || wanted.iter().any(|name| name == contender.name))
    })
}

fn load(extent: &Extent, directory: Option<&Path>) -> Result<Vec<Trace>> {
    let names = trace::NAMES.into_iter();
    let wanted = |name: &&str| extent.trace.as_deref().is_none_or(|only| only == *name);
    let names = names.filter(wanted).take(if extent.smoke { 1 } else { 2 });
    names
        .map(|name| {
            let trace = Trace::load(name, directory)?;
            Ok(if extent.smoke {
                trace.cut(SMOKE)
            } else {
                trace
            })
        })
        .collect()
}

fn cells(extent: &Extent, traces: &[Trace]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (place, trace) in traces.iter().enumerate() {
        for fleet in fleets() {
            let name = fleet.name();
            let only = extent.fleet.as_deref();
            if only.is_some_and(|only| !name.starts_with(only))
                || (extent.smoke && fleet.workers > 8)
            {
                continue;
            }
            let loads = match (loads(trace.name, fleet.split), extent.smoke) {
                _ if !extent.loads.is_empty() => &extent.loads,
                (loads, false) => loads,
                (loads, true) => &loads[1..2],
            };
            #[expect(clippy::cast_precision_loss, reason = "64 at most")]
            let size = fleet.workers as f64 / 8.0;
            cells.extend(loads.iter().map(|load| Cell {
                trace: place,
                trace_name: trace.name,
                fleet,
                speedup: load * size,
            }));
        }
    }
    cells
}

fn one(cell: &Cell, traces: &[Trace], contender: Contender, seed: u64) -> Result<Summary> {
    let workers = cell.fleet.workers(seed);
    let mut policy = (contender.make)(seed);
    let trace = &traces[cell.trace];
    let delays = Delays::default();
    let outcome: Outcome = simulation::run(trace, cell.speedup, &workers, delays, policy.as_mut())
        .with_context(|| cell.to_string())?;
    Ok(Summary::of(outcome))
}

/// Does all jobs on all cores; results in the order of the jobs.
fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> Result<R> + Sync,
    mut done: impl FnMut(&J),
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::sync_channel(jobs.len());
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism()?.get() {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(place) else {
                        return;
                    };
                    // Nobody listens any more after a failure.
                    if sender.send((place, work(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (place, result) in receiver {
            results[place] = Some(result?);
            done(&jobs[place]);
        }
        anyhow::Ok(())
    })?;
    results
        .into_iter()
        .map(|result| result.context("a job is missing"))
        .collect()
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}.{}.x{}",
            self.trace_name,
            self.fleet.name(),
            self.speedup
        )
    }
}

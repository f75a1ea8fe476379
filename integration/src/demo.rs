//! The demo: one mixed load, three times, and what became of it.
//!
//! First on engines that each serve whole requests, as a reference. Then on as many engines of which half prefill and
//! half decode, behind a router that chooses for each request. Then there again while a prefill worker is killed and a
//! decode worker is drained, and both are replaced. Engines are emulated ones: their tokens follow from the KV bytes they
//! hold, so equal texts mean that the right KV arrived.
//!
//! [`workload`] is what clients ask, [`load`] sends it, [`fleet`] is what serves it, [`report`] is what is printed.

pub mod answer;
pub mod engine;
pub mod figures;
pub mod fleet;
pub mod load;
pub mod machine;
pub mod pages;
pub mod plan;
pub mod process;
pub mod progress;
pub mod report;
pub mod table;
pub mod why;
pub mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::sync::watch;
use tokio::time::Instant;

use self::engine::Engines;
use self::fleet::{Fleet, MODEL, Role};
use self::load::{Outcome, Progress, Target};
use self::pages::Pages;
use self::report::Report;
use self::workload::Workload;

/// What the demo is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which engines.
    pub engines: Engines,
    /// Requests of each run.
    pub requests: usize,
    /// Seed of the workload.
    pub seed: u64,
    /// Folder for the logs of all processes.
    pub logs: PathBuf,
}

/// One load and what the processes said of it.
pub struct Run {
    /// What became of each request.
    pub outcomes: Vec<Outcome>,
    /// Metrics of the engines after it.
    pub engines: Pages,
    /// Metrics of the router after it.
    pub router: Pages,
    /// How late this machine woke sleepers meanwhile, sorted.
    pub late: Vec<Duration>,
}

/// All runs of the same workload.
pub struct Runs {
    /// Which engines.
    pub engines: Engines,
    /// Requests of each.
    pub requests: usize,
    /// Engines that serve whole requests.
    pub aggregated: Run,
    /// Prefill and decode engines.
    pub apart: Run,
    /// The same while workers come and go.
    pub disturbed: Run,
    /// How they came and went.
    pub events: Vec<String>,
}

impl Runs {
    /// Outcomes of each run, with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &[Outcome])> {
        let reference = ("aggregated", self.aggregated.outcomes.as_slice());
        std::iter::once(reference).chain(self.compared())
    }

    /// Outcomes of those runs whose texts must be the reference's.
    pub fn compared(&self) -> [(&'static str, &[Outcome]); 2] {
        [
            ("apart", &self.apart.outcomes),
            ("apart, workers come and go", &self.disturbed.outcomes),
        ]
    }
}

/// So many engines of each of these roles.
fn workers(roles: &[Role], of_each: usize) -> Vec<(Role, usize)> {
    let roles = roles.iter().copied();
    roles
        .flat_map(|role| (0..of_each).map(move |number| (role, number)))
        .collect()
}

/// Runs the demo.
pub async fn run(options: &Options) -> Result<Report> {
    let workload = Arc::new(Workload::new(options.seed, options.requests));
    eprintln!("each load: {workload}, seed {}", options.seed);
    let of_each = options.engines.of_each_role();
    let whole = workers(&[Role::Aggregated], 2 * of_each);
    let mut fleet = boot(options, "aggregated", "local", &whole).await?;
    let aggregated = undisturbed("aggregated", &mut fleet, &workload).await?;
    // The next ones are not to share the machine with them.
    drop(fleet);
    let halves = workers(&[Role::Prefill, Role::Decode], of_each);
    let mut fleet = boot(options, "apart", "auto", &halves).await?;
    let apart = undisturbed("apart", &mut fleet, &workload).await?;
    let (disturbed, events) = disturbed(&mut fleet, options.engines, &workload).await?;
    drop(fleet);
    Ok(Report::new(&Runs {
        engines: options.engines,
        requests: workload.requests(),
        aggregated,
        apart,
        disturbed,
        events,
    }))
}

/// Starts a router and these workers, and waits until all are ready.
async fn boot(
    options: &Options,
    name: &str,
    force: &str,
    workers: &[(Role, usize)],
) -> Result<Fleet> {
    let started = Instant::now();
    let mut fleet = Fleet::start(name, force, options.engines, &options.logs)?;
    for (role, number) in workers {
        fleet.add(*role, *number)?;
    }
    fleet.wait_until_ready().await?;
    eprintln!(
        "{name}: a router, {count} emulated engines and {count} sidecars are ready after {:.1} s",
        started.elapsed().as_secs_f64(),
        count = workers.len()
    );
    Ok(fleet)
}

/// One load on a fleet that stays as it is.
async fn undisturbed(title: &str, fleet: &mut Fleet, workload: &Arc<Workload>) -> Result<Run> {
    let target = target(fleet, None);
    let (sender, progress) = watch::channel(Progress::default());
    let work = async {
        tokio::join!(
            load::run(workload, &target, sender),
            progress::show(title, workload.requests(), progress),
        )
    };
    let ((outcomes, ()), late) = machine::watched(work).await;
    fleet.check_running()?;
    finished(fleet, outcomes, late).await
}

/// One load during which workers come and go.
async fn disturbed(
    fleet: &mut Fleet,
    engines: Engines,
    workload: &Arc<Workload>,
) -> Result<(Run, Vec<String>)> {
    // The engines have computed these prompts before; under a salt of its own nothing of that is found.
    let target = target(fleet, Some("workers come and go"));
    let (sender, progress) = watch::channel(Progress::default());
    let requests = workload.requests();
    let work = async {
        tokio::join!(
            load::run(workload, &target, sender),
            progress::show("apart, workers come and go", requests, progress.clone()),
            come_and_go(fleet, engines.after(1), requests, progress.clone()),
        )
    };
    let ((outcomes, (), events), late) = machine::watched(work).await;
    Ok((finished(fleet, outcomes, late).await?, events?))
}

async fn finished(fleet: &Fleet, outcomes: Vec<Outcome>, late: Vec<Duration>) -> Result<Run> {
    Ok(Run {
        outcomes,
        engines: fleet.engine_pages().await?,
        router: fleet.router_page().await?,
        late,
    })
}

fn target(fleet: &Fleet, salt: Option<&'static str>) -> Target {
    Target {
        router: fleet.router().to_owned(),
        model: MODEL.to_owned(),
        salt,
    }
}

/// Kills a prefill worker, drains a decode worker, and replaces both by this number; what was done, in words.
async fn come_and_go(
    fleet: &mut Fleet,
    next: usize,
    requests: usize,
    mut progress: watch::Receiver<Progress>,
) -> Result<Vec<String>> {
    let mut events = Vec::new();
    let done = after(&mut progress, requests / 4).await?;
    fleet.kill("prefill-1").await?;
    events.push(format!(
        "after {done} requests: prefill-1 killed (SIGKILL to the engine and to its sidecar)"
    ));
    fleet.add(Role::Prefill, next)?;
    fleet.wait_until_ready().await?;
    let done = progress.borrow().done;
    events.push(format!(
        "after {done} requests: prefill-{next} takes its place"
    ));
    after(&mut progress, requests / 2).await?;
    fleet.add(Role::Decode, next)?;
    fleet.wait_until_ready().await?;
    let started = progress.borrow().done;
    fleet.drain("decode-1").await?;
    let done = progress.borrow().done;
    events.push(format!(
        "after {started} requests: decode-{next} joins and decode-1 drains; after {done} it has left"
    ));
    Ok(events)
}

/// Waits until so many requests have ended; how many have.
async fn after(progress: &mut watch::Receiver<Progress>, count: usize) -> Result<usize> {
    let reached = progress.wait_for(|progress| progress.done >= count).await;
    let done = reached.as_ref().map(|progress| progress.done);
    ensure!(
        done.is_ok(),
        "the load ended before {count} of its requests had"
    );
    Ok(done.unwrap_or(count))
}

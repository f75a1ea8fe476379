//! The measurement: for each row of the matrix Baton, the minimal relay and the engine itself take turns, round after
//! round, so that what else the machine does falls on all three.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::figure::{Figure, Rounds, figure, quantile};
use super::load::{self, Amount, Load, Measured};
use super::process::{CpuClock, resident_bytes};
use super::question::{self, Question};
use super::row::{Arrangement, Chunk, FOOTPRINTS, Form, Row, needed};

/// What runs, as whoever started it says.
#[derive(Debug, Clone, Deserialize)]
pub struct Plan {
    /// The model that the engines serve.
    pub model: String,
    /// What serves split requests.
    pub split: Systems,
    /// What serves local ones.
    pub local: Systems,
}

/// The three that are compared.
#[derive(Debug, Clone, Deserialize)]
pub struct Systems {
    /// Baton.
    pub baton: System,
    /// The minimal relay.
    pub relay: System,
    /// The engine itself.
    pub direct: System,
}

/// One way to reach an engine.
#[derive(Debug, Clone, Deserialize)]
pub struct System {
    /// Where clients ask.
    pub address: SocketAddr,
    /// Processes between clients and engines, by the names of [`Arrangement::processes`].
    #[serde(default)]
    pub processes: BTreeMap<String, u32>,
    /// Engines.
    pub engines: Vec<u32>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Rounds.
    pub rounds: usize,
    /// How long clients ask before anything counts.
    pub warm_up: Duration,
    /// How much counts.
    pub amount: Amount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    Baton,
    Relay,
    Direct,
}

const WAYS: [Way; 3] = [Way::Baton, Way::Relay, Way::Direct];

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Baton => "baton",
            Self::Relay => "relay",
            Self::Direct => "direct",
        }
    }
}

impl Plan {
    fn systems(&self, arrangement: Arrangement) -> &Systems {
        match arrangement {
            Arrangement::Split => &self.split,
            Arrangement::Local => &self.local,
        }
    }

    fn system(&self, arrangement: Arrangement, way: Way) -> &System {
        let systems = self.systems(arrangement);
        match way {
            Way::Baton => &systems.baton,
            Way::Relay => &systems.relay,
            Way::Direct => &systems.direct,
        }
    }

    fn check(&self) -> Result<()> {
        for arrangement in [Arrangement::Split, Arrangement::Local] {
            let mut wanted = arrangement.processes().to_vec();
            wanted.sort_unstable();
            let systems = self.systems(arrangement);
            for system in [&systems.baton, &systems.relay] {
                let given: Vec<&str> = system.processes.keys().map(String::as_str).collect();
                let word = arrangement.word();
                ensure!(given == wanted, "{word} needs the processes {wanted:?}");
            }
        }
        Ok(())
    }
}

/// Everything that was measured.
struct Overhead<'a> {
    plan: &'a Plan,
    extent: Extent,
    questions: HashMap<(Arrangement, usize, Form), Arc<[Question]>>,
    rounds: HashMap<(Row, Way), Rounds>,
}

/// Measures what the figures need whose names begin with `only`; `progress` is told how many measurements of how many
/// are done, and what comes next.
pub async fn run(
    plan: &Plan,
    extent: Extent,
    only: &str,
    mut progress: impl FnMut(usize, usize, &str),
) -> Result<Vec<Figure>> {
    plan.check()?;
    let rows = needed(only);
    ensure!(!rows.is_empty(), "no figure's name begins with {only:?}");
    let mut overhead = Overhead {
        plan,
        extent,
        questions: HashMap::new(),
        rounds: HashMap::new(),
    };
    let total = extent.rounds * rows.len() * WAYS.len();
    let mut done = 0;
    for _ in 0..extent.rounds {
        for row in &rows {
            for way in WAYS {
                let what = format!("{row}, {}", way.word());
                progress(done, total, &what);
                overhead.measure(*row, way).await.context(what)?;
                done += 1;
            }
        }
    }
    progress(done, total, "");
    let mut figures = overhead.figures()?;
    figures.retain(|figure| figure.name.starts_with(only));
    Ok(figures)
}

impl Overhead<'_> {
    async fn measure(&mut self, row: Row, way: Way) -> Result<()> {
        let questions = self.questions(row).await?;
        let system = self.plan.system(row.arrangement, way);
        let load = Load {
            target: system.address,
            questions,
            concurrency: row.concurrency,
            warm_up: self.extent.warm_up,
            amount: self.extent.amount,
        };
        let processes = system.processes.values().chain(&system.engines);
        let all = processes.copied().chain([std::process::id()]);
        let clocks: Vec<CpuClock> = all.map(CpuClock::of).collect::<Result<_>>()?;
        let measured = load::run(&load, &clocks).await?;
        let rounds = self.rounds.entry((row, way)).or_default();
        add(rounds, system, &measured)
    }

    async fn questions(&mut self, row: Row) -> Result<Arc<[Question]>> {
        let key = (row.arrangement, row.words, row.form);
        if let Some(known) = self.questions.get(&key) {
            return Ok(Arc::clone(known));
        }
        let engine = self.plan.system(row.arrangement, Way::Direct).address;
        let learnt = question::learn(engine, &self.plan.model, row.words, row.form).await?;
        let learnt: Arc<[Question]> = learnt.into();
        self.questions.insert(key, Arc::clone(&learnt));
        Ok(learnt)
    }

    fn figures(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for row in Row::all() {
            figures.extend(row.figures().into_iter().filter_map(|name| {
                let metric = name.split('.').nth(1).unwrap_or_default().to_owned();
                let of = |way| self.of(row, way, &metric);
                figure(
                    name,
                    &metric,
                    of(Way::Baton),
                    of(Way::Relay),
                    of(Way::Direct),
                )
            }));
        }
        for chunk in Chunk::all() {
            figures.extend(chunk.figures().into_iter().filter_map(|(name, metric)| {
                let of = |way| self.of_chunk(chunk, way, metric);
                figure(name, metric, &of(Way::Baton), &of(Way::Relay), &[])
            }));
        }
        for (name, process) in FOOTPRINTS {
            let of = |system: &System| megabytes(system.processes[process]);
            let Systems { baton, relay, .. } = &self.plan.split;
            figures.extend(figure(
                name.to_owned(),
                "mb",
                &[of(baton)?],
                &[of(relay)?],
                &[],
            ));
        }
        Ok(figures)
    }

    fn of(&self, row: Row, way: Way, metric: &str) -> &[f64] {
        let rounds = self.rounds.get(&(row, way));
        rounds.map_or(&[], |rounds| rounds.of(metric))
    }

    /// What a stream costs above a whole answer of the same round, per chunk.
    fn of_chunk(&self, chunk: Chunk, way: Way, metric: &str) -> Vec<f64> {
        let unary = self.of(chunk.unary, way, metric);
        let stream = self.of(chunk.stream, way, metric);
        let chunks = self.of(chunk.stream, way, CHUNKS);
        let pairs = stream.iter().zip(unary).zip(chunks);
        pairs
            .map(|((stream, unary), chunks)| (stream - unary) / chunks)
            .collect()
    }
}

/// Chunks per answer: not printed, but divided by.
const CHUNKS: &str = "chunks";

fn add(rounds: &mut Rounds, system: &System, measured: &Measured) -> Result<()> {
    let answers = count(measured.latencies.len());
    let milliseconds = |share| {
        let found = quantile(&measured.latencies, share);
        let found = found.context("nothing was answered while it counted: measure for longer")?;
        Ok::<_, anyhow::Error>(Duration::from_nanos(found).as_secs_f64() * 1e3)
    };
    rounds.add("rps", answers / measured.time.as_secs_f64());
    rounds.add("p50_ms", milliseconds(0.5)?);
    rounds.add("p99_ms", milliseconds(0.99)?);
    rounds.add(CHUNKS, count(measured.chunks) / answers);
    let each = |cpu: &[Duration]| cpu.iter().sum::<Duration>().as_secs_f64() * 1e6 / answers;
    let (between, rest) = measured.cpu.split_at(system.processes.len());
    let (engines, client) = rest.split_at(system.engines.len());
    for (name, cpu) in system.processes.keys().zip(between.chunks(1)) {
        rounds.add(&format!("{name}_cpu_us"), each(cpu));
    }
    if !between.is_empty() {
        rounds.add("cpu_us", each(between));
    }
    rounds.add("engine_cpu_us", each(engines));
    rounds.add("client_cpu_us", each(client));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52 bytes")]
fn megabytes(pid: u32) -> Result<f64> {
    Ok(resident_bytes(pid)? as f64 / 1e6)
}

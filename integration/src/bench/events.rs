//! `cargo xtask bench events`: what it costs to know what engines hold.
//!
//! Three figures. What a sidecar takes to read its engine's events, keep its mirror and write its journal, for each block
//! that comes or goes ([`sidecar`]); what a router takes to read that journal and keep its index ([`router`]); and how long
//! a router that begins anew takes until it knows a million blocks exactly ([`restart`]), with sidecars that hold them,
//! over HTTP. The first two are CPU times of one thread, per block.
//!
//! The reference of the first is reading alone: the same payloads into plain structs by `rmp-serde`, thrown away.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use baton_index::Index;
use baton_proto::frame::FrameReader;
use baton_proto::watch::WatchFrame;
use baton_proto::worker::{EngineKind, Role, WorkerInfo};
use baton_router::view::KvView as RouterView;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::view::KvView;
use baton_sidecar_core::view::metrics::ViewMetrics;
use baton_sidecar_vllm::events::decoder::Decoder;
use bytes::Bytes;
use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::figure::{Figure, median};
use crate::emulated::vllm::events::{Batch, BlockHash, Event, Form, HashForm, Removed, Stored};
use crate::emulated::vllm::{Config, EventsConfig};
use crate::fleet::{self, Fleet, Setup};

const BLOCK: u32 = 16;

/// Blocks of a scheduler step that computes a prompt: 512 tokens.
const STEP: usize = 32;

/// Blocks that an engine holds while it is measured.
const RESIDENT: usize = 100_000;

/// Blocks that come, and as many that go, while it is measured.
const CHURN: usize = 200_000;

/// Engines among which the million blocks are spread, and how many each holds.
const ENGINES: usize = 8;
const EACH: usize = 125_000;

/// How many rounds and how far each goes.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Rounds.
    pub rounds: usize,
    /// A hundredth of everything: shows that it works, and measures nothing.
    pub smoke: bool,
}

impl Extent {
    fn of(self, whole: usize) -> usize {
        if self.smoke { whole / 100 } else { whole }
    }
}

/// Measures everything; `progress` is told what is done, of how much, and what comes next.
pub fn run(extent: Extent, progress: impl Fn(usize, usize, &str)) -> Result<Vec<Figure>> {
    let traffic = Traffic::new(extent.of(RESIDENT), extent.of(CHURN));
    let mut rounds = Rounds::default();
    let total = 2 * extent.rounds;
    for round in 0..extent.rounds {
        progress(round, total, "events");
        rounds.reading.push(traffic.read()?);
        let (cost, journal) = traffic.sidecar()?;
        rounds.sidecar.push(cost);
        rounds.router.push(traffic.router(&journal)?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    rounds.restart = runtime.block_on(restart(extent, |round| {
        progress(extent.rounds + round, total, "a router begins anew");
    }))?;
    Ok(rounds.figures())
}

#[derive(Default)]
struct Rounds {
    reading: Vec<f64>,
    sidecar: Vec<f64>,
    router: Vec<f64>,
    restart: Vec<f64>,
}

impl Rounds {
    fn figures(&self) -> Vec<Figure> {
        let per_second = |rounds: &[f64]| rounds.iter().map(|ns| 1e9 / ns).collect::<Vec<_>>();
        let figure = |name: &str, unit, rounds: &[f64], reference: &[f64]| Figure {
            name: name.to_owned(),
            value: median(rounds).unwrap_or_default(),
            unit,
            spread: [
                rounds.iter().copied().fold(f64::INFINITY, f64::min),
                rounds.iter().copied().fold(0.0, f64::max),
            ],
            reference: median(reference),
            direct: None,
        };
        vec![
            figure("events.ns_per_block", "ns", &self.sidecar, &self.reading),
            figure(
                "events.blocks_per_s",
                "1/s",
                &per_second(&self.sidecar),
                &per_second(&self.reading),
            ),
            figure("events.router_ns_per_block", "ns", &self.router, &[]),
            figure("view.restart_s_1m", "s", &self.restart, &[]),
        ]
    }
}

/// Payloads of one engine's messages: some that fill its cache, and some in which as many blocks come as go.
struct Traffic {
    filling: Vec<Vec<u8>>,
    churning: Vec<Vec<u8>>,
    /// Blocks that come or go in `churning`.
    blocks: usize,
}

fn hash(number: u64) -> BlockHash {
    let mut hash = [0; 32];
    for (place, part) in (0u64..).zip(hash.chunks_exact_mut(8)) {
        part.copy_from_slice(&xxh3_64(&(number * 4 + place).to_le_bytes()).to_be_bytes());
    }
    hash
}

/// A prompt of some blocks that nobody else has.
fn stored(first: u64, blocks: usize) -> Event {
    let numbers = first..first + blocks as u64;
    Event::Stored(Stored {
        hashes: numbers.clone().map(hash).collect(),
        tokens: numbers
            .flat_map(|number| {
                (0..u64::from(BLOCK)).map(move |at| (number * 31 + at * 7) % 128_000)
            })
            .map(|token| u32::try_from(token).unwrap_or_default())
            .collect(),
        block_size: BLOCK,
        ..Stored::default()
    })
}

impl Traffic {
    fn new(resident: usize, churn: usize) -> Self {
        let mut held: VecDeque<u64> = VecDeque::new();
        let (mut filling, mut churning) = (Vec::new(), Vec::new());
        let mut next = 0;
        while churning.len() * STEP < churn {
            let mut events = vec![stored(next, STEP)];
            held.extend((next..next + STEP as u64).rev());
            next += STEP as u64;
            let full = held.len() > resident;
            if full {
                // One by one, the end of the oldest sequence first.
                let gone = held.drain(..STEP).map(|number| {
                    Event::Removed(Removed {
                        hashes: vec![hash(number)],
                    })
                });
                events.extend(gone);
            }
            let batch = Batch {
                ts: 1.0,
                events,
                rank: 0,
            };
            let payload = batch.encode(Form::Maps, HashForm::Int);
            if full { &mut churning } else { &mut filling }.push(payload);
        }
        let blocks = 2 * STEP * churning.len();
        Self {
            filling,
            churning,
            blocks,
        }
    }

    fn per_block(&self, used: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "blocks are few")]
        let blocks = self.blocks as f64;
        used.as_secs_f64() * 1e9 / blocks
    }

    /// Reading alone.
    fn read(&self) -> Result<f64> {
        let started = thread_time()?;
        for payload in &self.churning {
            let batch: PlainBatch = rmp_serde::from_slice(payload)?;
            black_box(&batch);
        }
        Ok(self.per_block(since(started)?))
    }

    /// Mirror and journal; what the journal has of the whole.
    fn sidecar(&self) -> Result<(f64, Journals)> {
        let view = KvView::new(ViewMetrics::default(), None);
        let feed = view.begin(&info());
        let mut decoder = Decoder::default();
        let mut seq = 0;
        let mut apply = |payload: &[u8]| -> Result<()> {
            let batch = decoder.decode(payload).context("a message is unreadable")?;
            let time = batch.time;
            feed.apply(0, Stamp { seq, time }, batch.events());
            seq += 1;
            Ok(())
        };
        for payload in &self.filling {
            apply(payload)?;
        }
        let snapshot: Vec<Bytes> = view.snapshot().collect();
        let mut after = view.snapshot().seq;
        let mut churn = Vec::new();
        let mut used = Duration::ZERO;
        for some in self.churning.chunks(64) {
            let started = thread_time()?;
            for payload in some {
                apply(payload)?;
            }
            used += since(started)?;
            let more = view
                .after(after, usize::MAX)
                .context("the journal is long enough")?;
            after = more.last;
            churn.extend(more.entries);
        }
        Ok((self.per_block(used), Journals { snapshot, churn }))
    }

    /// Frames and index.
    fn router(&self, journals: &Journals) -> Result<f64> {
        let mut view = RouterView::new(Arc::new(Index::new()));
        let mut reader = FrameReader::default();
        let mut take = |frames: &[Bytes]| -> Result<()> {
            for bytes in frames {
                reader.push(bytes);
                while let Some(frame) = reader.next::<WatchFrame>()? {
                    let taken = view.take(frame);
                    ensure!(taken.is_ok(), "the router does not follow: {taken:?}");
                }
            }
            Ok(())
        };
        take(&journals.snapshot)?;
        let started = thread_time()?;
        take(&journals.churn)?;
        Ok(self.per_block(since(started)?))
    }
}

/// What a sidecar tells a router.
struct Journals {
    snapshot: Vec<Bytes>,
    churn: Vec<Bytes>,
}

/// A batch as a plain reader has it.
#[derive(Deserialize)]
#[expect(dead_code, reason = "read to be thrown away")]
struct PlainBatch(f64, Vec<PlainEvent>, Option<u32>);

#[derive(Deserialize)]
#[expect(dead_code, reason = "read to be thrown away")]
struct PlainEvent {
    r#type: String,
    #[serde(default)]
    block_hashes: Vec<u64>,
    #[serde(default)]
    parent_block_hash: Option<u64>,
    #[serde(default)]
    token_ids: Vec<u32>,
    #[serde(default)]
    block_size: u32,
    #[serde(default)]
    medium: Option<String>,
}

fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn since(started: Duration) -> Result<Duration> {
    Ok(thread_time()?.saturating_sub(started))
}

fn info() -> WorkerInfo {
    WorkerInfo {
        models: vec!["tiny".to_owned()],
        block_size: Some(BLOCK),
        ..WorkerInfo::unknown(EngineKind::Vllm, Role::Local)
    }
}

/// Seconds from a router's start until it knows all blocks of all engines exactly.
async fn restart(extent: Extent, progress: impl Fn(usize)) -> Result<Vec<f64>> {
    let each = extent.of(EACH) / STEP * STEP;
    let mut setup = Setup::new();
    for number in 0..ENGINES {
        setup = setup.worker(&format!("e{number}"), engine(each)?);
    }
    let mut fleet = setup.start().await;
    for number in 0..ENGINES {
        fill(&fleet, number, each).await?;
    }
    let all = ENGINES * each;
    let mut seconds = Vec::new();
    for round in 0..extent.rounds {
        progress(round);
        fleet.take_router(0).kill();
        let started = Instant::now();
        fleet.start_router(0).await;
        while exactly_known(&fleet).await != all {
            let limit = Duration::from_secs(60);
            ensure!(started.elapsed() < limit, "the router never knew all");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        seconds.push(started.elapsed().as_secs_f64());
    }
    fleet.finish().await;
    Ok(seconds)
}

fn engine(blocks: usize) -> Result<Config> {
    Ok(Config {
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: String::new(),
            buffer_steps: 100_000,
            hash_form: HashForm::Int,
        }),
        block_size: BLOCK,
        blocks: u32::try_from(blocks)? + 1000,
        // No KV is kept: what is told is not held.
        row_bytes: 2,
        remember: false,
        ..Config::new(None)
    })
}

/// Tells of so many blocks of an engine, and waits until its sidecar knows them.
async fn fill(fleet: &Fleet, number: usize, blocks: usize) -> Result<()> {
    let name = format!("e{number}");
    let base = (number as u64) << 32;
    for first in (0..blocks as u64).step_by(STEP) {
        let told = fleet
            .engine(&name)
            .publish(0, vec![stored(base + first, STEP)]);
        told.context("the engine has events")?;
    }
    let started = Instant::now();
    loop {
        let page = fleet.sidecar_page(&name).await;
        let known = page.sum("baton_sidecar_view_blocks", &[("tier", "device")]);
        let exact = page.sum("baton_sidecar_view_ranks", &[("state", "exact")]);
        if usize::try_from(known) == Ok(blocks) && exact == 1 {
            return Ok(());
        }
        let limit = Duration::from_secs(60);
        ensure!(
            started.elapsed() < limit,
            "{name}'s sidecar knows {known} of {blocks} blocks"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Blocks of all ranks of which the router is certain.
async fn exactly_known(fleet: &Fleet) -> usize {
    let view = fleet::view(fleet.router_address(0)).await;
    let workers = view["workers"].as_array().cloned().unwrap_or_default();
    let ranks = workers.iter().map(|worker| &worker["view"]["ranks"][0]);
    let certain = ranks.filter(|rank| rank["certain"] == true);
    let blocks = certain.filter_map(|rank| rank["blocks"]["device"].as_u64());
    usize::try_from(blocks.sum::<u64>()).unwrap_or_default()
}

//! Baton's index beside those of `dynamo-kv-router`, on one workload in one run.
//!
//! `cargo xtask bench index` builds and runs it. It is a workspace of its own, so that nothing of a peer is in Baton's
//! dependency tree. What is compared with what is in docs/performance.md.

use anyhow::{Result, ensure};
use clap::Parser;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree};

use crate::baton::Baton;
use crate::figures::{Line, RADIX_TREE, Round};
use crate::measure::{Measured, measure};
use crate::subject::Threaded;
use crate::workload::{Size, Workload};

mod baton;
mod clock;
mod figures;
mod measure;
mod mirror;
mod subject;
mod workload;

/// The same for all, and one that remembers who wrote what where: memory is asked of it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures Baton's index beside those of dynamo-kv-router; prints one JSON object a line.
#[derive(Parser)]
struct Cli {
    /// Rounds; a figure is the median of all.
    #[arg(long, default_value_t = 3)]
    rounds: u64,

    /// A fiftieth of the size, and only one size: shows that everything works and measures nothing.
    #[arg(long)]
    smoke: bool,
}

/// A size that is measured.
struct Setting {
    suffix: &'static str,
    size: Size,
    /// Whether the slowest peer takes part.
    positional: bool,
}

const WORKERS: usize = 64;

fn settings(smoke: bool) -> Vec<Setting> {
    let setting = |suffix, resident, positional| Setting {
        suffix,
        size: Size {
            workers: WORKERS,
            resident,
            asked: 4000,
        },
        positional,
    };
    if smoke {
        return vec![setting(".smoke", 20_000, true)];
    }
    vec![
        setting("", 1_000_000, true),
        setting(".4m", 4_000_000, false),
    ]
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let settings = settings(cli.smoke);
    let total = settings.len() as u64 * cli.rounds;
    let mut done = 0;
    for setting in &settings {
        let mut rounds = Vec::new();
        let note = format!("{} blocks in {WORKERS} workers", setting.size.resident);
        figures::print(&Line::Progress {
            done,
            total,
            note: note.clone(),
        });
        let workload = Workload::new(setting.size);
        for _ in 0..cli.rounds {
            rounds.push(round(&workload, setting)?);
            done += 1;
            figures::print(&Line::Progress {
                done,
                total,
                note: note.clone(),
            });
        }
        figures::print_all(&rounds, setting.suffix);
    }
    Ok(())
}

fn round(workload: &Workload, setting: &Setting) -> Result<Round> {
    let baton = measure(|| Ok(Baton::new(WORKERS)), workload, WORKERS)?;
    let mirror = mirror::measure(workload, WORKERS)?;
    let mut peers = vec![
        (
            RADIX_TREE,
            measure(|| Ok(RadixTree::new()), workload, WORKERS)?,
        ),
        (
            "concurrent_radix_tree_compressed",
            measure(
                || Threaded::new(ConcurrentRadixTreeCompressed::new()),
                workload,
                WORKERS,
            )?,
        ),
    ];
    if setting.positional {
        let positional = || Threaded::new(PositionalIndexer::new(64));
        peers.push((
            "positional_indexer",
            measure(positional, workload, WORKERS)?,
        ));
    }
    for (peer, measured) in &peers {
        ensure_equal(peer, &baton, measured)?;
    }
    Ok(Round {
        baton,
        mirror,
        peers,
    })
}

/// What is fast and wrong is worth nothing.
fn ensure_equal(peer: &str, baton: &Measured, measured: &Measured) -> Result<()> {
    let each = baton.found.iter().zip(&measured.found);
    let different = each.filter(|(ours, theirs)| ours != theirs).count();
    ensure!(
        different == 0,
        "{different} finds are not answered as {peer} answers them"
    );
    Ok(())
}

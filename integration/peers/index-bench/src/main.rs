//! Baton's index beside those of `dynamo-kv-router`, on one workload in one run.
//!
//! `cargo xtask bench index` builds and runs it. It is a workspace of its own, so that nothing of a peer is in Baton's
//! dependency tree.

use anyhow::Result;

mod baton;
mod clock;
mod measure;
mod subject;
mod workload;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let resident = args[1].parse()?;
    let workers = 64;
    let size = workload::Size { workers, resident, asked: 4000 };
    let start = std::time::Instant::now();
    let workload = workload::Workload::new(size);
    eprintln!("made {:.1} s, resident {} distinct {} filled {}", start.elapsed().as_secs_f64(), workload.resident, workload.distinct, workload.filled);
    let show = |name: &str, m: &measure::Measured| {
        println!("{name:10} {:6.1} ns/block {:6.1} B/block; trace p50 {:.2} p99 {:.2}, busy {:.2} {:.2}", m.ns_per_block, m.bytes_per_block,
            m.quiet.trace.microseconds(0.5), m.quiet.trace.microseconds(0.99), m.busy.trace.microseconds(0.5), m.busy.trace.microseconds(0.99));
        if args.len() > 3 { for (t, name) in [(&m.quiet, "quiet"), (&m.busy, "busy")] { println!("   {name} {}", t.long.iter().map(|t| format!("{:.1}/{:.1}", t.microseconds(0.5), t.microseconds(0.99))).collect::<Vec<_>>().join(" ")); } }
    };
    let which = args.get(2).map_or("all", |s| s);
    let mut all = vec![];
    if which == "all" || which == "baton" { let m = measure::measure(|| Ok(baton::Baton::new(workers)), &workload, workers)?; show("baton", &m); all.push(m); }
    if which == "all" || which == "radix" { let m = measure::measure(|| Ok(dynamo_kv_router::RadixTree::new()), &workload, workers)?; show("radix", &m); all.push(m); }
    if which == "all" || which == "crtc" { let m = measure::measure(|| subject::Threaded::new(dynamo_kv_router::ConcurrentRadixTreeCompressed::new()), &workload, workers)?; show("crtc", &m); all.push(m); }
    if which == "all" || which == "pos" { let m = measure::measure(|| subject::Threaded::new(dynamo_kv_router::PositionalIndexer::new(64)), &workload, workers)?; show("pos", &m); all.push(m); }
    for m in &all[1..] { println!("differ {}", all[0].found.iter().zip(&m.found).filter(|(a, b)| a != b).count()); }
    Ok(())
}

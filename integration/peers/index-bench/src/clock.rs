//! Time and memory.

use std::time::Instant;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tikv_jemalloc_ctl::{epoch, stats};

/// CPU time of this thread, in ns: what a busy machine distorts least.
pub(crate) fn thread_ns() -> u64 {
    ns(ClockId::ThreadCPUTime)
}

/// CPU time of all threads, in ns.
pub(crate) fn process_ns() -> u64 {
    ns(ClockId::ProcessCPUTime)
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What reading the clock twice takes, in ns. Finds are timed by the wall clock: reading a thread's CPU time takes longer
/// than most of them, and hardly ever does one of a microsecond meet another process.
pub(crate) fn overhead_ns() -> u64 {
    let mut spans: Vec<u64> = (0..1001).map(|_| elapsed_ns(Instant::now())).collect();
    spans.sort_unstable();
    spans[500]
}

pub(crate) fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

/// Bytes on the heap, as the allocator rounds them.
pub(crate) fn heap() -> Result<usize> {
    epoch::advance()?;
    Ok(stats::allocated::read()?)
}

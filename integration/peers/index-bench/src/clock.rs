//! CPU time and memory.

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

/// What reading the clock twice takes.
pub(crate) fn overhead_ns() -> u64 {
    let mut spans: Vec<u64> = (0..1001)
        .map(|_| {
            let start = thread_ns();
            thread_ns() - start
        })
        .collect();
    spans.sort_unstable();
    spans[500]
}

/// Bytes on the heap, as the allocator rounds them.
pub(crate) fn heap() -> Result<usize> {
    epoch::advance()?;
    Ok(stats::allocated::read()?)
}

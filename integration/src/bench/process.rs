//! What a process has used so far, from the operating system.
//!
//! CPU time is the process's own POSIX clock: nanoseconds of the scheduler's accounting, all of its threads, those that
//! have ended included, its children not. `/proc/PID/stat` counts the same in ticks of 10 ms, and `/proc/PID/schedstat`
//! in nanoseconds but for the first thread only. What the kernel does for a process inside its system calls, and that
//! includes carrying a loopback packet to the receiver's socket, is in it.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// The CPU clock of a process.
#[derive(Debug, Clone, Copy)]
pub struct CpuClock {
    pid: u32,
    clock: nix::time::ClockId,
}

impl CpuClock {
    /// The clock of process `pid`.
    pub fn of(pid: u32) -> Result<Self> {
        let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))
            .with_context(|| format!("process {pid} does not run"))?;
        Ok(Self { pid, clock })
    }

    /// CPU time used so far.
    pub fn read(self) -> Result<Duration> {
        let now = self.clock.now();
        let now = now.with_context(|| format!("process {} has ended", self.pid))?;
        Ok(now.into())
    }
}

/// Memory of a process that is in RAM, in bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{file} has no VmRSS"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_counts_all_threads_even_those_that_ended() {
        let clock = CpuClock::of(std::process::id()).unwrap();
        let before = clock.read().unwrap();
        let spent = std::thread::spawn(|| {
            let thread = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
            let spent = || Duration::from(thread.now().unwrap());
            while spent() < Duration::from_millis(20) {
                std::hint::black_box(0);
            }
            spent()
        });
        let spent = spent.join().unwrap();
        assert!(clock.read().unwrap() >= before + spent);
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 20);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(CpuClock::of(u32::from(u16::MAX) * 1000).is_err());
        assert!(resident_bytes(u32::from(u16::MAX) * 1000).is_err());
    }
}

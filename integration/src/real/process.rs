//! Processes of the probe: each in a process group of its own, its output in a file, killed when dropped.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use super::http;

/// How much of a log's end is worth reading.
const TAIL_LINES: usize = 12;

/// Ending by itself takes a real engine some seconds.
const END_BOUND: Duration = Duration::from_secs(60);

/// A running process and all that it started and kept in its group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in `logs/NAME.log`.
    pub fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("could not start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Fails, with the end of its log, if it has ended.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}):\n{}", self.name, self.log_tail()),
            None => Ok(()),
        }
    }

    /// Stops it and all that it started, wherever they are.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets what was stopped go on.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let sent = kill_process_group(Pid::from_child(&self.child), signal);
        sent.with_context(|| format!("{} could not be signalled", self.name))
    }

    /// Asks it to end, and waits until it has.
    pub fn end(mut self) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let what = format!("{} ends after SIGTERM", self.name);
        http::until(&what, END_BOUND, || Ok(self.child.try_wait()?))?;
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- end of {}\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An engine is several processes. The group may be gone already, which is as good.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

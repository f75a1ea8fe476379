//! Processes of a run: each in a process group of its own, its output in a file, killed when its guard is dropped.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::http::wait_for;

/// How much of a log's end is worth reading.
const TAIL_BYTES: u64 = 16 << 10;
const TAIL_LINES: usize = 15;

/// A running process and all that it started and kept in its group.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `logs/NAME.log`.
    pub(crate) fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("could not start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the end of its log, if it has ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        kill(self.pid(), Signal::SIGTERM)
            .with_context(|| format!("could not signal {}", self.name))?;
        wait_for(&format!("{} ends after SIGTERM", self.name), bound, || {
            Ok(self.child.try_wait()?)
        })
    }

    /// Waits for its successful end; what it printed.
    pub(crate) fn finish(mut self, bound: Duration) -> Result<String> {
        let status = wait_for(&format!("{} ends", self.name), bound, || {
            Ok(self.child.try_wait()?)
        })?;
        ensure!(
            status.success(),
            "{} failed ({status}):\n{}",
            self.name,
            self.log_tail()
        );
        fs::read_to_string(&self.log)
            .with_context(|| format!("could not read {}", self.log.display()))
    }

    /// The last lines that it printed.
    pub(crate) fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let text = read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"));
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- end of {}\n{}", self.log.display(), tail.join("\n"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An engine is several processes. The group may be gone already, which is as good.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

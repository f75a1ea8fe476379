//! Processes of the demo. None outlives it, however it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};

/// How much of a log's end is worth reading.
const TAIL_LINES: usize = 12;

/// Subcommand of `baton-demo` that calls [`exec_bound`].
pub const BOUND: &str = "bound";

/// A running process; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in `logs/NAME.log`. It ends with this process's main thread, which must be the one
    /// that calls this.
    pub fn start(name: &str, command: &StdCommand, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
        let this = std::env::current_exe().context("could not find this program's own file")?;
        let environment = command.get_envs();
        let child = Command::new(this)
            .args([BOUND, &getpid().to_string(), "--"])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(environment.filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C on the terminal is for the demo alone.
            .process_group(0)
            .kill_on_drop(true)
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

    /// Sends it SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let killed = self.child.start_kill();
        killed.with_context(|| format!("could not kill {}", self.name))
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- end of {}\n{}", self.log.display(), tail.join("\n"))
    }
}

/// Becomes a program that the kernel kills when `parent`, which must have started this process, ends; returns only if that
/// fails.
pub fn exec_bound(parent: i32, words: &[String]) -> Result<std::convert::Infallible> {
    use std::os::unix::process::CommandExt;

    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the kernel was told.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        bail!("the demo has ended");
    }
    let (program, arguments) = words
        .split_first()
        .context("there is no program to start")?;
    let error = StdCommand::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("could not start {program}"))
}

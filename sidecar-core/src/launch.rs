//! Launching the engine: one process group, whose end is the sidecar's end and the other way round.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use baton_daemon::Exit;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// Longest an engine may take to end by itself.
const END_TIME: Duration = Duration::from_secs(20);

/// How to start the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables that are set beside those of the sidecar.
    pub environment: BTreeMap<String, String>,
}

/// An engine that was launched. Dropping it kills its whole process group.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    group: Option<Pid>,
}

impl Launch {
    /// Starts the engine.
    pub fn start(&self) -> Result<Launched, Exit> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Exit::usage("there is no engine command after --"));
        };
        // An engine is several processes; only a group of its own lets all of them be ended, and keeps a Ctrl-C on the
        // terminal from reaching them before the sidecar has drained.
        let child = Command::new(program)
            .args(arguments)
            .envs(&self.environment)
            .env_remove("BATON_TOKEN")
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Exit::usage(format!(
                    "the engine command {program:?} cannot be started: {error}"
                ))
            })?;
        let group = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        tracing::info!(pid = child.id(), "engine started");
        Ok(Launched { child, group })
    }
}

impl Launched {
    /// Waits for the engine to end; its exit code, or 128 + the signal that ended it.
    pub async fn ended(&mut self) -> Exit {
        match self.child.wait().await {
            Ok(status) => Exit::Child(code_of(status)),
            Err(error) => Exit::failure(format!("the engine cannot be waited for: {error}")),
        }
    }

    /// Asks the engine to end, and insists after a while.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(END_TIME, self.child.wait())
            .await
            .is_err()
        {
            tracing::warn!("the engine did not end when asked to, killing it");
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The group may be gone already, which is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

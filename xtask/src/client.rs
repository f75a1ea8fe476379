//! Runs a program that checks something, such as the Python clients in `integration/engines/*/e2e`, and reads the events
//! that it prints.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::http::wait_for;
use crate::progress::Progress;

/// A client bounds each of its requests; this is for one that is stuck in another way.
const CLIENT_BOUND: Duration = Duration::from_mins(30);

/// One line that a client prints.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// So many steps are done.
    Progress { done: u64, total: u64 },
    /// Something that must hold, and whether it does.
    Check(Check),
    /// Something that was not looked at.
    Skipped(Skipped),
    /// A number worth keeping.
    Figure(Figure),
    /// A chat of the demo.
    Chat(Chat),
}

/// Something that must hold.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) ok: bool,
    #[serde(default)]
    pub(crate) detail: String,
}

/// Something that was not looked at, and why.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// A number worth keeping.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

/// A chat of the demo: what was asked and what happened.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Chat {
    pub(crate) prompt: String,
    pub(crate) plan: String,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) total_ms: Option<f64>,
    pub(crate) error: Option<String>,
}

/// All that a client reported.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) checks: Vec<Check>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) chats: Vec<Chat>,
}

/// A client that runs beside this program.
pub(crate) struct Client {
    child: Child,
    reader: JoinHandle<Result<Outcome>>,
    errors: JoinHandle<String>,
    done: Arc<AtomicU64>,
}

impl Client {
    /// Starts the Python client `script` with a title for its progress.
    pub(crate) fn start(
        title: &str,
        python: &Path,
        script: &Path,
        arguments: &[String],
    ) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(script).args(arguments);
        Self::start_program(title, &mut command)
    }

    /// Starts any program that prints events, with a title for its progress.
    pub(crate) fn start_program(title: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            // No proxy of the environment is reachable from here, and no bytecode belongs in the source tree.
            .env("NO_PROXY", "127.0.0.1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("could not start {}", command.get_program().display()))?;
        let output = child.stdout.take().context("the client has no output")?;
        let mut error_output = child
            .stderr
            .take()
            .context("the client has no error output")?;
        let done = Arc::new(AtomicU64::new(0));
        let progress = Progress::start(title);
        let reader = std::thread::spawn({
            let done = Arc::clone(&done);
            move || read_events(BufReader::new(output), progress, &done)
        });
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = error_output.read_to_string(&mut text);
            text
        });
        Ok(Self {
            child,
            reader,
            errors,
            done,
        })
    }

    /// Steps done so far.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Closes its input, which ends a client that runs until then, and waits for it.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        drop(self.child.stdin.take());
        let ended = wait_for("a client ends", CLIENT_BOUND, || {
            Ok(self.reader.is_finished().then_some(()))
        });
        if ended.is_err() {
            self.child.kill()?;
        }
        ended?;
        let outcome = self
            .reader
            .join()
            .map_err(|_| anyhow::anyhow!("reading a client's output panicked"))??;
        let status = self.child.wait()?;
        let errors = self.errors.join().unwrap_or_default();
        // A failed check is in the outcome; a client that fails without one has broken down itself.
        if !status.success()
            && outcome.checks.iter().all(|check| check.ok)
            && outcome.chats.is_empty()
        {
            bail!("a client broke down ({status}): {}", errors.trim());
        }
        Ok(outcome)
    }
}

/// Runs a client to its end.
pub(crate) fn run(
    title: &str,
    python: &Path,
    script: &Path,
    arguments: &[String],
) -> Result<Outcome> {
    Client::start(title, python, script, arguments)?.finish()
}

fn read_events(lines: impl BufRead, mut progress: Progress, done: &AtomicU64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for line in lines.lines() {
        let line = line?;
        match serde_json::from_str(&line).with_context(|| format!("a client printed {line:?}"))? {
            Event::Progress { done: now, total } => {
                done.store(now, Ordering::Relaxed);
                progress.at(now, total, "");
            }
            Event::Check(check) => outcome.checks.push(check),
            Event::Skipped(skipped) => outcome.skipped.push(skipped),
            Event::Figure(figure) => outcome.figures.push(figure),
            Event::Chat(chat) => outcome.chats.push(chat),
        }
    }
    let failed = outcome.checks.iter().filter(|check| !check.ok).count();
    progress.done(&match failed {
        0 if outcome.checks.is_empty() => "done".to_owned(),
        0 => format!("{} checks held", outcome.checks.len()),
        _ => format!("{failed} of {} checks failed", outcome.checks.len()),
    });
    Ok(outcome)
}

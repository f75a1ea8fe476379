//! Progress of long work: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Where no bar can be drawn, a count is printed this often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// One piece of long work, from its start to its summary.
pub(crate) struct Progress {
    name: String,
    started: Instant,
    bar: Option<ProgressBar>,
    last_printed: Instant,
    last_note: String,
}

impl Progress {
    /// Starts a piece of work.
    pub(crate) fn start(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner()
                .with_prefix(name.clone())
                .with_style(spinner());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            eprintln!("{name} ...");
        }
        let now = Instant::now();
        Self {
            name,
            started: now,
            bar,
            last_printed: now,
            last_note: String::new(),
        }
    }

    /// `done` of `total` steps are done; a total of 0 is an unknown one.
    pub(crate) fn at(&mut self, done: u64, total: u64, note: &str) {
        if let Some(bar) = &self.bar {
            if total > 0 && bar.length() != Some(total) {
                bar.set_length(total);
                bar.set_style(counted());
            }
            bar.set_position(done);
            bar.set_message(note.to_owned());
        } else if self.last_printed.elapsed() >= PLAIN_INTERVAL {
            self.last_printed = Instant::now();
            let of_total = if total > 0 {
                format!("/{total}")
            } else {
                String::new()
            };
            eprintln!("  {}: {done}{of_total} {note}", self.name);
        }
    }

    /// What is being done now.
    pub(crate) fn note(&mut self, note: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(note.to_owned());
        } else if self.last_note != note {
            eprintln!("  {}: {note}", self.name);
        }
        note.clone_into(&mut self.last_note);
    }

    /// Ends the work with a summary line.
    pub(crate) fn done(self, summary: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!(
            "{}: {summary} ({:.1} s)",
            self.name,
            self.started.elapsed().as_secs_f64()
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {prefix}: {pos} {wide_msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn counted() -> ProgressStyle {
    ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {wide_msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

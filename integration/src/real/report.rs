//! What the probe tells: one JSON object a line, as end-to-end clients do.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

/// Prints events as they happen. Threads may share it.
#[derive(Debug)]
pub struct Report {
    out: Mutex<io::Stdout>,
    done: AtomicU64,
    total: u64,
    failed: AtomicBool,
}

impl Report {
    /// Of a run of so many requests, or of so many other steps.
    pub fn new(total: u64) -> Self {
        Self {
            out: Mutex::new(io::stdout()),
            done: AtomicU64::new(0),
            total,
            failed: AtomicBool::new(false),
        }
    }

    /// One more of them is done.
    pub fn request(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.total.max(done);
        self.print(&json!({"event": "progress", "done": done, "total": total}));
    }

    /// Something that must hold.
    pub fn check(&self, name: &str, ok: bool, detail: &str) {
        if !ok {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.print(&json!({"event": "check", "name": name, "ok": ok, "detail": detail}));
    }

    /// A number worth keeping.
    pub fn figure(&self, name: &str, value: u64, unit: &str) {
        self.print(&json!({"event": "figure", "name": name, "value": value, "unit": unit}));
    }

    /// Whether everything so far held.
    pub fn held(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }

    fn print(&self, event: &Value) {
        if let Ok(mut out) = self.out.lock() {
            // Whoever reads is gone: then nobody is told, and the exit code still says it.
            let _ = writeln!(out, "{event}").and_then(|()| out.flush());
        }
    }
}

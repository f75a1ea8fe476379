//! `--record FILE`: what the engine said, byte for byte, to be looked into and replayed elsewhere.
//!
//! One JSON object a line. KV events as they were applied: `{"t", "rank", "frames_hex": [topic, sequence number, payload]}`;
//! what befell the stream: `{"t", "rank", "event"}`; and what the engine is, whenever that changes: `{"t", "attached"}`. `t`
//! is the date in seconds. The tokens of all prompts are in it: the file is its owner's alone.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use baton_daemon::Exit;
use serde_json::{Value, json};

/// A recording that is being made.
#[derive(Debug)]
pub struct Recorder {
    file: Mutex<Option<BufWriter<File>>>,
}

impl Recorder {
    /// Begins a recording, or goes on with one.
    pub fn open(path: &Path) -> Result<Self, Exit> {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path);
        let file = opened.map_err(|error| {
            Exit::usage(format!(
                "--record {} cannot be written: {error}",
                path.display()
            ))
        })?;
        Ok(Self {
            file: Mutex::new(Some(BufWriter::new(file))),
        })
    }

    /// Frames of a message.
    pub fn frames(&self, rank: u32, frames: &[&[u8]]) {
        let frames: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
        self.line(json!({"rank": rank, "frames_hex": frames}));
    }

    /// Something that befell the stream of a rank.
    pub fn event(&self, rank: u32, event: &str) {
        self.line(json!({"rank": rank, "event": event}));
    }

    /// What the engine is.
    pub fn attached(&self, attached: Value) {
        self.line(json!({ "attached": attached }));
    }

    /// A full disk ends the recording, not the sidecar.
    fn line(&self, mut line: Value) {
        line["t"] = now().into();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = file.as_mut() else { return };
        if let Err(error) = writeln!(writer, "{line}").and_then(|()| writer.flush()) {
            tracing::warn!(%error, "the recording ends here");
            *file = None;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a recording tells when things happened; nothing is measured with it"
)]
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

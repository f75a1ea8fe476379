//! A recording as lines or as one document, and what kind it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

/// How many lines may be damaged before the first one that tells the kind.
const UNKNOWN_LINES: usize = 100;

/// Longest document that is not read line by line, in bytes.
const LONGEST_DOCUMENT: u64 = 256 << 20;

/// From this size on there is a progress bar.
const LARGE: u64 = 16 << 20;

/// What a recording is.
pub(super) enum Kind {
    /// Lines of published messages.
    KvEvents,
    /// Lines, or one document, of requests and answers.
    Http,
    /// Exchanges with a replay socket.
    ReplaySocket(Vec<Value>),
    /// Handshakes by name.
    Handshakes(serde_json::Map<String, Value>),
}

/// A line and its number, from 1.
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) text: Vec<u8>,
}

/// Why a recording cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadInput {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("there is nothing in it")]
    Empty,
    #[error(
        "neither KV events, nor a replay exchange, nor requests and answers, nor handshakes; `--help` shows the forms"
    )]
    Unknown,
    #[error("it is no JSON ({0}), and none of its first lines is")]
    NoJson(serde_json::Error),
    #[error("one JSON document of more than {} MiB; one object a line can be of any length", LONGEST_DOCUMENT >> 20)]
    TooLong,
}

/// A recording that is being read.
pub(super) struct Input {
    reader: Box<dyn BufRead>,
    /// Lines that were looked at to tell the kind, the next one last.
    ahead: Vec<Line>,
    lines: u64,
    progress: ProgressBar,
}

impl Input {
    pub(super) fn open(file: &Path) -> io::Result<Self> {
        let (reader, size): (Box<dyn BufRead>, _) = if file.as_os_str() == "-" {
            (Box::new(BufReader::new(io::stdin())), 0)
        } else {
            let file = File::open(file)?;
            let size = file.metadata()?.len();
            (Box::new(BufReader::with_capacity(1 << 16, file)), size)
        };
        Ok(Self {
            reader,
            ahead: Vec::new(),
            lines: 0,
            progress: progress(size),
        })
    }

    /// Tells the kind by the first line that is of one, or else by the whole.
    pub(super) fn recognise(&mut self) -> Result<Kind, BadInput> {
        let mut seen = Vec::new();
        let mut kind = None;
        while seen.len() < UNKNOWN_LINES
            && kind.is_none()
            && let Some(line) = self.next_line()?
        {
            let object = serde_json::from_slice(&line.text).ok();
            kind = object.as_ref().and_then(kind_of_line);
            seen.push(line);
        }
        if seen.is_empty() {
            return Err(BadInput::Empty);
        }
        if kind.is_none() {
            return self.recognise_document(&seen);
        }
        seen.reverse();
        self.ahead = seen;
        kind.ok_or(BadInput::Unknown)
    }

    fn recognise_document(&mut self, seen: &[Line]) -> Result<Kind, BadInput> {
        let mut text: Vec<u8> = Vec::new();
        for line in seen {
            text.extend(&line.text);
        }
        let read = (&mut self.reader)
            .take(LONGEST_DOCUMENT)
            .read_to_end(&mut text)?;
        if u64::try_from(read) == Ok(LONGEST_DOCUMENT) {
            return Err(BadInput::TooLong);
        }
        let document: Value = serde_json::from_slice(&text).map_err(BadInput::NoJson)?;
        if kind_of_line(&document).is_some() {
            // One exchange, written over several lines.
            self.ahead.push(Line { number: 1, text });
            return Ok(Kind::Http);
        }
        let all_text = |map: &serde_json::Map<String, Value>| map.values().all(Value::is_string);
        match document {
            Value::Array(all)
                if all
                    .iter()
                    .any(|one| one.get("received_frames_hex").is_some()) =>
            {
                Ok(Kind::ReplaySocket(all))
            }
            Value::Object(all) if !all.is_empty() && all_text(&all) => Ok(Kind::Handshakes(all)),
            _ => Err(BadInput::Unknown),
        }
    }

    /// The next line that is not empty.
    pub(super) fn next_line(&mut self) -> io::Result<Option<Line>> {
        if let Some(line) = self.ahead.pop() {
            return Ok(Some(line));
        }
        loop {
            let mut text = Vec::new();
            let read = self.reader.read_until(b'\n', &mut text)?;
            if read == 0 {
                self.progress.finish_and_clear();
                return Ok(None);
            }
            self.lines += 1;
            self.progress.inc(u64::try_from(read).unwrap_or_default());
            if !text.trim_ascii().is_empty() {
                return Ok(Some(Line {
                    number: self.lines,
                    text,
                }));
            }
        }
    }
}

fn kind_of_line(object: &Value) -> Option<Kind> {
    let has = |key| object.get(key).is_some();
    let exchange = has("path") && (has("answer") || has("stream") || has("engine_status"));
    if has("frames_hex") || has("attached") {
        Some(Kind::KvEvents)
    } else if exchange || (has("request") && has("response")) {
        Some(Kind::Http)
    } else {
        None
    }
}

/// A bar on a terminal for what takes long, and nothing else.
fn progress(size: u64) -> ProgressBar {
    if size < LARGE {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{bar:40} {binary_bytes}/{binary_total_bytes} {eta}");
    // Drawn on standard error, and not at all where that is no terminal.
    ProgressBar::new(size).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

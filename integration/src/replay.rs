//! What a recording contains, and what a sidecar makes of it: `baton-replay`.
//!
//! Recordings are recognised by content ([`input`]): published KV events ([`log`]), exchanges with an engine's replay socket
//! ([`exchange`]), requests and answers ([`http`]), handshakes ([`handshakes`]). Events go through the decoder and the
//! mirror that a sidecar runs ([`feed`]); nothing of them is written anew here, so what is shown is what a sidecar would
//! know. A report ([`report`]) is data; [`text`] is how a person sees it.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use input::{Input, Kind};
use report::{Content, Report};

mod chains;
mod contents;
mod exchange;
mod feed;
mod handshakes;
mod http;
mod input;
mod log;
pub mod report;
mod text;

/// Shows what a recording of an engine contains, and what a sidecar makes of it.
///
/// It reads KV events (one JSON object a line, `{"frames_hex": ["topic", "sequence number", "payload"]}`), exchanges with the
/// replay socket, requests and answers, and handshakes, and recognises which it is. KV events go through the code that a
/// sidecar runs; the view that results is what a router would be told. In what a sidecar recorded (--record), the losses and
/// restarts that it saw are heeded, too.
#[derive(Debug, Parser)]
#[command(name = "baton-replay", version, after_help = EXAMPLES)]
pub struct Args {
    /// Recordings to read; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Which engine was recorded; what a sidecar recorded says so itself.
    #[arg(long, value_enum, default_value_t = EngineName::Vllm)]
    pub engine: EngineName,
    /// Name of the model, as the fleet knows it: blocks of different models never have one hash. Without it, what follows
    /// the last @ of the topic (kv@POD@MODEL), or no name.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Stops each rank at this sequence number: the view is the one after it.
    #[arg(long, value_name = "SEQ")]
    pub until: Option<u64>,
    /// How many of the longest chains of blocks to show for each rank.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub chains: usize,
    /// Ends with an error at the first thing that cannot be read, instead of reporting and counting it.
    #[arg(long)]
    pub strict: bool,
    /// One JSON object for each file, for programs.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "Examples:
  baton-replay events.jsonl                   what is in it, and the view after it
  baton-replay --until 41 events.jsonl        the view after message 41
  baton-replay --model llama rank0.jsonl rank1.jsonl
  zcat events.jsonl.gz | baton-replay --json - | jq '.view.ranks[].tiers'

What cannot be read is reported on standard error and counted. The exit code is 0; 1 if a file could not be read, or, with
--strict, anything in it; 64 if the command line is wrong.";

/// An engine whose recordings can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// vLLM, 0.10 to 0.32.
    Vllm,
    /// SGLang, up to 0.5.23.
    Sglang,
}

/// Something in a recording that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Line of the file, from 1; for a file that is one document, number of the exchange in it.
    pub at: u64,
    /// What is wrong.
    pub what: String,
}

/// What goes wrong in a run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be read, or holds nothing that is known.
    #[error("{file}: {what}")]
    File {
        /// Its name.
        file: String,
        /// Why.
        what: String,
    },
    /// The report could not be written.
    #[error("the report could not be written: {0}")]
    Output(#[from] io::Error),
}

/// Reads all files and writes a report of each to `out`; to `trouble` what cannot be read.
pub fn run(args: &Args, out: &mut impl Write, trouble: &mut impl Write) -> Result<(), Failure> {
    for (number, file) in args.files.iter().enumerate() {
        let report = report_of(args, file, trouble)?;
        if args.json {
            serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
            continue;
        }
        if number > 0 {
            writeln!(out)?;
        }
        text::write(out, &report)?;
    }
    out.flush()?;
    Ok(())
}

fn report_of(
    args: &Args,
    file: &std::path::Path,
    trouble: &mut impl Write,
) -> Result<Report, Failure> {
    let name = if file.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };
    let failure = |what: String| Failure::File {
        file: name.clone(),
        what,
    };
    let mut input = Input::open(file).map_err(|error| failure(error.to_string()))?;
    let kind = input
        .recognise()
        .map_err(|error| failure(error.to_string()))?;
    let mut damaged = Damaged {
        trouble,
        name: name.clone(),
        strict: args.strict,
        count: 0,
        first: Vec::new(),
    };
    let content = match kind {
        Kind::KvEvents => Content::KvEvents(Box::new(log::read(args, &mut input, &mut damaged)?)),
        Kind::Http => Content::Http(http::read(&mut input, &mut damaged)?),
        Kind::ReplaySocket(exchanges) => {
            Content::ReplaySocket(exchange::read(args, &exchanges, &mut damaged)?)
        }
        Kind::Handshakes(all) => Content::Handshakes(handshakes::read(&all, &mut damaged)?),
    };
    Ok(Report {
        damaged: damaged.count,
        damage: damaged.first,
        file: name,
        content,
    })
}

/// What could not be read so far.
struct Damaged<'a, W> {
    trouble: &'a mut W,
    name: String,
    strict: bool,
    count: u64,
    first: Vec<Damage>,
}

/// How many damages are told; the others are counted only.
const TOLD: usize = 20;

impl<W: Write> Damaged<'_, W> {
    fn note(&mut self, at: u64, what: impl Into<String>) -> Result<(), Failure> {
        let what = what.into();
        if self.strict {
            let (file, what) = (self.name.clone(), format!("{at}: {what}"));
            return Err(Failure::File { file, what });
        }
        self.count += 1;
        if self.first.len() < TOLD {
            writeln!(self.trouble, "{}: {at}: {what}", self.name)?;
            self.first.push(Damage { at, what });
            if self.first.len() == TOLD {
                writeln!(self.trouble, "{}: further ones are only counted", self.name)?;
            }
        }
        Ok(())
    }
}

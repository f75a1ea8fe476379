//! Request traces: the embedded ones, or files of the same form.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use serde::Deserialize;

/// Tokens per number in a trace.
pub const BLOCK: u32 = 512;

/// Names of the embedded traces.
pub const NAMES: [&str; 2] = ["conversation", "synthetic"];

const CONVERSATION: &[u8] =
    include_bytes!("../../recordings/traces/mooncake_conversation_trace.jsonl.gz");
const SYNTHETIC: &[u8] =
    include_bytes!("../../recordings/traces/mooncake_synthetic_trace.jsonl.gz");

/// Requests in the order of their arrival.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Its name in figures.
    pub name: &'static str,
    /// All of them.
    pub requests: Vec<Request>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Seconds since the start of the trace.
    pub at: f64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens of its answer.
    pub answer: u32,
    /// Sequence hashes of the prompt's full blocks.
    pub blocks: Arc<[u64]>,
}

#[derive(Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

impl Trace {
    /// One of [`NAMES`], embedded or out of a directory of uncompressed files with their names of origin.
    pub fn load(name: &'static str, directory: Option<&Path>) -> Result<Self> {
        if let Some(directory) = directory {
            let path = directory.join(format!("mooncake_{name}_trace.jsonl"));
            let file = File::open(&path);
            let file = file.with_context(|| format!("cannot read {}", path.display()))?;
            return Self::read(name, file).with_context(|| format!("in {}", path.display()));
        }
        let bytes = match name {
            "conversation" => CONVERSATION,
            _ => SYNTHETIC,
        };
        Self::read(name, GzDecoder::new(bytes))
    }

    fn read(name: &'static str, from: impl Read) -> Result<Self> {
        let mut requests: Vec<Request> = Vec::new();
        for (number, line) in BufReader::new(from).lines().enumerate() {
            let at = || format!("line {} of the {name} trace", number + 1);
            let row: Row = serde_json::from_str(&line.with_context(at)?).with_context(at)?;
            let request = row.request().with_context(at)?;
            let last = requests.last().map_or(0.0, |last| last.at);
            ensure!(request.at >= last, "{} is out of order", at());
            requests.push(request);
        }
        ensure!(!requests.is_empty(), "the {name} trace is empty");
        Ok(Self { name, requests })
    }

    /// Only its first requests.
    #[must_use]
    pub fn cut(mut self, requests: usize) -> Self {
        self.requests.truncate(requests);
        self
    }

    /// Seconds from the first arrival to the last.
    pub fn span(&self) -> f64 {
        let ends = self.requests.first().zip(self.requests.last());
        ends.map_or(0.0, |(first, last)| last.at - first.at)
    }
}

impl Row {
    fn request(self) -> Result<Request> {
        let blocks = self.input_length.div_ceil(BLOCK) as usize;
        ensure!(
            self.hash_ids.len() == blocks && self.input_length > 0 && self.output_length > 0,
            "a length does not fit"
        );
        let full = (self.input_length / BLOCK) as usize;
        let hashes = self.hash_ids[..full].iter().scan(0, |parent, id| {
            *parent = chained(*parent, *id);
            Some(*parent)
        });
        Ok(Request {
            at: self.timestamp / 1e3,
            prompt: self.input_length,
            answer: self.output_length,
            blocks: hashes.collect(),
        })
    }
}

/// Hash of a block behind another one.
pub fn chained(parent: u64, block: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_traces_are_whole() {
        let traces = NAMES.map(|name| Trace::load(name, None).unwrap());
        let sums = traces.each_ref().map(|trace| {
            let tokens = trace.requests.iter();
            let tokens = tokens.map(|request| u64::from(request.prompt));
            (trace.requests.len(), tokens.sum::<u64>())
        });
        assert_eq!(sums[0].0, 12_031);
        assert_eq!(sums[1].0, 3_993);
        assert_eq!(
            sums.map(|(rows, tokens)| tokens / rows as u64),
            [12_035, 15_325]
        );
        assert!((traces[0].span() - 3_537.0).abs() < 1.0);
    }

    #[test]
    fn the_last_block_counts_only_if_it_is_full() {
        let row = |input_length, hash_ids: &[u64]| Row {
            timestamp: 1500.0,
            input_length,
            output_length: 1,
            hash_ids: hash_ids.to_vec(),
        };
        let full = row(1024, &[1, 2]).request().unwrap();
        let more = row(1025, &[1, 2, 3]).request().unwrap();
        assert_eq!(full.blocks, more.blocks);
        assert_eq!(full.blocks.len(), 2);
        assert!((full.at - 1.5).abs() < 1e-9);
        assert_ne!(row(512, &[2]).request().unwrap().blocks[0], full.blocks[1]);
        assert!(row(1025, &[1, 2]).request().is_err());
    }
}

//! Tokenizers beside each other: first whether they agree with Hugging Face's, then how fast they are.
//!
//! It is a workspace of its own, so that nothing of a peer is in Baton's dependency tree. Run it by hand, on files of models:
//! `cargo run --release -- FILE...`. What came of it is in docs/performance.md and docs/decisions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;

mod corpus;
mod subjects;
mod timing;

use corpus::Corpus;
use subjects::{Subject, peers, reference};

/// Compares tokenizers on files of models.
#[derive(Parser)]
struct Cli {
    /// `tokenizer.json` files, or folders that have one each.
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// Random texts that are compared for each file.
    #[arg(long, default_value_t = 3_000)]
    texts: usize,

    /// Time nothing.
    #[arg(long)]
    no_timing: bool,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    for path in &cli.files {
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.clone()
        };
        let json = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let reference = reference(&json)?;
        let corpus = Corpus::new(&reference, cli.texts);
        println!("{} ({} texts)", name_of(path), corpus.texts.len());
        for (name, subject) in peers(&json) {
            match subject {
                Ok(subject) => println!(
                    "  {name:<12} {}",
                    disagreements(&subject, &reference, &corpus)
                ),
                Err(error) => println!(
                    "  {name:<12} cannot load it: {}",
                    first_line(&error.to_string())
                ),
            }
        }
        if !cli.no_timing {
            timing::report(&json)?;
        }
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn first_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(100)
        .collect()
}

/// How many texts come out otherwise than the reference's, and the shortest of them.
fn disagreements(subject: &Subject, reference: &Subject, corpus: &Corpus) -> String {
    let mut shortest: Option<&str> = None;
    let (mut wrong, mut failed) = (0, 0);
    for text in &corpus.texts {
        let expected = reference.encode(text);
        match catch_unwind(AssertUnwindSafe(|| subject.encode(text))) {
            Ok(Ok(tokens)) if expected.as_ref().is_ok_and(|expected| *expected == tokens) => {}
            outcome => {
                if outcome.is_ok_and(|outcome| outcome.is_ok()) {
                    wrong += 1
                } else {
                    failed += 1
                }
                if shortest.is_none_or(|known| text.len() < known.len()) {
                    shortest = Some(text);
                }
            }
        }
    }
    match shortest {
        None => "agrees on all".to_owned(),
        Some(text) => format!(
            "{wrong} differ, {failed} fail; the shortest: {:?}",
            text.chars().take(60).collect::<String>()
        ),
    }
}

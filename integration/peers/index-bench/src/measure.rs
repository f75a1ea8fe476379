//! One subject, measured.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;

use crate::clock;
use crate::subject::Subject;
use crate::workload::{Event, Sequence, Workload, sequence};

/// Events that are made before each measured stretch.
const STRETCH: usize = 16_384;
/// How often a long sequence is asked for.
const REPEATS: usize = 1000;
/// Lengths of long sequences, in blocks.
pub(crate) const LENGTHS: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// How many hold each, all of it.
pub(crate) const HOLDERS: [usize; 3] = [1, 8, 64];

/// Times of finds, in ns.
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn microseconds(&self, part: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * part) as usize] as f64 / 1000.0
    }
}

/// Finds without and with a writer.
pub(crate) struct Finds {
    pub(crate) trace: Times,
    /// By length and number of holders.
    pub(crate) long: Vec<Times>,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) ns_per_block: f64,
    pub(crate) bytes_per_block: f64,
    pub(crate) quiet: Finds,
    pub(crate) busy: Finds,
    /// What the finds of the trace found without a writer: all subjects must find the same.
    pub(crate) found: Vec<(usize, u32)>,
}

/// Long sequences, and how many hold each.
pub(crate) fn long(workers: usize) -> Vec<(Sequence, usize)> {
    let lengths = LENGTHS.iter().enumerate();
    lengths
        .flat_map(|(place, length)| {
            HOLDERS.map(|holders| {
                let seed = (place * 100 + holders) as u64;
                (sequence(seed, *length), holders.min(workers))
            })
        })
        .collect()
}

pub(crate) fn measure<S: Subject>(
    make: impl FnOnce() -> Result<S>,
    workload: &Workload,
    workers: usize,
) -> Result<Measured> {
    let before = clock::heap()?;
    let mut subject = make()?;
    let (blocks, time) = fill(&mut subject, workload)?;
    let bytes = clock::heap()?.saturating_sub(before);
    let long = long(workers);
    store_long(&mut subject, &long)?;
    let mut found = Vec::new();
    let mut none = Vec::new().into_iter();
    let quiet = finds(&mut subject, workload, &long, &mut none, |answer| {
        found.push(answer)
    })?;
    let churn = workload.events().enumerate().skip(workload.filled);
    let churn = churn
        .map(|(number, event)| S::event(&event, number as u64))
        .collect();
    let mut between = subject.churn(churn)?.into_iter();
    let busy = finds(&mut subject, workload, &long, &mut between, |_| ())?;
    subject.rest()?;
    Ok(Measured {
        ns_per_block: time as f64 / blocks as f64,
        bytes_per_block: bytes as f64 / workload.resident as f64,
        quiet,
        busy,
        found,
    })
}

/// Applies the events that fill the caches; how many blocks they were of, and the CPU time it took.
fn fill<S: Subject>(subject: &mut S, workload: &Workload) -> Result<(usize, u64)> {
    let mut events = workload.filling().enumerate().peekable();
    let (mut blocks, mut time) = (0, 0);
    while events.peek().is_some() {
        let stretch = events.by_ref().take(STRETCH);
        let stretch: Vec<S::Event> = stretch
            .map(|(number, event)| {
                blocks += event.len();
                S::event(&event, number as u64)
            })
            .collect();
        let start = clock::process_ns();
        for event in stretch {
            subject.apply(event)?;
        }
        subject.settle();
        time += clock::process_ns() - start;
    }
    Ok((blocks, time))
}

fn store_long<S: Subject>(subject: &mut S, long: &[(Sequence, usize)]) -> Result<()> {
    let mut number = 1 << 40;
    for (sequence, holders) in long {
        for worker in 0..*holders {
            for (place, blocks) in sequence.chunks(128).enumerate() {
                let start = place * 128;
                let parent = start.checked_sub(1).map(|before| sequence[before].sequence);
                let event = Event::Stored {
                    worker,
                    start,
                    parent,
                    blocks,
                };
                number += 1;
                subject.apply(S::event(&event, number))?;
            }
        }
    }
    subject.settle();
    Ok(())
}

fn finds<S: Subject>(
    subject: &mut S,
    workload: &Workload,
    long: &[(Sequence, usize)],
    between: &mut impl Iterator<Item = S::Event>,
    mut answered: impl FnMut((usize, u32)),
) -> Result<Finds> {
    let overhead = clock::overhead_ns();
    let mut time = |subject: &mut S, query: S::Query| -> Result<(u64, (usize, u32))> {
        if let Some(event) = between.next() {
            subject.apply(event)?;
        }
        let start = Instant::now();
        let answer = black_box(subject.find(query));
        let time = clock::elapsed_ns(start);
        Ok((time.saturating_sub(overhead), subject.read(&answer)))
    };
    let mut trace = Vec::new();
    for sequence in &workload.asked {
        let (ns, answer) = time(subject, S::query(sequence))?;
        trace.push(ns);
        answered(answer);
    }
    let mut by_long = Vec::new();
    for (sequence, holders) in long {
        let query = S::query(sequence);
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let (ns, answer) = time(subject, query.clone())?;
            anyhow::ensure!(
                answer == (*holders, sequence.len() as u32),
                "of {} blocks with {holders} holders it found {answer:?}",
                sequence.len()
            );
            times.push(ns);
        }
        by_long.push(sorted(times));
    }
    Ok(Finds {
        trace: sorted(trace),
        long: by_long,
    })
}

fn sorted(mut times: Vec<u64>) -> Times {
    times.sort_unstable();
    Times(times)
}

//! Baton's index.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use baton_index::{Found, Index, Match, Target, Tier};

use crate::subject::Subject;
use crate::workload::{Event, Sequence};

/// An event as a sidecar gets it from its engine.
pub(crate) struct Announced {
    worker: usize,
    stored: bool,
    blocks: Vec<u64>,
}

/// The router's index.
pub(crate) struct Baton {
    index: Arc<Index>,
    targets: Arc<[Target]>,
    found: Found,
    churning: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Baton {
    pub(crate) fn new(workers: usize) -> Self {
        let index = Index::new();
        let targets = (0..workers).map(|_| index.add_target()).collect();
        Self {
            index: Arc::new(index),
            targets,
            found: Found::new(),
            churning: None,
        }
    }
}

fn change(index: &Index, targets: &[Target], event: &Announced) {
    let target = targets[event.worker];
    if event.stored {
        index.store(target, Tier::DEVICE, &event.blocks);
    } else {
        index.remove(target, Tier::DEVICE, &event.blocks);
    }
}

impl Subject for Baton {
    type Event = Announced;
    type Query = Vec<u64>;
    type Answer = ();

    fn event(event: &Event<'_>, _: u64) -> Announced {
        match *event {
            Event::Stored { worker, blocks, .. } => Announced {
                worker,
                stored: true,
                blocks: blocks.iter().map(|block| block.sequence).collect(),
            },
            Event::Removed { worker, blocks } => Announced {
                worker,
                stored: false,
                blocks: blocks.to_vec(),
            },
        }
    }

    fn query(sequence: &Sequence) -> Vec<u64> {
        sequence.iter().map(|block| block.sequence).collect()
    }

    fn apply(&mut self, event: Announced) -> Result<()> {
        change(&self.index, &self.targets, &event);
        Ok(())
    }

    fn find(&mut self, query: Vec<u64>) {
        self.index.find(&query, &mut self.found);
    }

    fn read(&self, (): &()) -> (usize, u32) {
        let matches = self.found.matches();
        let most = matches.iter().map(Match::blocks).max();
        (matches.len(), most.unwrap_or(0))
    }

    fn churn(&mut self, events: Vec<Announced>) -> Result<Vec<Announced>> {
        let stop = Arc::new(AtomicBool::new(false));
        let (index, targets, stopped) = (self.index.clone(), self.targets.clone(), stop.clone());
        let writer = std::thread::spawn(move || {
            // Over again once it is through: there is a writer for as long as there are finds.
            let events = events.iter().cycle();
            let events = events.take_while(|_| !stopped.load(Ordering::Relaxed));
            events.for_each(|event| change(&index, &targets, event));
        });
        self.churning = Some((stop, writer));
        Ok(Vec::new())
    }

    fn rest(&mut self) -> Result<()> {
        let Some((stop, writer)) = self.churning.take() else {
            return Ok(());
        };
        stop.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("the writer failed"))
    }
}

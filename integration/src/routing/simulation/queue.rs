//! What is still to happen, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::engine::Leg;
use super::super::links::Transfer;
use super::super::policy::{KvChange, Load};

/// Something that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A request comes to the router.
    Arrive(u32),
    /// A leg comes to a worker.
    Leg { worker: usize, leg: Leg },
    /// A worker looks whether there is something to do.
    Wake(usize),
    /// A worker's step is over.
    StepEnd(usize),
    /// A transfer's first byte moves.
    Send(Transfer),
    /// Transfers arrive, unless something changed on the links since.
    Arrivals { version: u64 },
    /// KV was held for as long as it may be.
    LeaseEnd { worker: usize, request: u32 },
    /// The router hears of a worker's cache.
    View {
        worker: usize,
        changes: Vec<KvChange>,
    },
    /// The router has a prefill leg's answer.
    Ready {
        request: u32,
        worker: usize,
        cached: u32,
    },
    /// The router has the first token.
    First { request: u32, worker: usize },
    /// The router has the last token.
    Done {
        request: u32,
        worker: usize,
        generated: u32,
    },
    /// A worker writes a load report.
    Write(usize),
    /// The router reads it.
    Report {
        worker: usize,
        load: Load,
        transfers: Vec<Transfer>,
        seconds: f64,
    },
}

/// Events by time; of several at the same time, the one that was planned first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<Planned>>,
    planned: u64,
}

#[derive(Debug)]
struct Planned {
    at: u64,
    number: u64,
    event: Event,
}

impl Queue {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        let number = self.planned;
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, number, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse(next) = self.heap.pop()?;
        Some((next.at, next.event))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}

//! Events that wait to be polled: those of all ranks in one queue, which whoever polls it empties.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;

use super::config::{Config, EventsConfig, HashAlgo};
use super::events::{Data, Envelope, nothing};

/// One thing that goes wrong between an engine and who polls its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFault {
    /// The next events are numbered and never told: what an overflow does.
    Lose {
        /// How many.
        events: usize,
    },
    /// The next events are neither told nor numbered: there is no gap to see.
    LoseSilently {
        /// How many.
        events: usize,
    },
    /// So many polls that take events are reset instead of answered: the queue is empty all the same.
    CutPolls {
        /// How many.
        polls: usize,
    },
    /// The next polls that take events begin with an event that is none, as the serializer writes it: `{}`.
    Nothings {
        /// How many.
        polls: usize,
    },
}

/// What becomes of a poll.
pub(super) enum Polled {
    Answer(String),
    /// The events are gone, and the poll is not answered.
    Cut,
}

/// Events that wait.
pub(super) struct Outbox {
    config: EventsConfig,
    algo: HashAlgo,
    attention_dp: bool,
    capacity: usize,
    queue: Mutex<Queue>,
    came: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<RawValue>>,
    /// Of each rank.
    next_ids: Vec<u64>,
    discarded: u64,
    lose: usize,
    lose_silently: usize,
    cut: usize,
    nothings: usize,
}

impl Outbox {
    /// An empty one.
    pub(super) fn new(config: &Config, events: &EventsConfig) -> Self {
        let ranks = config.ranks() as usize;
        Self {
            config: events.clone(),
            algo: config.hash_algo,
            attention_dp: config.attention_dp.is_some(),
            // Rank 0 gathers what all of them tell.
            capacity: events.buffer * ranks,
            queue: Mutex::new(Queue {
                next_ids: vec![0; ranks],
                ..Queue::default()
            }),
            came: Notify::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap()
    }

    /// A rank tells something, of each window.
    pub(super) fn tell(&self, rank: u32, told: &[Data]) {
        let mut queue = self.queue();
        for data in told {
            for window in &self.config.windows {
                let event = |event_id| self.envelope(event_id, data, *window, rank).write();
                queue.put(rank, self.capacity, event);
            }
        }
        self.came.notify_one();
    }

    fn envelope<'a>(
        &self,
        event_id: u64,
        data: &'a Data,
        window_size: u32,
        rank: u32,
    ) -> Envelope<'a> {
        let second = self.config.second_manager;
        Envelope {
            event_id,
            data,
            window_size,
            attention_dp_rank: self.attention_dp.then_some(rank),
            hash_algo: second.then(|| self.algo.name()),
            layer_group_id: second.then_some(0),
        }
    }

    /// All that waits, which waits no longer; if nothing does, that is waited for so long.
    pub(super) async fn poll(&self, patience: Duration) -> Polled {
        let waits = async {
            while self.queue().waiting.is_empty() {
                self.came.notified().await;
            }
        };
        let _ = tokio::time::timeout(patience, waits).await;
        self.queue().take()
    }

    /// From now on.
    pub(super) fn raise(&self, fault: EventFault) {
        let mut queue = self.queue();
        match fault {
            EventFault::Lose { events } => queue.lose += events,
            EventFault::LoseSilently { events } => queue.lose_silently += events,
            EventFault::CutPolls { polls } => queue.cut += polls,
            EventFault::Nothings { polls } => queue.nothings += polls,
        }
    }

    /// Nothing goes wrong any more.
    pub(super) fn clear(&self) {
        let mut queue = self.queue();
        (queue.lose, queue.lose_silently) = (0, 0);
        (queue.cut, queue.nothings) = (0, 0);
    }

    /// Events that found no room, in this life.
    pub(super) fn discarded(&self) -> u64 {
        self.queue().discarded
    }
}

/// Whether one of so many is left, which is then used up.
fn use_up(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

impl Queue {
    fn put(&mut self, rank: u32, capacity: usize, event: impl FnOnce(u64) -> Box<RawValue>) {
        if use_up(&mut self.lose_silently) {
            return;
        }
        let next = &mut self.next_ids[rank as usize];
        let id = *next;
        *next += 1;
        if use_up(&mut self.lose) {
            return;
        }
        self.waiting.push_back(event(id));
        // The oldest goes, and nothing marks where it was.
        if self.waiting.len() > capacity {
            self.waiting.pop_front();
            self.discarded += 1;
        }
    }

    fn take(&mut self) -> Polled {
        let mut events: Vec<_> = self.waiting.drain(..).collect();
        if !events.is_empty() && use_up(&mut self.cut) {
            return Polled::Cut;
        }
        if !events.is_empty() && use_up(&mut self.nothings) {
            events.insert(0, nothing());
        }
        Polled::Answer(serde_json::to_string(&events).expect("events are writable"))
    }
}

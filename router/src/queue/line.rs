//! The order of those who wait, and who is woken. Pure: no clock, no waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::Number;

/// Who came when.
pub(super) type Ticket = u64;

/// What one who waits is told.
#[derive(Debug, Default)]
pub(super) struct Wake {
    rung: Notify,
    must_go: AtomicBool,
}

impl Wake {
    /// Waits for a word. One that came while nobody listened counts.
    pub(super) async fn heard(&self) {
        self.rung.notified().await;
    }

    /// Whether the place was given to another.
    pub(super) fn must_go(&self) -> bool {
        self.must_go.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        self.rung.notify_one();
    }
}

#[derive(Debug)]
struct Waiter {
    model: String,
    wants: BTreeSet<Number>,
    /// Whose room he was told of since he last said what he wants.
    offered: BTreeSet<Number>,
    wake: Arc<Wake>,
}

/// Those who wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiters: BTreeMap<Ticket, Waiter>,
    /// Who waits for whose room.
    wanted: HashMap<Number, BTreeSet<Ticket>>,
    /// How many requests of each model wait.
    models: HashMap<String, usize>,
    next: Ticket,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many wait for room in each worker, before this one or before who comes now.
    pub(super) fn ahead(&self, before: Option<Ticket>) -> Vec<(Number, u32)> {
        let before = before.unwrap_or(Ticket::MAX);
        let count = |(number, wanting): (&Number, &BTreeSet<Ticket>)| {
            let ahead = match before {
                Ticket::MAX => wanting.len(),
                ticket => wanting.range(..ticket).count(),
            };
            (ahead > 0).then(|| (*number, u32::try_from(ahead).unwrap_or(u32::MAX)))
        };
        self.wanted.iter().filter_map(count).collect()
    }

    /// A place at the end.
    pub(super) fn enter(&mut self, model: &str) -> (Ticket, Arc<Wake>) {
        let ticket = self.next;
        self.next += 1;
        let wake = Arc::new(Wake::default());
        let waiter = Waiter {
            model: model.to_owned(),
            wants: BTreeSet::new(),
            offered: BTreeSet::new(),
            wake: Arc::clone(&wake),
        };
        self.waiters.insert(ticket, waiter);
        *self.models.entry(model.to_owned()).or_default() += 1;
        (ticket, wake)
    }

    /// Has the last of the model with most requests go, if that has more than this one would have.
    pub(super) fn make_room(&mut self, model: &str) -> bool {
        let own = self.models.get(model).copied().unwrap_or(0);
        let Some((most, count)) = self.models.iter().max_by_key(|(_, count)| **count) else {
            return false;
        };
        if *count <= own + 1 {
            return false;
        }
        let of_most = |waiter: &Waiter| waiter.model == *most;
        let last = self
            .waiters
            .iter()
            .rev()
            .find(|(_, waiter)| of_most(waiter));
        let Some((last, wake)) = last.map(|(ticket, waiter)| (*ticket, Arc::clone(&waiter.wake)))
        else {
            return false;
        };
        wake.must_go.store(true, Ordering::Relaxed);
        wake.ring();
        self.leave(last);
        true
    }

    /// One waits for room in these workers, too. Room that he was told of and does not take goes to the next. Other workers he
    /// goes on waiting for: among equals that are all full he may want another one each time he is asked, and if he let go of
    /// the last one each time, two like him would wake each other for ever.
    pub(super) fn wants(&mut self, ticket: Ticket, workers: &[Number]) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return;
        };
        let mut declined = std::mem::take(&mut waiter.offered);
        for worker in workers {
            declined.remove(worker);
            waiter.wants.insert(*worker);
            self.wanted.entry(*worker).or_default().insert(ticket);
        }
        waiter.wants.retain(|worker| !declined.contains(worker));
        for worker in declined {
            self.forgo(ticket, worker);
        }
    }

    /// One is served, or has given up.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.remove(&ticket) else {
            return;
        };
        if let Some(count) = self.models.get_mut(&waiter.model) {
            *count -= 1;
            if *count == 0 {
                self.models.remove(&waiter.model);
            }
        }
        for worker in waiter.wants {
            self.forgo(ticket, worker);
        }
    }

    /// The first who waits for room in a worker is to look.
    pub(super) fn wake_first(&mut self, worker: Number) {
        let first = self.wanted.get(&worker).and_then(BTreeSet::first);
        if let Some(waiter) = first.and_then(|ticket| self.waiters.get_mut(ticket)) {
            waiter.offered.insert(worker);
            waiter.wake.ring();
        }
    }

    fn forgo(&mut self, ticket: Ticket, worker: Number) {
        if let Some(wanting) = self.wanted.get_mut(&worker) {
            wanting.remove(&ticket);
            if wanting.is_empty() {
                self.wanted.remove(&worker);
            }
        }
        self.wake_first(worker);
    }
}

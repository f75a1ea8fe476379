//! Requests that wait here because whoever should serve them has no room: they are given to a worker when there is some, by the
//! plan that is best then, and not to one engine's own queue before it is known who will be free first.
//!
//! Who waits says for whose room ([`Place::wants`]). Room goes to the first who wants it; nobody takes room that somebody before
//! him waits for. When room may be there the first is woken and plans again. If he is served, or does not take it, the next
//! is; so however many wait, one plan is made for each piece of room.
//!
//! The queue is bounded. When it is full the model with most requests in it gives way, so one model's flood refuses its own
//! requests and not those of others. While nobody waits nothing is locked here.

mod line;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use tokio::time::Instant;

use self::line::{Line, Ticket, Wake};
use crate::metrics::Metrics;

/// How often one who waits plans again, whatever he hears: workers join, and what was predicted may be wrong.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Words for why a request is told to come again.
pub const REFUSED: [&str; 4] = ["full", "gave_way", "too_long", "waited"];

/// A worker, by the number of its books.
type Number = u32;

/// Those who wait for room.
#[derive(Debug)]
pub struct Queue {
    most: usize,
    waiting: AtomicUsize,
    line: Mutex<Line>,
    metrics: Metrics,
}

/// How many wait for room in each worker, before one request.
#[derive(Debug, Clone, Default)]
pub struct Ahead(Vec<(Number, u32)>);

impl Ahead {
    /// Nobody waits.
    pub const fn nobody() -> Self {
        Self(Vec::new())
    }

    /// How many wait for room in this worker.
    pub fn of(&self, worker: Number) -> u32 {
        let known = self.0.iter().find(|(number, _)| *number == worker);
        known.map_or(0, |(_, ahead)| *ahead)
    }
}

impl Queue {
    /// An empty one for at most so many.
    pub fn new(most: usize, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            most,
            waiting: AtomicUsize::new(0),
            line: Mutex::default(),
            metrics,
        })
    }

    /// Whether requests wait here at all.
    pub fn is_open(&self) -> bool {
        self.most > 0
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        // Who gives room back looks here behind that; who waits counts himself before he looks for room.
        self.waiting.load(Ordering::SeqCst)
    }

    /// Who waits before a request with this place, or before one that comes now.
    pub fn ahead(&self, place: Option<&Place>) -> Ahead {
        if self.waiting() == 0 {
            return Ahead::default();
        }
        Ahead(self.lock().ahead(place.map(|place| place.ticket)))
    }

    /// Somebody may have room by now.
    pub fn room_in(&self, worker: Number) {
        if self.waiting() > 0 {
            self.lock().wake_first(worker);
        }
    }

    /// A place at the end. Somebody of another model may have to go for it. If there is none, it is worth to come again
    /// `after_s` seconds from now.
    pub fn enter(self: &Arc<Self>, model: Option<&str>, after_s: u32) -> Result<Place, Error> {
        let model = model.unwrap_or_default();
        let mut line = self.lock();
        if line.len() >= self.most && !line.make_room(model) {
            drop(line);
            self.metrics.refused("full");
            let message = format!("{} requests wait for room already", self.most);
            return Err(overloaded(message, after_s));
        }
        let (ticket, wake) = line.enter(model);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(line);
        self.metrics.queued.inc();
        Ok(Place {
            queue: Arc::clone(self),
            ticket,
            wake,
            since: Instant::now(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue. Dropping it leaves, on every path, and wakes who comes next.
#[derive(Debug)]
pub struct Place {
    queue: Arc<Queue>,
    ticket: Ticket,
    wake: Arc<Wake>,
    since: Instant,
}

impl Place {
    /// He waits for room in these workers.
    pub fn wants(&self, workers: &[Number]) {
        self.queue.lock().wants(self.ticket, workers);
    }

    /// Waits until it is worth to plan again, but no longer than until `end`. Who has waited in vain may come again after so
    /// many seconds.
    pub async fn woken(&self, end: Instant, after_s: u32) -> Result<(), Error> {
        let look = (Instant::now() + LOOK_AGAIN).min(end);
        let _ = tokio::time::timeout_at(look, self.wake.heard()).await;
        if self.wake.must_go() {
            self.queue.metrics.refused("gave_way");
            let message = "too many requests to this model wait for room".to_owned();
            return Err(overloaded(message, after_s));
        }
        if Instant::now() < end {
            return Ok(());
        }
        self.queue.metrics.refused("waited");
        let waited = self.since.elapsed().as_secs();
        let message =
            format!("it has waited for {waited} s, and nobody who could serve it has room");
        Err(overloaded(message, after_s))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.lock().leave(self.ticket);
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
        let metrics = &self.queue.metrics;
        metrics.queued.dec();
        metrics.waited(self.since.elapsed().as_secs_f64());
    }
}

/// There is more to do than can be done.
pub fn overloaded(message: String, after_s: u32) -> Error {
    let error = Error::new(ErrorKind::Overloaded, Source::Router, Stage::Plan, message);
    error.retry(Retry::Safe).after_s(after_s)
}

#[cfg(test)]
mod tests;

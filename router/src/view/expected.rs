//! Blocks that a worker should hold though no event says so: of requests that were sent to it a moment ago, and, where
//! events are missing or not to be relied on, of those that it served lately.
//!
//! Each request counts for all full blocks of its prompt, so that the set always has what comes before each of its blocks:
//! how much of a prompt is in it is found by halving. A dropped [`Expectation`] takes back what it counted for if the prompt
//! was not computed. If it was, the events of an exact view get a moment to tell, and where there are none the prompt
//! counts for a while.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long after a prompt was computed its blocks are expected to be told by events.
const GRACE: Duration = Duration::from_secs(10);

/// The same when the request is over, which is later: an answer may be there before the events of its prompt.
const LINGER: Duration = Duration::from_secs(1);

/// Most blocks where a worker's capacity is not told.
const MOST_UNTOLD: usize = 1 << 16;

/// Most blocks of a worker, whatever it tells.
const MOST: usize = 1 << 20;

/// What one worker is expected to hold.
#[derive(Debug)]
pub struct Expected {
    ttl: Duration,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    /// How many requests count for a block.
    counts: HashMap<u64, u32>,
    /// Prompts that were computed, by the moment at which they count no longer.
    computed: BTreeMap<End, Computed>,
    serial: u64,
    most: usize,
}

/// When something ends; the number tells those of one moment apart.
type End = (Instant, u64);

#[derive(Debug)]
struct Computed {
    blocks: Arc<[u64]>,
    /// No event will tell better.
    approximate: bool,
}

impl Expected {
    /// Nothing is expected yet. Where events do not tell, a prompt counts for `ttl`.
    pub fn new(ttl: Duration) -> Arc<Self> {
        let books = Books {
            counts: HashMap::new(),
            computed: BTreeMap::new(),
            serial: 0,
            most: MOST_UNTOLD,
        };
        Arc::new(Self {
            ttl,
            books: Mutex::new(books),
        })
    }

    /// How many blocks the worker can hold: more of them are not expected.
    pub fn bound(&self, capacity: Option<u64>) {
        let told = capacity.map(|blocks| usize::try_from(blocks).unwrap_or(MOST));
        self.lock().most = told.unwrap_or(MOST_UNTOLD).min(MOST);
    }

    /// A prompt of these blocks is about to be sent. `None` if they are too many.
    pub fn expect(self: &Arc<Self>, blocks: &Arc<[u64]>) -> Option<Expectation> {
        let mut books = self.lock();
        books.expire(Instant::now());
        if blocks.is_empty() || !books.make_room(blocks.len()) {
            return None;
        }
        for block in blocks.iter() {
            *books.counts.entry(*block).or_default() += 1;
        }
        Some(Expectation {
            expected: Arc::clone(self),
            blocks: Arc::clone(blocks),
            end: None,
        })
    }

    /// How many blocks of a prompt are expected, from its beginning.
    pub fn matching(&self, blocks: &[u64]) -> u64 {
        let mut books = self.lock();
        books.expire(Instant::now());
        if books.counts.is_empty() {
            return 0;
        }
        blocks.partition_point(|block| books.counts.contains_key(block)) as u64
    }

    /// Nothing that was computed counts any more: the engine began anew.
    pub fn forget(&self) {
        let mut books = self.lock();
        for (_, computed) in std::mem::take(&mut books.computed) {
            books.take_off(&computed.blocks);
        }
    }

    /// Events tell now what was approximated before.
    pub fn forget_approximate(&self) {
        let mut books = self.lock();
        let ends: Vec<End> = books
            .computed
            .iter()
            .filter_map(|(end, computed)| computed.approximate.then_some(*end))
            .collect();
        for end in ends {
            books.end(end);
        }
    }

    /// Gives memory back for what is over. To be called now and then.
    pub fn sweep(&self) {
        let mut books = self.lock();
        books.expire(Instant::now());
        if books.counts.is_empty() {
            books.counts = HashMap::new();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.computed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let computed = entry.remove();
            self.take_off(&computed.blocks);
        }
    }

    /// What is closest to its end goes first.
    fn make_room(&mut self, blocks: usize) -> bool {
        while self.counts.len() + blocks > self.most {
            let Some((_, computed)) = self.computed.pop_first() else {
                return false;
            };
            self.take_off(&computed.blocks);
        }
        true
    }

    fn schedule(&mut self, at: Instant, computed: Computed) -> End {
        self.serial += 1;
        let end = (at, self.serial);
        self.computed.insert(end, computed);
        end
    }

    fn end_by(&mut self, end: End, at: Instant) {
        if end.0 > at
            && let Some(computed) = self.computed.remove(&end)
        {
            self.schedule(at, computed);
        }
    }

    fn end(&mut self, end: End) {
        if let Some(computed) = self.computed.remove(&end) {
            self.take_off(&computed.blocks);
        }
    }

    fn take_off(&mut self, blocks: &[u64]) {
        for block in blocks {
            match self.counts.get_mut(block) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.counts.remove(block);
                }
            }
        }
    }
}

/// A request's prompt is counted for. Dropping this takes it off again, on every path.
#[derive(Debug)]
pub struct Expectation {
    expected: Arc<Expected>,
    blocks: Arc<[u64]>,
    /// When it ends; none before the prompt is computed.
    end: Option<Planned>,
}

#[derive(Debug, Clone, Copy)]
struct Planned {
    end: End,
    /// It stays for its time though the request is over.
    stays: bool,
}

impl Expectation {
    /// The prompt is computed. If the worker's view is `exact`, events tell of its blocks before long, or never; else they
    /// are believed to be there for a while.
    pub fn computed(&mut self, exact: bool) {
        if self.end.is_some() {
            return;
        }
        let span = if exact { GRACE } else { self.expected.ttl };
        let computed = Computed {
            blocks: Arc::clone(&self.blocks),
            approximate: !exact,
        };
        let end = self
            .expected
            .lock()
            .schedule(Instant::now() + span, computed);
        let stays = !exact;
        self.end = Some(Planned { end, stays });
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        let mut books = self.expected.lock();
        match self.end {
            None => books.take_off(&self.blocks),
            Some(planned) if !planned.stays => books.end_by(planned.end, Instant::now() + LINGER),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;

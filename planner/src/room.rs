//! Whether a worker has room for one request more: a place among its sequences, and blocks for its KV.
//!
//! What its engine reported is the base. Books would not do for KV: blocks that sequences share are counted by each of them
//! there, and a worker that seems full must be, or requests would wait for nobody. What was given and what has ended since the
//! report is added from the books, so an error lasts for as long as a report does.

use std::sync::Arc;

use crate::book::to_f64;
use crate::worker::{Limits, Worker};

/// Part of its blocks that an engine keeps free for the sequences that it has.
const KEPT_FREE: f64 = 0.02;

/// What is known of a worker's room beside its sequences.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Tokens of KV in use by the last report.
    reported: Option<u64>,
    /// What was given since, less what has ended.
    since: i64,
    /// What will be given.
    promised: Vec<Promised>,
    promises: u64,
}

/// A sequence on its way.
#[derive(Debug)]
struct Promised {
    number: u64,
    tokens: u64,
    /// When it is to come.
    due: f64,
}

impl Room {
    pub(crate) fn report(&mut self, kv_tokens: Option<u64>) {
        self.reported = kv_tokens;
        self.since = 0;
    }

    pub(crate) fn given(&mut self, tokens: u64) {
        self.since = self.since.saturating_add_unsigned(tokens);
    }

    pub(crate) fn ended(&mut self, tokens: u64) {
        self.since = self.since.saturating_sub_unsigned(tokens);
    }

    /// Whether a request of so many tokens fits beside `sequences`.
    fn fits(&self, sequences: u32, tokens: u64, limits: &Limits) -> bool {
        let sequences = sequences.saturating_add(self.promised());
        let promised_tokens: u64 = self.promised.iter().map(|promised| promised.tokens).sum();
        // Whoever has nothing to do takes anything, whatever was reported.
        if sequences == 0 {
            return true;
        }
        let place = limits.sequences.is_none_or(|most| sequences < most);
        let blocks = limits
            .kv_tokens
            .zip(self.reported)
            .is_none_or(|(most, used)| {
                let used = used.saturating_add_signed(self.since);
                let wanted = used.saturating_add(promised_tokens).saturating_add(tokens);
                to_f64(wanted) <= to_f64(most) * (1.0 - KEPT_FREE)
            });
        place && blocks
    }

    /// How many sequences are on their way.
    pub(crate) fn promised(&self) -> u32 {
        u32::try_from(self.promised.len()).unwrap_or(u32::MAX)
    }

    /// Seconds that those lose, all together, who come before a prompt is done that is begun and done then.
    fn held_up(&self, begun: f64, done: f64) -> f64 {
        let lost = |promised: &Promised| (done - promised.due.max(begun)).max(0.0);
        self.promised.iter().map(lost).sum()
    }
}

impl Worker {
    /// Whether it has room for a request of which it would have to hold so many tokens more.
    pub fn has_room(&self, limits: &Limits, tokens: u64) -> bool {
        let state = self.lock();
        state.room.fits(state.book.all_sequences(), tokens, limits)
    }

    /// A sequence of so many tokens will come here then. Its room is kept until the promise is dropped.
    pub fn promise(self: &Arc<Self>, tokens: u64, due: f64) -> Promise {
        let mut state = self.lock();
        let room = &mut state.room;
        room.promises += 1;
        let number = room.promises;
        room.promised.push(Promised {
            number,
            tokens,
            due,
        });
        drop(state);
        Promise {
            worker: Arc::clone(self),
            number,
        }
    }

    /// Seconds that sequences on their way here lose, all together, by a prompt that is begun and done then.
    pub(crate) fn held_up(&self, begun: f64, done: f64) -> f64 {
        self.lock().room.held_up(begun, done)
    }
}

/// Room that is kept for a sequence on its way. Dropping it gives that back.
#[derive(Debug)]
pub struct Promise {
    worker: Arc<Worker>,
    number: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let promised = &mut self.worker.lock().room.promised;
        promised.retain(|promised| promised.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, Work};

    const LIMITS: Limits = Limits {
        kv_tokens: Some(1000),
        sequences: Some(3),
        context: None,
        bytes_per_token: None,
    };

    fn reported(worker: &Worker, seq: u64, kv_tokens: u64) {
        worker.report(Load {
            seq,
            kv_tokens: Some(kv_tokens),
            ..Load::default()
        });
    }

    fn work(tokens: u64) -> Work {
        Work { tokens, cached: 0 }
    }

    #[test]
    fn places_are_counted_with_those_that_are_promised() {
        let worker = Worker::new();
        let _one = worker.book(work(10), 10, 0.0);
        let two = worker.book(Work::default(), 10, 0.0);
        assert!(worker.has_room(&LIMITS, 10));
        let promise = worker.promise(10, 0.0);
        assert!(!worker.has_room(&LIMITS, 10));
        drop(promise);
        let _three = worker.book(Work::default(), 10, 0.0);
        assert!(!worker.has_room(&LIMITS, 10));
        drop(two);
        assert!(worker.has_room(&LIMITS, 10));
        assert!(worker.has_room(&Limits::default(), 10), "nothing is known");
    }

    #[test]
    fn kv_is_what_the_engine_reported_and_what_came_and_went_since() {
        let worker = Worker::new();
        // The engine shares what the book counts twice.
        let one = worker.book(work(600), 600, 0.0);
        let two = worker.book(
            Work {
                tokens: 50,
                cached: 550,
            },
            600,
            0.0,
        );
        assert!(worker.has_room(&LIMITS, 900), "nothing was reported yet");
        reported(&worker, 1, 650);
        assert!(worker.has_room(&LIMITS, 330));
        assert!(!worker.has_room(&LIMITS, 331));
        let promise = worker.promise(300, 0.0);
        assert!(!worker.has_room(&LIMITS, 100));
        drop(promise);
        let mut three = worker.book(work(300), 300, 0.0);
        three.grown(320);
        assert!(!worker.has_room(
            &Limits {
                sequences: None,
                ..LIMITS
            },
            20
        ));
        drop(three);
        drop(one);
        assert!(worker.has_room(&LIMITS, 930));
        drop(two);
    }

    #[test]
    fn who_comes_while_a_prompt_is_computed_loses_what_is_left_of_it() {
        let worker = Worker::new();
        let promises = [1.0, 4.0, 9.0].map(|due| worker.promise(10, due));
        let lost = |begun, done| worker.held_up(begun, done);
        assert!(
            (lost(2.0, 6.0) - (4.0 + 2.0)).abs() < 1e-9,
            "the first is late anyway"
        );
        assert!(lost(9.5, 9.5).abs() < 1e-9);
        drop(promises);
        assert!(lost(0.0, 100.0).abs() < 1e-9);
    }

    #[test]
    fn whoever_is_idle_has_room() {
        let worker = Worker::new();
        reported(&worker, 1, 1000);
        assert!(worker.has_room(&LIMITS, 900));
        let _promise = worker.promise(1, 0.0);
        assert!(!worker.has_room(&LIMITS, 900));
    }
}

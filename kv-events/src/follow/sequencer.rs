//! In which order messages of one rank are applied, and when the engine is asked for them again.
//!
//! Pure: it is told what happened and says what is to be done. Publishing is lossy (a full queue, a connection that ended,
//! a subscription that came late), but the engine keeps its last messages and sends them again to whoever asks: all that
//! it has from a number on, without a word about what it has not. So every question begins with the last message that was
//! applied. If the answer begins with that very message, the engine is in the life that was followed; if it has another
//! one under its number, or none, it is in a new life. vLLM's own numbers say no more than that (0.32.0).

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// Most bytes of messages that wait for others before them.
const MOST_WAITING: usize = 64 << 20;

/// Silences before an engine is asked again that contradicted itself: half a minute.
const DISBELIEF: u32 = 30;

/// What happened.
#[derive(Debug)]
pub(super) enum Heard {
    /// The event stream's connection is there (again): what was published before is lost.
    Connected,
    /// The event stream's connection ended: the engine may have.
    Disconnected,
    /// A message of the event stream.
    Live(u64, Vec<u8>),
    /// A message in answer to a question.
    Again(u64, Vec<u8>),
    /// The end of an answer.
    End,
    /// A question was not answered in time, or only in part.
    Unanswered,
    /// Nothing was heard for a while.
    Quiet,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask for all messages from this number on. Whatever was asked before is not of interest any more.
    Ask(u64),
    /// What was asked is not of interest any more.
    Hush,
    /// Apply a message.
    Apply(u64, Vec<u8>),
    /// A message came that was applied already.
    Older,
    /// The engine is in a new life.
    Restart,
    /// The engine has published nothing yet.
    Silent,
    /// Messages may have been lost, and nobody can tell.
    Lose,
}

/// The last message that was applied.
#[derive(Debug, Clone, Copy)]
struct Last {
    seq: u64,
    digest: u64,
}

/// A question that is not answered to its end yet.
#[derive(Debug, Clone, Copy)]
struct Asked {
    from: u64,
    answered: bool,
    /// It was asked before, and nothing came.
    once_more: bool,
}

/// Whether the engine can be asked for messages again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It cannot.
    Never,
    /// It can.
    Asked,
    /// It could, but it contradicted what it had published. It is given another chance when its connection has ended, or
    /// after so many more silences.
    Disbelieved(u32),
}

/// Whether the engine is in the life that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It is.
    Known,
    /// The connection ended since the last message: even the right number may be another life's.
    Doubted,
    /// It could not be found out, and that was said. Messages are taken as they come.
    Assumed,
}

/// The order of one rank's messages.
#[derive(Debug)]
pub(super) struct Sequencer {
    replay: Again,
    last: Option<Last>,
    asked: Option<Asked>,
    life: Life,
    /// Something happened since the last question that only another one can explain.
    unclear: bool,
    /// A number came that was there already, with another message.
    regressed: bool,
    /// Messages that came too early.
    waiting: BTreeMap<u64, Vec<u8>>,
    waiting_bytes: usize,
}

impl Sequencer {
    /// Of a rank that nothing was heard of.
    pub(super) fn new(can_ask: bool) -> Self {
        Self {
            replay: if can_ask { Again::Asked } else { Again::Never },
            last: None,
            asked: None,
            life: Life::Doubted,
            unclear: false,
            regressed: false,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
        }
    }

    /// What is to be done now, in order.
    pub(super) fn hear(&mut self, heard: Heard) -> Vec<Step> {
        let mut steps = Vec::new();
        match heard {
            Heard::Quiet => self.quiet(&mut steps),
            Heard::Connected => self.connected(&mut steps),
            Heard::Disconnected => self.disconnected(&mut steps),
            Heard::Live(seq, payload) => self.live(seq, payload, &mut steps),
            Heard::Again(seq, payload) => self.again(seq, payload, &mut steps),
            Heard::End => self.end(&mut steps),
            Heard::Unanswered => self.unanswered(&mut steps),
        }
        steps
    }

    /// Whether an answer is awaited.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// What was learnt without a connection may be of a life that ended meanwhile: nothing would have shown that.
    fn connected(&mut self, steps: &mut Vec<Step>) {
        self.life = Life::Doubted;
        if self.asked.take().is_some() {
            steps.push(Step::Hush);
        }
        self.ask(steps);
    }

    fn quiet(&mut self, steps: &mut Vec<Step>) {
        if let Again::Disbelieved(silences) = &mut self.replay {
            *silences -= 1;
            if *silences > 0 {
                return;
            }
            self.replay = Again::Asked;
        }
        if self.asked.is_none() {
            self.ask(steps);
        }
    }

    fn ask(&mut self, steps: &mut Vec<Step>) {
        if self.replay == Again::Asked {
            let from = self.last.map_or(0, |last| last.seq);
            self.asked = Some(Asked {
                from,
                answered: false,
                once_more: false,
            });
            self.unclear = false;
            steps.push(Step::Ask(from));
        }
    }

    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.seq.saturating_add(1))
    }

    fn apply(&mut self, seq: u64, payload: Vec<u8>, steps: &mut Vec<Step>) {
        let digest = xxh3_64(&payload);
        self.last = Some(Last { seq, digest });
        steps.push(Step::Apply(seq, payload));
    }

    fn wait(&mut self, seq: u64, payload: Vec<u8>) {
        self.waiting_bytes += payload.len();
        let replaced = self.waiting.insert(seq, payload);
        self.waiting_bytes -= replaced.map_or(0, |payload| payload.len());
    }

    /// Applies what waited for the messages that are there now, and whatever has a number below `below`: nothing comes
    /// before that any more.
    fn release(&mut self, below: u64, steps: &mut Vec<Step>) {
        while let Some(first) = self.waiting.first_entry() {
            let seq = *first.key();
            if seq > self.last.map_or(0, |last| last.seq.saturating_add(1)) && seq >= below {
                return;
            }
            let payload = first.remove();
            self.waiting_bytes -= payload.len();
            if self.last.is_none_or(|last| seq > last.seq) {
                self.apply(seq, payload, steps);
            }
        }
    }

    fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    fn disconnected(&mut self, steps: &mut Vec<Step>) {
        self.life = Life::Doubted;
        if self.asked.take().is_some() {
            steps.push(Step::Hush);
        }
        // Of the life that may have ended; in the same one they can be had again.
        self.forget_waiting();
        match self.replay {
            Again::Disbelieved(_) => self.replay = Again::Asked,
            Again::Never if self.last.is_some() => steps.push(Step::Lose),
            Again::Asked | Again::Never => {}
        }
    }

    fn live(&mut self, seq: u64, payload: Vec<u8>, steps: &mut Vec<Step>) {
        if self.replay != Again::Asked {
            // Numbers and times are all there is to judge by, and the mirror does.
            return self.apply(seq, payload, steps);
        }
        if seq < self.next() {
            return self.live_again(seq, &payload, steps);
        }
        if seq == self.next() && self.life != Life::Doubted {
            self.apply(seq, payload, steps);
            return self.release(0, steps);
        }
        self.wait(seq, payload);
        if self.waiting_bytes > MOST_WAITING {
            steps.push(Step::Hush);
            self.give_up(steps);
        } else if self.asked.is_none() {
            self.ask(steps);
        }
    }

    /// A number that was there already: the same message once more, one that was overtaken, or a new life.
    fn live_again(&mut self, seq: u64, payload: &[u8], steps: &mut Vec<Step>) {
        steps.push(Step::Older);
        let same = |last: Last| last.seq == seq && last.digest == xxh3_64(payload);
        if self.last.is_some_and(same) {
            return;
        }
        self.regressed = true;
        match self.asked {
            Some(_) => self.unclear = true,
            None => self.ask(steps),
        }
    }

    fn again(&mut self, seq: u64, payload: Vec<u8>, steps: &mut Vec<Step>) {
        let Some(asked) = &mut self.asked else { return };
        if seq < asked.from {
            return;
        }
        let is_first = !std::mem::replace(&mut asked.answered, true);
        let doubted = self.life != Life::Known;
        if let Some(last) = self.last
            && seq == last.seq
        {
            if last.digest != xxh3_64(&payload) {
                self.another_life(steps);
            } else if is_first {
                self.life = Life::Known;
            }
            return;
        }
        if seq < self.next() {
            return;
        }
        if is_first && self.last.is_some() && doubted {
            // The last message is no longer there to tell this life from another that has come as far.
            steps.push(Step::Lose);
        }
        let live = self.waiting.get(&seq);
        if live.is_some_and(|live| *live != payload) {
            if !doubted {
                return self.disbelieve(steps);
            }
            // What was read last before a connection's end is of the old life.
            self.forget_waiting();
        }
        if self.last.is_none() {
            self.life = Life::Known;
        }
        // An answer is in order: what it leaves out does not come.
        self.release(seq, steps);
        if seq >= self.next() {
            self.apply(seq, payload, steps);
        }
        self.release(0, steps);
    }

    /// The engine has another message under a number that was applied, or none although it should have it.
    fn another_life(&mut self, steps: &mut Vec<Step>) {
        if self.life == Life::Known && !self.regressed {
            // Its connection held all the while and its numbers went on.
            return self.disbelieve(steps);
        }
        steps.push(Step::Restart);
        self.regressed = false;
        self.last = None;
        self.forget_waiting();
        self.ask(steps);
    }

    /// Two messages under one number. Either the answer is of a new life and the end of the old one's connection is about
    /// to show, or this engine's answers are worth nothing.
    fn disbelieve(&mut self, steps: &mut Vec<Step>) {
        self.replay = Again::Disbelieved(DISBELIEF);
        self.asked = None;
        self.unclear = false;
        steps.extend([Step::Hush, Step::Lose]);
        self.release(u64::MAX, steps);
    }

    fn end(&mut self, steps: &mut Vec<Step>) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let known = self.life == Life::Known;
        match self.last {
            _ if asked.answered => {}
            Some(_) if !known || self.regressed => return self.another_life(steps),
            None if !known && self.waiting.is_empty() => {
                self.life = Life::Known;
                steps.push(Step::Silent);
            }
            _ => {}
        }
        self.settle(steps);
    }

    fn unanswered(&mut self, steps: &mut Vec<Step>) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        if !asked.answered && !asked.once_more {
            self.asked = Some(Asked {
                once_more: true,
                ..asked
            });
            return steps.push(Step::Ask(asked.from));
        }
        self.give_up(steps);
    }

    /// No answer will come.
    fn give_up(&mut self, steps: &mut Vec<Step>) {
        self.asked = None;
        if self.life == Life::Doubted && self.last.is_some() {
            steps.push(Step::Lose);
        }
        self.settle(steps);
    }

    /// No more is to come in answer to the last question.
    fn settle(&mut self, steps: &mut Vec<Step>) {
        self.release(u64::MAX, steps);
        if self.life == Life::Doubted {
            self.life = Life::Assumed;
        }
        if self.unclear {
            return self.ask(steps);
        }
        self.regressed = false;
    }
}

#[cfg(test)]
mod tests;

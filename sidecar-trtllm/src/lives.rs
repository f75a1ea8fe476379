//! Which start of the engine this is.
//!
//! The engine says nothing of that. What tells: the numbers of its KV events begin anew, and nobody listens at its port while it
//! is away. The events are believed where there are any: whoever was away and goes on numbering is the same. So after a time in
//! which nobody listened, the next poll for events decides, and without events it counts as another start. The names are this
//! process's own: a sidecar that is started anew beside a living engine calls it otherwise.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::{Error, ErrorKind, Incarnation, Source, Stage};
use tokio::sync::watch;

use crate::refusal::unusable;

/// How long the next poll for events may take to say whether this is another start.
const POLLED: Duration = Duration::from_secs(5);

/// Tells one start of the engine from the next.
#[derive(Debug)]
pub struct Lives {
    /// Drawn once in the sidecar's life.
    place: String,
    state: Mutex<State>,
    /// How many doubts there were when the last poll that was answered began.
    polled: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the engine's starts.
    number: u64,
    /// The last start that was attached to.
    attached: u64,
    /// How often nobody listened.
    doubts: u64,
    /// Of how many of these it is known what they meant.
    settled: u64,
    /// The engine tells of its KV cache.
    tells: bool,
}

impl Default for Lives {
    fn default() -> Self {
        Self {
            place: baton_daemon::fresh::hex_id()[..16].to_owned(),
            state: Mutex::default(),
            polled: watch::Sender::new(0),
        }
    }
}

impl Lives {
    /// Nobody listens at the engine's port.
    pub(crate) fn unreachable(&self) {
        self.lock().doubts += 1;
    }

    /// A poll for events begins now; to be given to [`Self::polled`].
    pub(crate) fn doubts(&self) -> u64 {
        self.lock().doubts
    }

    /// A poll that began at so many doubts was answered, and what it said of the engine's life was taken note of.
    pub(crate) fn polled(&self, doubts: u64, events: bool) {
        self.lock().tells |= events;
        self.polled.send_replace(doubts);
    }

    /// A poll that began at so many doubts told events of another start of the engine.
    pub(crate) fn began_anew(&self, doubts: u64) {
        {
            let mut state = self.lock();
            state.number += 1;
            state.settled = state.settled.max(doubts);
        }
        self.polled(doubts, true);
    }

    /// Refuses while it is not known whether the engine that answers is the one that was attached to.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = self.lock();
        if state.number == state.attached && state.doubts == state.settled {
            return Ok(());
        }
        let message = "the engine was started anew, or may have been";
        Err(Error::new(
            ErrorKind::Unreachable,
            Source::Engine,
            Stage::Fleet,
            message,
        ))
    }

    /// The engine has answered, and is attached to: the name of this start.
    pub(crate) async fn attach(&self) -> Result<Incarnation, Error> {
        let (doubts, asks) = {
            let state = self.lock();
            (state.doubts, state.tells && state.settled < state.doubts)
        };
        let mut polled = self.polled.subscribe();
        let known = async { polled.wait_for(|polled| *polled >= doubts).await.is_ok() };
        let known = asks && tokio::time::timeout(POLLED, known).await.unwrap_or(false);
        let mut state = self.lock();
        if state.settled < doubts {
            state.number += u64::from(!known);
            state.settled = doubts;
        }
        state.attached = state.number;
        self.name(state.number)
    }

    /// The name of the start that was attached to.
    pub(crate) fn attached(&self) -> Result<Incarnation, Error> {
        self.check()?;
        self.name(self.lock().attached)
    }

    fn name(&self, number: u64) -> Result<Incarnation, Error> {
        let name = format!("start-{}-{number}", self.place);
        name.parse().map_err(|bad| unusable(&format!("{bad}")))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_goes_on_numbering_is_the_same() {
        let lives = Lives::default();
        let first = lives.attach().await.unwrap();
        lives.polled(0, true);
        lives.unreachable();
        assert!(lives.check().is_err(), "until it is known");
        lives.polled(lives.doubts(), false);
        assert_eq!(lives.attach().await, Ok(first.clone()));
        assert_eq!(lives.attached(), Ok(first));
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_another_start_give_it_another_name() {
        let lives = Lives::default();
        let first = lives.attach().await.unwrap();
        lives.polled(0, true);
        lives.unreachable();
        lives.began_anew(1);
        assert!(lives.attached().is_err(), "until it is attached to");
        let second = lives.attach().await.unwrap();
        assert_ne!(second, first);
        assert_eq!(lives.attach().await, Ok(second.clone()));
        assert_eq!(lives.attached(), Ok(second));
    }

    #[tokio::test(start_paused = true)]
    async fn without_events_who_was_away_is_another() {
        let lives = Lives::default();
        let first = lives.attach().await.unwrap();
        lives.polled(0, false);
        lives.unreachable();
        lives.unreachable();
        let second = lives.attach().await.unwrap();
        assert_ne!(second, first);
        assert_eq!(lives.attach().await, Ok(second));
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_do_not_come_again_do_not_hold_it_up() {
        let lives = Lives::default();
        let first = lives.attach().await.unwrap();
        lives.polled(0, true);
        lives.unreachable();
        assert_ne!(lives.attach().await.unwrap(), first);
    }

    #[test]
    fn sidecars_call_their_engines_differently() {
        let [one, other] = [0, 0].map(|number| Lives::default().name(number).unwrap());
        assert_ne!(one, other);
    }
}

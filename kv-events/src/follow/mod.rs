//! Following the KV events of one life of an engine, a thread for each data-parallel rank.
//!
//! [`source`] says where they are to be had, [`wire`] how, [`sequencer`] in which order they are applied and when the engine
//! is asked for them again; what they mean is the [`decoder`](crate::decoder)'s, and what becomes of it the feed's.

mod sequencer;
pub mod source;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton_sidecar_core::engine::Following;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::record::Recorder;
use baton_sidecar_core::view::Feed;
use zmq::Context;

use crate::decoder::Decoder;
use crate::dialect::Dialect;
use crate::oddity::Oddity;
use sequencer::{Heard, Sequencer, Step};
use source::Source;
use wire::{Wire, ZmqWire};

/// How long one look at the sockets may take: so long a follower goes on after it was told to end.
const LOOK: Duration = Duration::from_millis(100);

/// Longest silence of an engine in the middle of an answer. It looks for questions every 100 ms (0.32.0).
const PATIENCE: Duration = Duration::from_secs(2);

/// After how long a silence the engine is asked whether there was something: the last messages before it leave no gap.
const QUIET: Duration = Duration::from_secs(1);

/// How long without a connection a view is still told, so that one that comes back at once costs nothing.
const DEAF: Duration = Duration::from_secs(2);

/// Pause before sockets are opened anew.
const REOPEN: Duration = Duration::from_secs(1);

/// Followers of an engine's ranks. Dropping it ends them within a moment.
struct Followers(Arc<AtomicBool>);

impl Drop for Followers {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts to follow; nothing if there is nothing to follow.
pub fn start<D: Dialect, S: Source>(sources: Vec<S>, feed: &Feed) -> Option<Following> {
    if sources.is_empty() {
        return None;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let followers = Followers(Arc::clone(&stop));
    let context = Context::new();
    for source in sources {
        let rank = source.rank();
        feed.watch(rank);
        if !source.tells_again() {
            tracing::warn!(
                rank,
                "the engine's KV events cannot be had again: whatever is lost stays lost; give it a replay_endpoint"
            );
        }
        let follower = Follower::<D, S>::new(source, feed.clone(), Arc::clone(&stop));
        let context = context.clone();
        let thread = std::thread::Builder::new().name(format!("kv-events-{rank}"));
        if let Err(error) = thread.spawn(move || follower.run(&context)) {
            tracing::error!(%error, rank, "the thread for KV events cannot start");
        }
    }
    Some(Box::new(followers))
}

/// Follows one rank.
struct Follower<D, S> {
    source: S,
    rank: u32,
    endpoint: String,
    feed: Feed,
    stop: Arc<AtomicBool>,
    sequencer: Sequencer,
    decoder: Decoder<D>,
    connected: bool,
    /// When the connection was seen last.
    linked: Instant,
    /// The view is not told, for nothing comes through.
    deaf: bool,
    /// When something was heard last.
    heard: Instant,
    /// When a question was asked last, or part of an answer came. Events go on meanwhile and are no answer.
    answered: Instant,
    said: Option<zmq::Error>,
}

impl<D: Dialect, S: Source> Follower<D, S> {
    fn new(source: S, feed: Feed, stop: Arc<AtomicBool>) -> Self {
        Self {
            sequencer: Sequencer::new(source.tells_again()),
            rank: source.rank(),
            endpoint: String::new(),
            source,
            feed,
            stop,
            decoder: Decoder::default(),
            connected: false,
            linked: Instant::now(),
            deaf: false,
            heard: Instant::now(),
            answered: Instant::now(),
            said: None,
        }
    }

    fn run(mut self, context: &Context) {
        while !self.stopped() {
            let endpoints = self.source.endpoints();
            endpoints.way.endpoint().clone_into(&mut self.endpoint);
            let opened = ZmqWire::open(context, &endpoints);
            let Err(error) = opened.and_then(|wire| self.follow(wire)) else {
                return;
            };
            self.say(error);
            self.hear_all(vec![Heard::Disconnected], &mut Closed);
            let reopen = Instant::now() + REOPEN;
            while !self.stopped() && Instant::now() < reopen {
                std::thread::park_timeout(LOOK);
                self.tell_or_not();
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says the same thing once.
    fn say(&mut self, error: zmq::Error) {
        if self.said != Some(error) {
            self.said = Some(error);
            let (rank, endpoint) = (self.rank, &self.endpoint);
            tracing::warn!(rank, endpoint, %error, "cannot listen to the engine's KV events");
        }
    }

    /// Until told to end, or until a socket fails.
    fn follow(&mut self, mut wire: impl Wire) -> Result<(), zmq::Error> {
        while !self.stopped() {
            let mut bad = 0;
            let heard = wire.hear(LOOK, &mut bad)?;
            if bad > 0 {
                self.strange(Oddity::Frames, bad);
            }
            if !heard.is_empty() {
                self.heard = Instant::now();
            }
            self.hear_all(heard, &mut wire);
            let silence = self.silence();
            self.hear_all(silence.into_iter().collect(), &mut wire);
            self.tell_or_not();
        }
        Ok(())
    }

    /// A view is not told while its engine cannot be heard, nor until what was missed has been told again.
    fn tell_or_not(&mut self) {
        let rank = self.rank;
        if self.connected {
            self.linked = Instant::now();
            if self.deaf && !self.sequencer.is_asking() {
                tracing::info!(rank, "the engine's KV events come through again");
                self.deaf = false;
                self.feed.hear(rank);
            }
        } else if !self.deaf && self.linked.elapsed() >= DEAF {
            tracing::warn!(rank, "the engine's KV events do not come through");
            self.deaf = true;
            self.feed.deafen(rank);
        }
    }

    /// What it means that nothing was heard until now, or no answer.
    fn silence(&mut self) -> Option<Heard> {
        let (since, longest, silence) = if self.sequencer.is_asking() {
            (&mut self.answered, PATIENCE, Heard::Unanswered)
        } else if self.connected {
            (&mut self.heard, QUIET, Heard::Quiet)
        } else {
            return None;
        };
        if since.elapsed() < longest {
            return None;
        }
        *since = Instant::now();
        Some(silence)
    }

    fn hear_all(&mut self, heard: Vec<Heard>, wire: &mut impl Wire) {
        // What was read before a question was asked is no answer to it.
        let mut asked_anew = false;
        for heard in heard {
            if asked_anew && matches!(heard, Heard::Again(..) | Heard::End) {
                continue;
            }
            match &heard {
                Heard::Connected => self.connected = true,
                Heard::Disconnected => {
                    self.connected = false;
                    // A question sent into a connection that ends with the engine is lost, and nobody says so.
                    wire.hush();
                }
                Heard::Live(..) => {
                    self.feed.metrics().messages.inc();
                }
                Heard::Again(..) => self.answered = Instant::now(),
                Heard::End => self.feed.metrics().replayed(true),
                Heard::Unanswered => {
                    self.feed.metrics().replayed(false);
                    wire.hush();
                }
                Heard::Quiet => {}
            }
            for step in self.sequencer.hear(heard) {
                asked_anew |= matches!(step, Step::Ask(_) | Step::Hush);
                self.take(step, wire);
            }
        }
    }

    fn take(&mut self, step: Step, wire: &mut impl Wire) {
        let rank = self.rank;
        if let Some(recorder) = self.feed.recorder() {
            self.record(recorder, &step);
        }
        match step {
            Step::Ask(from) => {
                self.answered = Instant::now();
                // One that cannot be asked is one that does not answer.
                if let Err(error) = wire.ask(from) {
                    self.say(error);
                }
            }
            Step::Hush => wire.hush(),
            Step::Apply(seq, payload) => self.apply(seq, &payload),
            Step::Older => self.strange(Oddity::Older, 1),
            Step::Restart => {
                tracing::info!(rank, "the engine's KV events are of a new life");
                self.feed.restart(rank);
            }
            Step::Silent => self.feed.silent(rank),
            Step::Lose => {
                tracing::warn!(
                    rank,
                    "KV events were lost: what the engine holds is learnt anew"
                );
                self.feed.lose(rank);
            }
        }
    }

    fn strange(&self, reason: Oddity, times: u64) {
        self.feed.metrics().strange(reason.name(), times);
    }

    fn record(&self, recorder: &Recorder, step: &Step) {
        let rank = self.rank;
        match step {
            Step::Apply(seq, payload) => {
                let topic = self.source.topic().as_bytes();
                recorder.frames(rank, &[topic, &seq.to_be_bytes(), payload]);
            }
            Step::Restart => recorder.event(rank, "restart"),
            Step::Silent => recorder.event(rank, "silent"),
            Step::Lose => recorder.event(rank, "lost"),
            Step::Ask(_) | Step::Hush | Step::Older => {}
        }
    }

    fn apply(&mut self, seq: u64, payload: &[u8]) {
        let rank = self.rank;
        let undecoded = Stamp {
            seq,
            time: f64::NAN,
        };
        match self.decoder.decode(payload) {
            Ok(batch) if batch.rank.is_some_and(|told| told != rank) => {
                self.strange(Oddity::ForeignRank, 1);
                self.feed.undecoded(rank, undecoded);
            }
            Ok(batch) => {
                for (reason, times) in batch.oddities.iter() {
                    self.feed.metrics().strange(reason.name(), times);
                }
                let time = batch.time;
                self.feed.apply(rank, Stamp { seq, time }, batch.events());
            }
            Err(malformed) => {
                tracing::debug!(rank, seq, %malformed, "a message of KV events cannot be read");
                self.strange(Oddity::Malformed, 1);
                self.feed.undecoded(rank, undecoded);
            }
        }
    }
}

/// Sockets that are closed.
struct Closed;

impl Wire for Closed {
    fn hear(&mut self, _: Duration, _: &mut u64) -> Result<Vec<Heard>, zmq::Error> {
        Ok(Vec::new())
    }

    fn ask(&mut self, _: u64) -> Result<(), zmq::Error> {
        Err(zmq::Error::ENOTCONN)
    }

    fn hush(&mut self) {}
}

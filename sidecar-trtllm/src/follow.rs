//! Polls the engine for its KV events, as their only consumer.
//!
//! A poll takes away what it tells. So none is given up while it is answered, followers of two lives of the engine take turns,
//! and what one has polled and cannot use is left for the next ([`Leftover`]). It is polled right after requests have ended and as
//! long as something comes, and once a second while it is idle. 1.2 answers late and goes on answering under load: its view is
//! taken back meanwhile.

mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use baton_proto::Error;
use baton_sidecar_core::engine::Following;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::view::Feed;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::TrtllmEngine;
use crate::events::decode::{self, Batch};
use crate::events::tracker::{AnotherStart, Known, Missed, Names, Odd, Piece, Step, Tracker};
use crate::http::EngineHttp;
use crate::lives::Lives;
use crate::load;
use pace::{FLUSHED, Pace};

/// An answer that was polled and belongs to whoever follows next. Whoever holds the lock polls.
pub(crate) type Leftover = Arc<Mutex<Option<Vec<u8>>>>;

/// Requests have ended.
pub(crate) type Wake = Arc<Notify>;

/// How long without an answer a view is still told.
const DEAF: Duration = Duration::from_secs(4);

/// Blocks at the beginning of sequences, of which not one was called as expected, before that is said.
const STRANGE_NAMES: u64 = 64;

/// The most ranks that are believed.
const MOST_RANKS: u32 = 1024;

impl TrtllmEngine {
    /// Follows the engine's present life.
    pub(crate) fn listen(&self, feed: &Feed) -> Following {
        let stop = CancellationToken::new();
        for rank in 0..self.config.ranks {
            feed.watch(rank);
        }
        let follower = Follower {
            http: self.http.clone(),
            lives: Arc::clone(&self.lives),
            ranks: Arc::clone(&self.ranks),
            wake: Arc::clone(&self.wake),
            stop: stop.clone(),
            tracker: Tracker::new(self.known()),
            heard: Heard {
                feed: feed.clone(),
                deaf: false,
                since: Instant::now(),
                said: Said::default(),
            },
        };
        tokio::spawn(follower.run(Arc::clone(&self.leftover)));
        let sampled = load::sample(self.http.clone(), Arc::clone(&self.sample), stop.clone());
        tokio::spawn(sampled);
        Box::new(stop.drop_guard())
    }

    fn known(&self) -> Known {
        let told = self.last().and_then(|seen| seen.server.tokens_per_block);
        Known {
            block_size: told.or(self.config.tokens_per_block),
            buffer: self.config.event_buffer.filter(|buffer| *buffer > 0),
            trust_names: self.config.trust_block_names,
        }
    }

    /// As many ranks as its events are of.
    pub(crate) fn ranks_heard(&self) -> u32 {
        self.ranks.load(Ordering::Relaxed)
    }
}

/// Follows one life of the engine.
struct Follower {
    http: EngineHttp,
    lives: Arc<Lives>,
    ranks: Arc<AtomicU32>,
    wake: Wake,
    stop: CancellationToken,
    tracker: Tracker,
    heard: Heard,
}

impl Follower {
    async fn run(mut self, leftover: Leftover) {
        let mut left = leftover.lock().await;
        let mut pace = Pace::default();
        while !self.stop.is_cancelled() {
            let doubts = self.lives.doubts();
            let answer = match left.take() {
                Some(answer) => Ok(answer),
                None => self.poll().await,
            };
            if self.stop.is_cancelled() {
                *left = answer.ok();
                return;
            }
            let events = match answer {
                Ok(answer) => match self.read(&answer, doubts) {
                    Ok(events) => events,
                    Err(AnotherStart) => {
                        tracing::info!("the engine's KV events are of another start of it");
                        *left = Some(answer);
                        self.lives.began_anew(doubts);
                        return;
                    }
                },
                Err(error) => {
                    self.tracker.lost();
                    self.heard.failed(&error, self.tracker.ranks());
                    0
                }
            };
            self.rest(pace.after(events), &mut pace).await;
        }
    }

    /// Polls once. A view is not told while its engine does not answer.
    async fn poll(&mut self) -> Result<Vec<u8>, Error> {
        let http = self.http.clone();
        let mut polled = std::pin::pin!(http.take_events());
        match timeout(DEAF, &mut polled).await {
            Ok(answer) => answer,
            Err(_) => {
                self.heard.deafen(self.tracker.ranks());
                polled.await
            }
        }
    }

    /// Until it is time to poll again: events are told at the end of the step in which a request ends.
    async fn rest(&self, pause: Duration, pace: &mut Pace) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
            () = self.wake.notified() => {
                pace.hurry();
                tokio::time::sleep(FLUSHED).await;
            }
        }
    }

    /// Reads an answer; how many events it had.
    fn read(&mut self, answer: &[u8], doubts: u64) -> Result<usize, AnotherStart> {
        let batch = match decode::decode(answer) {
            Ok(batch) => batch,
            Err(why) => {
                tracing::warn!(why, "the engine's KV events cannot be read");
                self.heard.strange("malformed", 1);
                self.tracker.lost();
                return Ok(0);
            }
        };
        let count = batch.events.len();
        let raw = self.heard.keep(&batch);
        let mut events: Vec<_> = batch.events.into_iter().map(|(event, _)| event).collect();
        events.retain(|event| event.rank < MOST_RANKS);
        let steps = self.tracker.read(events)?;
        self.heard.record(&raw);
        self.lives.polled(doubts, count > 0);
        self.heard.again(self.tracker.ranks());
        for step in steps {
            self.heard.take(step);
        }
        self.heard.judge_names(self.tracker.names());
        let ranks = self.tracker.ranks().max().map_or(0, |last| last + 1);
        self.ranks.fetch_max(ranks, Ordering::Relaxed);
        Ok(count)
    }
}

/// What was said already, and need not be said again.
#[derive(Debug, Default)]
struct Said {
    failure: Option<String>,
    rival: bool,
    names: bool,
    block_size: bool,
}

/// What is heard goes into the feed.
struct Heard {
    feed: Feed,
    deaf: bool,
    /// When the engine last answered.
    since: Instant,
    said: Said,
}

impl Heard {
    fn failed(&mut self, error: &Error, ranks: impl Iterator<Item = u32>) {
        if self.since.elapsed() >= DEAF {
            self.deafen(ranks);
        }
        let why = error.to_string();
        if self.said.failure.as_ref() != Some(&why) {
            tracing::warn!(why, "the engine's KV events cannot be had");
            self.said.failure = Some(why);
        }
    }

    fn strange(&self, reason: &'static str, times: u64) {
        if times > 0 {
            self.feed.metrics().strange(reason, times);
        }
    }

    /// What is to be recorded, if anything is: rank, number and the event as it came.
    fn keep(&self, batch: &Batch<'_>) -> Vec<(u32, u64, String)> {
        self.strange("malformed", batch.nameless);
        if self.feed.recorder().is_none() {
            return Vec::new();
        }
        let events = batch.events.iter();
        events
            .map(|(event, raw)| (event.rank, event.id, (*raw).to_owned()))
            .collect()
    }

    fn record(&self, events: &[(u32, u64, String)]) {
        if let Some(recorder) = self.feed.recorder() {
            for (rank, id, raw) in events {
                recorder.frames(*rank, &[b"", &id.to_be_bytes(), raw.as_bytes()]);
            }
        }
    }

    fn deafen(&mut self, ranks: impl Iterator<Item = u32>) {
        if !std::mem::replace(&mut self.deaf, true) {
            tracing::info!(
                "the engine does not answer for its KV events: its view is taken back until it does"
            );
            ranks.for_each(|rank| self.feed.deafen(rank));
        }
    }

    fn again(&mut self, ranks: impl Iterator<Item = u32>) {
        self.said.failure = None;
        self.since = Instant::now();
        if std::mem::take(&mut self.deaf) {
            ranks.for_each(|rank| self.feed.hear(rank));
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Missed { rank, events, how } => self.missed(rank, events, how),
            Step::Lose { rank } => self.feed.lose(rank),
            Step::Apply { rank, id, pieces } => self.apply(rank, id, &pieces),
            Step::Odd(Odd::UnknownEvent) => self.strange("unknown_event", 1),
            Step::Odd(Odd::UnknownBlockSize) => {
                if !std::mem::replace(&mut self.said.block_size, true) {
                    tracing::warn!(
                        "it is not known yet how large the engine's KV blocks are: give --tokens-per-block"
                    );
                }
            }
        }
    }

    fn apply(&self, rank: u32, id: u64, pieces: &[Piece]) {
        self.feed.metrics().messages.inc();
        // The clock tells nothing: another start is seen by its numbers before.
        let stamp = Stamp {
            seq: id,
            time: f64::NAN,
        };
        self.feed
            .apply(rank, stamp, pieces.iter().map(Piece::event));
    }

    fn missed(&mut self, rank: u32, events: u64, how: Missed) {
        match how {
            Missed::Dropped => tracing::warn!(
                rank,
                events,
                "the engine has dropped KV events: give it a larger kv_cache_config.event_buffer_max_size"
            ),
            Missed::Lost => tracing::warn!(rank, events, "KV events were lost with an answer"),
            Missed::Taken => {
                self.strange("rival_consumer", 1);
                if !std::mem::replace(&mut self.said.rival, true) {
                    tracing::warn!(
                        rank,
                        events,
                        "somebody else polls this engine's /kv_cache_events, and what they take is lost here: nobody else may"
                    );
                }
            }
        }
    }

    fn judge_names(&mut self, names: Names) {
        if names.plain == 0
            && names.strange >= STRANGE_NAMES
            && !std::mem::replace(&mut self.said.names, true)
        {
            tracing::warn!(
                blocks = names.strange,
                "no block is called as its tokens would have it: all are taken to be of adapters or salts that are not told; if \
                 there are none, say --trust-block-names"
            );
        }
    }
}

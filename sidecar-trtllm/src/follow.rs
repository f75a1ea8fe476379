//! Polls the engine for its KV events, as their only consumer.
//!
//! A poll takes away what it tells. So none is given up while it is answered, followers of two lives of the engine take turns,
//! and what one has polled and cannot use is left for the next ([`Leftover`]). It is polled right after requests have ended and as
//! long as something comes, and once a second while it is idle. 1.2 answers late and goes on answering under load: its view is
//! taken back meanwhile.

mod heard;
mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use baton_proto::Error;
use baton_sidecar_core::engine::Following;
use baton_sidecar_core::view::Feed;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::engine::TrtllmEngine;
use crate::events::decode;
use crate::events::tracker::{AnotherStart, Known, Tracker};
use crate::lives::Lives;
use crate::load::{self, LoadSample};
use crate::source::Source;
use heard::Heard;
use pace::{FLUSHED, Pace};

/// An answer that was polled and belongs to whoever follows next. Whoever holds the lock polls.
pub(crate) type Leftover = Arc<Mutex<Option<Vec<u8>>>>;

/// Requests that have come to their end in the engine.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    count: AtomicU64,
    news: Notify,
}

impl Ended {
    /// One more.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.news.notify_one();
    }

    /// How many so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// How long without an answer a view is still told.
const DEAF: Duration = Duration::from_secs(4);

/// The most ranks that are believed.
const MOST_RANKS: u32 = 1024;

impl TrtllmEngine {
    /// Follows the engine's present life.
    pub(crate) fn listen(&self, feed: &Feed) -> Following {
        let ears = Ears {
            lives: Arc::clone(&self.lives),
            leftover: Arc::clone(&self.leftover),
            ended: Arc::clone(&self.ended),
            ranks: Arc::clone(&self.ranks),
            sample: Arc::clone(&self.sample),
        };
        ears.follow(self.http.clone(), self.known(), self.config.ranks, feed)
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

/// What is told of an engine, beyond one life of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ears {
    /// Which start of it this is.
    pub(crate) lives: Arc<Lives>,
    /// What a follower of an earlier life has taken and could not use.
    pub(crate) leftover: Leftover,
    /// Requests that have come to their end.
    pub(crate) ended: Arc<Ended>,
    /// As many ranks as its KV events are of.
    pub(crate) ranks: Arc<AtomicU32>,
    /// How busy its present life was last.
    pub(crate) sample: Arc<std::sync::Mutex<LoadSample>>,
}

impl Ears {
    /// Follows the engine's present life, which has so many ranks at least.
    pub(crate) fn follow(
        self,
        source: impl Source,
        known: Known,
        ranks: u32,
        feed: &Feed,
    ) -> Following {
        for rank in 0..ranks {
            feed.watch(rank);
        }
        let stop = CancellationToken::new();
        let ended = Arc::clone(&self.ended);
        tokio::spawn(load::sample(
            source.clone(),
            self.sample,
            ended,
            stop.clone(),
        ));
        let follower = Follower {
            source,
            lives: self.lives,
            ranks: self.ranks,
            began_at: self.ended.count(),
            ended: self.ended,
            stop: stop.clone(),
            tracker: Tracker::new(known),
            heard: Heard::new(feed.clone()),
        };
        tokio::spawn(follower.run(self.leftover));
        Box::new(stop.drop_guard())
    }
}

/// Follows one life of the engine.
struct Follower<S> {
    source: S,
    lives: Arc<Lives>,
    ranks: Arc<AtomicU32>,
    ended: Arc<Ended>,
    /// How many requests had ended when it began.
    began_at: u64,
    stop: CancellationToken,
    tracker: Tracker,
    heard: Heard,
}

impl<S: Source> Follower<S> {
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
        let source = self.source.clone();
        let mut polled = std::pin::pin!(source.take_events());
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
            () = self.ended.news.notified() => {
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
        if self.tracker.ranks().next().is_none() {
            let ended = self.ended.count();
            self.heard
                .nothing_after(ended.saturating_sub(self.began_at));
        }
        let ranks = self.tracker.ranks().max().map_or(0, |last| last + 1);
        self.ranks.fetch_max(ranks, Ordering::Relaxed);
        Ok(count)
    }
}

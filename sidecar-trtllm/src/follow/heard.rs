//! What is heard of the engine's KV events goes into the feed, and what is wrong with them is said and counted.

use std::collections::BTreeSet;

use baton_proto::Error;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::view::Feed;
use tokio::time::Instant;

use super::DEAF;
use crate::events::decode::Batch;
use crate::events::tracker::{Missed, Names, Odd, Piece, Step};

/// Requests after which an engine that tells of its KV cache has told something.
const TELLING_REQUESTS: u64 = 8;

/// Blocks at the beginning of sequences, of which not one was called as expected, before that is said.
const STRANGE_NAMES: u64 = 64;

/// What was said already, and need not be said again.
#[derive(Debug, Default)]
struct Said {
    failure: Option<String>,
    once: BTreeSet<&'static str>,
}

impl Said {
    /// Whether this is to be said: once in a life of the engine.
    fn first(&mut self, what: &'static str) -> bool {
        self.once.insert(what)
    }
}

/// What is heard goes into the feed.
pub(super) struct Heard {
    feed: Feed,
    deaf: bool,
    /// When the engine last answered.
    since: Instant,
    said: Said,
}

impl Heard {
    /// Of an engine that was not heard yet.
    pub(super) fn new(feed: Feed) -> Self {
        Self {
            feed,
            deaf: false,
            since: Instant::now(),
            said: Said::default(),
        }
    }

    pub(super) fn failed(&mut self, error: &Error, ranks: impl Iterator<Item = u32>) {
        if self.since.elapsed() >= DEAF {
            self.deafen(ranks);
        }
        let why = error.to_string();
        if self.said.failure.as_ref() != Some(&why) {
            tracing::warn!(why, "the engine's KV events cannot be had");
            self.said.failure = Some(why);
        }
    }

    pub(super) fn strange(&self, reason: &'static str, times: u64) {
        if times > 0 {
            self.feed.metrics().strange(reason, times);
        }
    }

    /// What is to be recorded, if anything is: rank, number and the event as it came.
    pub(super) fn keep(&self, batch: &Batch<'_>) -> Vec<(u32, u64, String)> {
        self.strange("malformed", batch.nameless);
        if self.feed.recorder().is_none() {
            return Vec::new();
        }
        let events = batch.events.iter();
        events
            .map(|(event, raw)| (event.rank, event.id, (*raw).to_owned()))
            .collect()
    }

    pub(super) fn record(&self, events: &[(u32, u64, String)]) {
        if let Some(recorder) = self.feed.recorder() {
            for (rank, id, raw) in events {
                recorder.frames(*rank, &[b"", &id.to_be_bytes(), raw.as_bytes()]);
            }
        }
    }

    pub(super) fn deafen(&mut self, ranks: impl Iterator<Item = u32>) {
        if !std::mem::replace(&mut self.deaf, true) {
            tracing::info!(
                "the engine does not answer for its KV events: its view is taken back until it does"
            );
            ranks.for_each(|rank| self.feed.deafen(rank));
        }
    }

    pub(super) fn again(&mut self, ranks: impl Iterator<Item = u32>) {
        self.said.failure = None;
        self.since = Instant::now();
        if std::mem::take(&mut self.deaf) {
            ranks.for_each(|rank| self.feed.hear(rank));
        }
    }

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Missed { rank, events, how } => self.missed(rank, events, how),
            Step::Lose { rank } => self.feed.lose(rank),
            Step::Apply { rank, id, pieces } => self.apply(rank, id, &pieces),
            Step::Odd(Odd::UnknownEvent) => self.strange("unknown_event", 1),
            Step::Odd(Odd::UnknownBlockSize) => {
                if self.said.first("block_size") {
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
                if self.said.first("rival") {
                    tracing::warn!(
                        rank,
                        events,
                        "somebody else polls this engine's /kv_cache_events, and what they take is lost here: nobody else may"
                    );
                }
            }
        }
    }

    /// No event has come since so many requests have ended.
    pub(super) fn nothing_after(&mut self, requests: u64) {
        if requests >= TELLING_REQUESTS && self.said.first("nothing") {
            self.strange("nothing_told", 1);
            tracing::warn!(
                requests,
                "the engine has told no KV event: set its kv_cache_config.event_buffer_max_size, and see that nobody else polls \
                 its /kv_cache_events"
            );
        }
    }

    pub(super) fn judge_names(&mut self, names: Names) {
        if names.plain == 0 && names.strange >= STRANGE_NAMES && self.said.first("names") {
            tracing::warn!(
                blocks = names.strange,
                "no block is called as its tokens would have it: all are taken to be of adapters or salts that are not told; if \
                 there are none, say --trust-block-names"
            );
        }
    }
}

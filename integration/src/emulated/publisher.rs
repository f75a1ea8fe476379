//! The ZMQ publisher of KV events, one per data-parallel rank, as vLLM and SGLang have it.
//!
//! Batches are numbered and kept for replay when they are published (`line`); one task sends them (`outlet`), another
//! one answers replay requests (`replay`). Which side binds follows their rule (`endpoint`). What can go wrong on
//! this way is switched on by [`Publisher::faults`].
//!
//! It speaks through a ZMQ implementation of its own, so that a sidecar that listens through libzmq meets a stranger.
//! Each subscriber's queue there holds [`HIGH_WATER_MARK`] messages, the default of both; what a slow subscriber does not
//! fetch beyond that is lost without a trace but the gap in its numbers.

mod endpoint;
mod faults;
mod line;
mod outlet;
mod replay;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::faults::{EventFault, Faults, Mangled, ReplayFault};

use self::endpoint::Way;
use self::line::Line;

/// Messages that wait for one subscriber at most: `hwm`, at its default.
pub const HIGH_WATER_MARK: usize = 100_000;

/// The frames of one message.
type Frames = Vec<Bytes>;

/// `--kv-events-config`, as far as it is emulated.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// Where batches go: `tcp://*:5557` binds, `tcp://host:5557` connects.
    pub endpoint: String,
    /// Where replay is asked for; always bound.
    pub replay_endpoint: Option<String>,
    /// First frame of each message.
    pub topic: String,
    /// Batches that are kept for replay.
    pub buffer_steps: usize,
    /// Messages that may wait to be sent. The real publisher blocks its scheduler beyond that; this one loses them.
    pub max_queue_size: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 10_000,
            max_queue_size: HIGH_WATER_MARK,
        }
    }
}

/// When a batch is told, and by whom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// Seconds since 1970.
    pub ts: f64,
    /// Data-parallel rank.
    pub rank: u32,
}

/// A running publisher. Dropping it frees its ports a moment later, [`Publisher::stop`] before it returns.
#[derive(Debug)]
pub struct Publisher {
    desk: Arc<Desk>,
    sources: Value,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What the publisher, its tasks and its faults share.
#[derive(Debug)]
struct Desk {
    rank: u32,
    started: (f64, Instant),
    line: Mutex<Line>,
    queue: mpsc::Sender<Frames>,
    held: watch::Sender<bool>,
    replay_fault: Mutex<Option<ReplayFault>>,
    dropped: AtomicU64,
    replays: AtomicU64,
    ignored: AtomicU64,
}

impl Publisher {
    /// Starts the publisher of a rank on the current runtime. Its ports are bound when this returns.
    pub fn start(config: PublisherConfig, rank: u32) -> anyhow::Result<Self> {
        let way = Way::of(&endpoint::of_rank(&config.endpoint, rank)?)?;
        let replay = config.replay_endpoint.as_deref();
        let replay = replay
            .map(|replay| Way::bind(&endpoint::of_rank(replay, rank)?))
            .transpose()
            .context("the replay endpoint cannot be used")?;
        let sources = sources(&config, rank, &way, replay.as_ref());

        let (queue, waiting) = mpsc::channel(config.max_queue_size.max(1));
        let (held, holding) = watch::channel(false);
        let desk = Arc::new(Desk {
            rank,
            started: (unix_seconds(), Instant::now()),
            line: Mutex::new(Line::new(config)),
            queue,
            held,
            replay_fault: Mutex::default(),
            dropped: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(outlet::run(
            way,
            waiting,
            holding,
            stop.clone(),
        ))];
        if let Some(way) = replay {
            tasks.push(tokio::spawn(replay::run(
                way,
                Arc::clone(&desk),
                stop.clone(),
            )));
        }
        Ok(Self {
            desk,
            sources,
            stop,
            tasks: Mutex::new(tasks),
        })
    }

    /// The same as soon as its ports are free.
    pub async fn start_when_free(config: &PublisherConfig, rank: u32) -> Arc<Self> {
        crate::wait::until_some("a publisher's ports to be free", || async {
            Self::start(config.clone(), rank).ok().map(Arc::new)
        })
        .await
    }

    /// Publishes what one scheduler step changed, as it is written when and by which rank it is told. Never blocks and
    /// never fails: what finds no room is lost, and its number with it.
    pub fn publish(&self, write: impl FnOnce(Told) -> Vec<u8>) {
        self.desk.publish(write);
    }

    /// Publishes a message that was recorded, byte for byte and under the number that it had.
    pub fn publish_recorded(&self, number: u64, payload: Bytes) {
        let mut line = self.desk.line.lock().unwrap();
        for message in line.admit_recorded(number, payload) {
            self.desk.enqueue(message);
        }
    }

    /// The number of the next batch.
    pub fn next_sequence(&self) -> u64 {
        self.desk.line.lock().unwrap().next_sequence()
    }

    /// Messages that were lost because [`PublisherConfig::max_queue_size`] of them waited already.
    pub fn dropped(&self) -> u64 {
        self.desk.dropped.load(Ordering::Relaxed)
    }

    /// Replay requests that were understood, whether answered or not.
    pub fn replays(&self) -> u64 {
        self.desk.replays.load(Ordering::Relaxed)
    }

    /// Replay requests that were passed over because they had another number of frames.
    pub fn replays_ignored(&self) -> u64 {
        self.desk.ignored.load(Ordering::Relaxed)
    }

    /// This rank's part of `GET /kv_event_sources`: an object with the rank as its one key.
    pub fn sources(&self) -> Value {
        self.sources.clone()
    }

    /// What goes wrong.
    pub fn faults(&self) -> Faults {
        Faults::new(Arc::clone(&self.desk))
    }

    /// Ends it. What waits to be sent is lost, as it is with the real one. Ports are free when this returns.
    pub async fn stop(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        for task in tasks {
            task.await.expect("a publisher's task does not panic");
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Desk {
    fn publish(&self, write: impl FnOnce(Told) -> Vec<u8>) {
        let (base, since) = self.started;
        // Numbers must reach the queue in order.
        let mut line = self.line.lock().unwrap();
        let told = Told {
            ts: base + since.elapsed().as_secs_f64(),
            rank: self.rank,
        };
        for message in line.admit(write(told).into()) {
            self.enqueue(message);
        }
    }

    fn enqueue(&self, message: Frames) {
        if self.queue.try_send(message).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "events carry the date; it is read once, and only spans are added to it"
)]
fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn sources(config: &PublisherConfig, rank: u32, way: &Way, replay: Option<&Way>) -> Value {
    let source = json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": way.endpoint(),
        "replay_endpoint": replay.map(Way::endpoint),
        "buffer_steps": config.buffer_steps,
        "hwm": HIGH_WATER_MARK,
        "max_queue_size": config.max_queue_size,
        "topic": config.topic,
    });
    json!({ rank.to_string(): source })
}

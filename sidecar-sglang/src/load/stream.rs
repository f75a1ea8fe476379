//! The load that each rank publishes: on each change, and once a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use baton_kv_events::cursor::{Cursor, Value};
use baton_kv_events::message::Message;
use baton_kv_events::socket::{bound, receive};
use zmq::{Context, POLLIN, Socket};

/// How long a rank's last word counts. It speaks once a second.
const FRESH: Duration = Duration::from_secs(3);

/// Longest silence of all ranks before the socket is opened anew: some ends of connections libzmq never mends.
const SILENCE: Duration = Duration::from_secs(10);

/// How long one look at the socket may take: so long a thread goes on after it was told to end.
const LOOK: Duration = Duration::from_millis(500);

/// Messages that may wait. Each is made void by the next one of its rank.
const HIGH_WATER_MARK: i32 = 64;

/// How busy a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadStat {
    /// Data-parallel rank.
    pub rank: u32,
    /// Requests that are computed.
    pub running: u64,
    /// Requests in all its queues.
    pub waiting: u64,
    /// Tokens in the KV cache that requests use.
    pub used_tokens: u64,
    /// Tokens that the KV cache holds; 0 if that is not known.
    pub all_tokens: u64,
    /// Prompt tokens in its queues that its cache does not have.
    pub waiting_tokens: u64,
}

impl LoadStat {
    /// Reads `["LoadStat", running, waiting, used, all, rank, waiting tokens, …]`; later versions add to its end.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(payload);
        let Ok(Value::Array(length)) = cursor.value() else {
            return None;
        };
        let tag = cursor.value().ok()?;
        if tag != Value::Text(b"LoadStat") || length < 5 {
            return None;
        }
        let mut number = || match cursor.value().ok()? {
            Value::Unsigned(number) => Some(number),
            Value::Nil => Some(0),
            _ => None,
        };
        let mut stat = Self {
            running: number()?,
            waiting: number()?,
            used_tokens: number()?,
            all_tokens: number()?,
            ..Self::default()
        };
        if length > 5 {
            stat.rank = u32::try_from(number()?).ok()?;
        }
        if length > 6 {
            stat.waiting_tokens = number()?;
        }
        Some(stat)
    }
}

/// Where the ranks publish their load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadSource {
    /// An endpoint for each rank.
    pub(crate) endpoints: Vec<String>,
    /// What it is published under.
    pub(crate) topic: String,
}

type Latest = Arc<Mutex<BTreeMap<u32, (Instant, LoadStat)>>>;

/// Listens to all ranks, on a thread of its own. Dropping it ends that within a moment.
#[derive(Debug)]
pub(crate) struct LoadStream {
    latest: Latest,
    ranks: usize,
    stop: Arc<AtomicBool>,
}

impl Drop for LoadStream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl LoadStream {
    pub(crate) fn start(source: LoadSource) -> Self {
        let stream = Self {
            latest: Latest::default(),
            ranks: source.endpoints.len(),
            stop: Arc::default(),
        };
        let (latest, stop) = (Arc::clone(&stream.latest), Arc::clone(&stream.stop));
        let thread = std::thread::Builder::new().name("load".to_owned());
        let context = Context::new();
        let listen = move || {
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = listen(&context, &source, &latest, &stop) {
                    tracing::debug!(%error, "cannot listen to the engine's load");
                    std::thread::park_timeout(LOOK);
                }
            }
        };
        if let Err(error) = thread.spawn(listen) {
            tracing::error!(%error, "the thread for the engine's load cannot start");
        }
        stream
    }

    /// What every rank said last; nothing unless all of them did lately.
    pub(crate) fn latest(&self) -> Option<Vec<LoadStat>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = latest.values().filter(|(at, _)| at.elapsed() <= FRESH);
        let stats: Vec<LoadStat> = fresh.map(|(_, stat)| *stat).collect();
        (stats.len() == self.ranks).then_some(stats)
    }
}

/// Until told to end, or until nothing has come for long.
fn listen(
    context: &Context,
    source: &LoadSource,
    latest: &Latest,
    stop: &AtomicBool,
) -> Result<(), zmq::Error> {
    let socket = open(context, source)?;
    let mut heard = Instant::now();
    while !stop.load(Ordering::Relaxed) && heard.elapsed() < SILENCE {
        let patience = i64::try_from(LOOK.as_millis()).unwrap_or(i64::MAX);
        zmq::poll(&mut [socket.as_poll_item(POLLIN)], patience)?;
        while let Some(frames) = receive(&socket)? {
            heard = Instant::now();
            let message = Message::published(&frames).ok();
            let Some(stat) = message.and_then(|message| LoadStat::read(message.payload)) else {
                continue;
            };
            let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
            // Ranks are as many as endpoints, whatever a message claims.
            if usize::try_from(stat.rank).is_ok_and(|rank| rank < source.endpoints.len()) {
                latest.insert(stat.rank, (heard, stat));
            }
        }
    }
    Ok(())
}

fn open(context: &Context, source: &LoadSource) -> Result<Socket, zmq::Error> {
    let socket = context.socket(zmq::SUB)?;
    bound(&socket)?;
    socket.set_rcvhwm(HIGH_WATER_MARK)?;
    socket.set_subscribe(source.topic.as_bytes())?;
    for endpoint in &source.endpoints {
        socket.connect(endpoint)?;
    }
    Ok(socket)
}

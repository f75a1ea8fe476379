//! The sockets of one rank's event stream, through libzmq.
//!
//! Connections are watched, for their end is the only sign of an engine that began anew and went as far as the old one.
//! Whatever a peer does, nothing here waits for it: sizes are bounded, a handshake that does not come is given up, the kernel
//! finds a peer that is gone without a word, and an answer that does not come is the caller's to give up. ZMTP's own
//! heartbeats are left out: not every implementation bears them, and one that does not ends the connection.
//!
//! libzmq connects anew by itself after every end of a connection but one: never again after a breach of the protocol, be it
//! a message above the limit (4.3.4, `session_base_t::engine_error`). Then the socket is deaf for good, and has to be opened
//! anew.

use std::time::{Duration, Instant};

use zmq::{Context, POLLIN, Socket, SocketEvent};

use crate::message::{Message, Replayed};
use crate::socket::{bound, receive};

use super::sequencer::Heard;
use super::source::{Endpoints, Way};

/// Messages that may wait in the socket; beyond them the engine's side loses some, which shows as a gap.
const HIGH_WATER_MARK: i32 = 100_000;

/// Messages that are read in one go.
const AT_ONCE: usize = 256;

/// How long after a connection's end libzmq at most begins with the next one, if it does. It does so at once, on a thread
/// that may have to wait for a core.
const RETRY: Duration = Duration::from_secs(1);

/// A number for each monitor's endpoint.
static MONITORS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// One rank's event stream, as the follower needs it.
pub(super) trait Wire {
    /// What happened, waiting up to `patience` for something to happen. Frames that are no message are counted in `bad`.
    fn hear(&mut self, patience: Duration, bad: &mut u64) -> Result<Vec<Heard>, zmq::Error>;

    /// Asks for all messages from this number on.
    fn ask(&mut self, from: u64) -> Result<(), zmq::Error>;

    /// Whatever is still to come in answer to a question is not heard any more.
    fn hush(&mut self);
}

/// Sockets of libzmq.
pub(super) struct ZmqWire {
    context: Context,
    events: Socket,
    monitor: Socket,
    /// When a connection ended that was made from this side and is not tried again yet.
    ended: Option<Instant>,
    connects: bool,
    /// Somebody shook hands, and is not known to have left.
    greeted: bool,
    replay: Option<String>,
    question: Option<Socket>,
    /// The end of an answer is still to come.
    asked: bool,
}

impl ZmqWire {
    pub(super) fn open(context: &Context, endpoints: &Endpoints) -> Result<Self, zmq::Error> {
        let events = context.socket(zmq::SUB)?;
        bound(&events)?;
        events.set_rcvhwm(HIGH_WATER_MARK)?;
        events.set_subscribe(endpoints.topic.as_bytes())?;
        let monitor = watch(context, &events)?;
        match &endpoints.way {
            Way::Connect(endpoint) => events.connect(endpoint)?,
            Way::Bind(endpoint) => events.bind(endpoint)?,
        }
        Ok(Self {
            context: context.clone(),
            events,
            monitor,
            ended: None,
            connects: matches!(endpoints.way, Way::Connect(_)),
            greeted: false,
            replay: endpoints.replay.clone(),
            question: None,
            asked: false,
        })
    }

    /// Messages first, then what became of connections: a message that was there before a connection's end is not taken
    /// for one of the next connection, but the other way round.
    fn read(&mut self, bad: &mut u64) -> Result<Vec<Heard>, zmq::Error> {
        let mut live = Vec::new();
        while live.len() < AT_ONCE
            && let Some(frames) = receive(&self.events)?
        {
            match Message::published(&frames) {
                Ok(message) => live.push(Heard::Live(message.seq, message.payload.to_vec())),
                Err(_) => *bad += 1,
            }
        }
        let mut heard = self.connections()?;
        heard.append(&mut live);
        self.answers(&mut heard, bad)?;
        Ok(heard)
    }

    fn connections(&mut self) -> Result<Vec<Heard>, zmq::Error> {
        let mut heard = Vec::new();
        while let Some(frames) = receive(&self.monitor)? {
            let event = frames.first().and_then(|frame| frame.first_chunk());
            match event.map(|event| SocketEvent::from_raw(u16::from_ne_bytes(*event))) {
                Some(SocketEvent::HANDSHAKE_SUCCEEDED) => {
                    self.greeted = true;
                    heard.push(Heard::Connected);
                }
                Some(SocketEvent::DISCONNECTED) => {
                    self.ended = self.connects.then(Instant::now);
                    // From this side there is one connection at a time. Of several peers nobody knows which one left.
                    let was_greeted = std::mem::take(&mut self.greeted);
                    if was_greeted || !self.connects {
                        heard.push(Heard::Disconnected);
                    }
                }
                Some(SocketEvent::CONNECT_RETRIED) => self.ended = None,
                _ => {}
            }
        }
        Ok(heard)
    }

    fn answers(&mut self, heard: &mut Vec<Heard>, bad: &mut u64) -> Result<(), zmq::Error> {
        let Some(question) = &self.question else {
            return Ok(());
        };
        for _ in 0..AT_ONCE {
            let Some(frames) = receive(question)? else {
                break;
            };
            match Replayed::read(&frames) {
                Ok(Replayed::Message(message)) => {
                    heard.push(Heard::Again(message.seq, message.payload.to_vec()));
                }
                Ok(Replayed::End) => {
                    self.asked = false;
                    heard.push(Heard::End);
                }
                Err(_) => *bad += 1,
            }
        }
        Ok(())
    }
}

impl Wire for ZmqWire {
    fn hear(&mut self, patience: Duration, bad: &mut u64) -> Result<Vec<Heard>, zmq::Error> {
        let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
        let mut items = vec![
            self.events.as_poll_item(POLLIN),
            self.monitor.as_poll_item(POLLIN),
        ];
        items.extend(
            self.question
                .as_ref()
                .map(|socket| socket.as_poll_item(POLLIN)),
        );
        zmq::poll(&mut items, patience)?;
        let heard = self.read(bad)?;
        let is_deaf = self.ended.is_some_and(|ended| ended.elapsed() > RETRY);
        if heard.is_empty() && is_deaf {
            return Err(zmq::Error::EPROTO);
        }
        Ok(heard)
    }

    fn ask(&mut self, from: u64) -> Result<(), zmq::Error> {
        let Some(replay) = &self.replay else {
            return Ok(());
        };
        // Answers carry no sign of their question: only a new socket tells the next one's apart.
        if std::mem::replace(&mut self.asked, true) {
            self.question = None;
        }
        let question = match &self.question {
            Some(question) => question,
            None => {
                let socket = self.context.socket(zmq::DEALER)?;
                bound(&socket)?;
                socket.connect(replay)?;
                self.question.insert(socket)
            }
        };
        // A request without the empty frame is passed over without a word (0.32.0).
        question.send_multipart([&b""[..], &from.to_be_bytes()], zmq::DONTWAIT)
    }

    fn hush(&mut self) {
        self.question = None;
        self.asked = false;
    }
}

fn watch(context: &Context, socket: &Socket) -> Result<Socket, zmq::Error> {
    let number = MONITORS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let endpoint = format!("inproc://follow-{number}");
    let events = [
        SocketEvent::HANDSHAKE_SUCCEEDED,
        SocketEvent::DISCONNECTED,
        SocketEvent::CONNECT_RETRIED,
    ];
    let events = events.iter().fold(0, |all, event| all | event.to_raw());
    socket.monitor(&endpoint, i32::from(events))?;
    let monitor = context.socket(zmq::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(&endpoint)?;
    Ok(monitor)
}

//! An own subscriber to an engine's KV events: everything that the engine published, in order.
//!
//! The event stream alone proves nothing, for publishing is lossy. So the engine is asked for its last messages each time,
//! which also says how far it has come: after the end of an answer nothing is under way any more.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use zmq::{Context, Socket};

/// An answer comes within this. The engine looks for questions every 100 ms (0.32.0).
const ANSWER_MS: i32 = 20_000;

/// Sequence number of an answer's end.
const END: [u8; 8] = [0xff; 8];

/// A subscriber to one life of an engine.
pub struct Subscriber {
    stream: Socket,
    replay: Socket,
    next: u64,
    /// Messages that were not handed out yet.
    ahead: BTreeMap<u64, Vec<u8>>,
}

impl Subscriber {
    /// Subscribes. What was published before is asked for.
    pub fn join(stream: &str, replay: &str) -> Result<Self> {
        let context = Context::new();
        let events = context.socket(zmq::SUB)?;
        // It is read between requests only, and must not lose what came meanwhile.
        events.set_rcvhwm(0)?;
        events.set_subscribe(b"")?;
        let questions = context.socket(zmq::DEALER)?;
        questions.set_rcvhwm(0)?;
        questions.set_rcvtimeo(ANSWER_MS)?;
        for (socket, endpoint) in [(&events, stream), (&questions, replay)] {
            socket.set_linger(0)?;
            let connected = socket.connect(endpoint);
            connected.with_context(|| format!("cannot subscribe at {endpoint}"))?;
        }
        Ok(Self {
            stream: events,
            replay: questions,
            next: 0,
            ahead: BTreeMap::new(),
        })
    }

    /// How many messages the engine has published, as far as was heard.
    pub fn heard(&self) -> u64 {
        self.next
    }

    /// All messages since the last time. The engine's publisher may answer before its queue is empty, so it is asked until
    /// it has nothing new.
    pub fn catch_up(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut news = Vec::new();
        loop {
            self.listen()?;
            self.ask()?;
            self.listen()?;
            let before = news.len();
            while let Some(payload) = self.ahead.remove(&self.next) {
                self.next += 1;
                news.push(payload);
            }
            if let Some((seq, _)) = self.ahead.first_key_value() {
                bail!(
                    "the subscriber itself lost the engine's messages {} to {seq}",
                    self.next
                );
            }
            if news.len() == before {
                return Ok(news);
            }
        }
    }

    fn listen(&mut self) -> Result<()> {
        loop {
            match self.stream.recv_multipart(zmq::DONTWAIT) {
                Ok(frames) => self.take(&frames)?,
                Err(zmq::Error::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn ask(&mut self) -> Result<()> {
        let from = self.next.to_be_bytes();
        self.replay.send_multipart([&b""[..], &from[..]], 0)?;
        loop {
            let frames = self.replay.recv_multipart(0);
            let frames = frames.context("the engine does not replay its KV events")?;
            match frames.as_slice() {
                [delimiter, _, seq, payload]
                    if delimiter.is_empty() && *seq == END && payload.is_empty() =>
                {
                    return Ok(());
                }
                [delimiter, message @ ..] if delimiter.is_empty() => self.take(message)?,
                _ => bail!("a replayed message of {} frames", frames.len()),
            }
        }
    }

    fn take(&mut self, frames: &[Vec<u8>]) -> Result<()> {
        let [_topic, seq, payload] = frames else {
            bail!("a message of {} frames", frames.len());
        };
        let seq = seq.as_slice().try_into().map(u64::from_be_bytes);
        let seq = seq.context("a sequence number that has not 8 bytes")?;
        if seq < self.next {
            return Ok(());
        }
        let known = self.ahead.insert(seq, payload.clone());
        ensure!(
            known.is_none_or(|known| known == *payload),
            "two messages under the number {seq}"
        );
        Ok(())
    }
}

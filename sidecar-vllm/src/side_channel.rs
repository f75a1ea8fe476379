//! Asking for the handshake over the engine's side channel: plain ZMQ, a thread of its own, exactly one kind of request.
//!
//! Callers that arrive while nobody is being asked share one exchange, which begins after all of them have arrived: its
//! answer is never older than any of their questions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use baton_daemon::Exit;
use baton_proto::{Error, ErrorKind, Source, Stage};
use tokio::sync::oneshot;

use crate::handshake::{Handshake, TpRank};

/// Longest time for one exchange. Half a millisecond to 15 ms were measured on a loaded machine.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Largest reply that is read, in bytes: about a thousand were measured, more with many layers.
const MAX_REPLY: i64 = 16 << 20;

/// Callers that may wait.
const CALLERS: usize = 4096;

type Answer = oneshot::Sender<Result<Arc<Handshake>, Error>>;

/// Which tensor-parallel rank is asked for, and who waits.
type Caller = (TpRank, Answer);

/// The engine's side channel.
#[derive(Debug, Clone)]
pub struct SideChannel {
    callers: SyncSender<Caller>,
}

impl SideChannel {
    /// Starts the thread that talks to `address` (`host:port`). It ends when the last clone is dropped.
    pub fn start(address: &str) -> Result<Self, Exit> {
        let (callers, waiting) = sync_channel(CALLERS);
        let endpoint = format!("tcp://{address}");
        std::thread::Builder::new()
            .name("side-channel".to_owned())
            .spawn(move || serve(&endpoint, &waiting))
            .map_err(|error| {
                Exit::failure(format!("the side channel's thread cannot start: {error}"))
            })?;
        Ok(Self { callers })
    }

    /// The engine's handshake, read after this call.
    pub async fn handshake(&self) -> Result<Arc<Handshake>, Error> {
        self.handshake_of(TpRank::FIRST).await
    }

    /// The handshake of one of the engine's tensor-parallel ranks.
    pub async fn handshake_of(&self, rank: TpRank) -> Result<Arc<Handshake>, Error> {
        let (answer, answered) = oneshot::channel();
        self.callers
            .try_send((rank, answer))
            .map_err(|_| failed("too many callers wait for the side channel"))?;
        answered
            .await
            .map_err(|_| failed("the side channel's thread has ended"))?
    }
}

fn failed(why: &str) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        Source::Engine,
        Stage::Fleet,
        format!("no handshake over the side channel: {why}"),
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the thread has nothing to do but wait for callers, and ends with the last of them"
)]
fn serve(endpoint: &str, waiting: &Receiver<Caller>) {
    let mut exchange = Exchange {
        endpoint,
        context: zmq::Context::new(),
        socket: None,
        last: HashMap::new(),
    };
    while let Ok(first) = waiting.recv() {
        let mut callers: BTreeMap<TpRank, Vec<Answer>> = BTreeMap::new();
        for (rank, caller) in std::iter::once(first).chain(waiting.try_iter()) {
            callers.entry(rank).or_default().push(caller);
        }
        for (rank, callers) in callers {
            let outcome = exchange.handshake(rank);
            for caller in callers {
                // A caller that no longer waits needs no answer.
                let _ = caller.send(outcome.clone());
            }
        }
    }
}

struct Exchange<'a> {
    endpoint: &'a str,
    context: zmq::Context,
    socket: Option<zmq::Socket>,
    /// The last payload of each rank and what it says. It is the same for an engine's whole life.
    last: HashMap<TpRank, (Vec<u8>, Arc<Handshake>)>,
}

impl Exchange<'_> {
    fn handshake(&mut self, rank: TpRank) -> Result<Arc<Handshake>, Error> {
        let payload = self.payload(rank).inspect_err(|_| {
            // A REQ socket whose reply did not come is stuck; and a late reply must not answer a later question.
            self.socket = None;
        })?;
        if let Some((_, known)) = self.last.get(&rank).filter(|(last, _)| *last == payload) {
            return Ok(Arc::clone(known));
        }
        let endpoint = self.endpoint;
        let strange = |bad| {
            let message = format!("{endpoint}: {bad}");
            Error::new(ErrorKind::Protocol, Source::Engine, Stage::Fleet, message)
        };
        let handshake = Arc::new(Handshake::parse(&payload).map_err(strange)?);
        self.last.insert(rank, (payload, Arc::clone(&handshake)));
        Ok(handshake)
    }

    /// Asks once; the first frame of the reply.
    fn payload(&mut self, rank: TpRank) -> Result<Vec<u8>, Error> {
        let endpoint = self.endpoint;
        let in_zmq = |error: zmq::Error| match error {
            zmq::Error::EAGAIN => failed(&format!(
                "{endpoint} did not answer within {} ms",
                PATIENCE.as_millis()
            )),
            other => failed(&other.to_string()),
        };
        let socket = match &mut self.socket {
            Some(socket) => socket,
            None => self
                .socket
                .insert(connect(&self.context, endpoint).map_err(in_zmq)?),
        };
        socket.send(&rank.request()[..], 0).map_err(in_zmq)?;
        let frames = socket.recv_multipart(0).map_err(in_zmq)?;
        let payload = frames.into_iter().next();
        payload.ok_or_else(|| failed("the reply was empty"))
    }
}

fn connect(context: &zmq::Context, endpoint: &str) -> Result<zmq::Socket, zmq::Error> {
    let patience = i32::try_from(PATIENCE.as_millis()).unwrap_or(i32::MAX);
    let socket = context.socket(zmq::REQ)?;
    socket.set_ipv6(true)?;
    socket.set_linger(0)?;
    socket.set_maxmsgsize(MAX_REPLY)?;
    socket.set_sndtimeo(patience)?;
    socket.set_rcvtimeo(patience)?;
    socket.set_connect_timeout(patience)?;
    // Without it a request is queued for a peer that is not there, and reaches the next engine on that port.
    socket.set_immediate(true)?;
    socket.connect(endpoint)?;
    Ok(socket)
}

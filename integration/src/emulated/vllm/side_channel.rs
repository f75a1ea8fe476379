//! The NIXL side channel, both ends: what a prefill engine answers and how a decode engine asks (vLLM 0.32.0).
//!
//! The listener is a ZMQ ROUTER that survives one kind of request: any other frame and any unknown rank ends it for good,
//! while the engine goes on, as it does the real one. Nothing authenticates the port.
//!
//! What its agent tells of itself is opaque to everyone but agents of the same fabric; a sidecar looks for the agent's name in
//! it.

mod facts;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use serde::de::IgnoredAny;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use zeromq::{
    ReqSocket, RouterSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage,
};

pub use self::facts::HandshakeFacts;

/// What a decode engine asks: msgpack `[bin "get_meta_msg", pp_rank 0, tp_rank 0]`.
const REQUEST: &[u8] = b"\x93\xc4\x0cget_meta_msg\x00\x00";

/// How long the real decode engine waits for an answer (its `RCVTIMEO`).
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What the side channel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SideChannel {
    /// The handshake.
    #[default]
    Normal,
    /// Bytes that are no MessagePack.
    Garbage,
    /// MessagePack of another shape.
    OtherShape,
    /// Nothing.
    Mute,
}

/// A listening side channel. Dropping it frees its port a moment later, [`Listener::stop`] before it returns.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens on the current runtime. `mode` is looked at for each request; `killed` is set when a request has ended
    /// the listener.
    pub fn start(
        address: SocketAddr,
        facts: &HandshakeFacts,
        mode: Arc<Mutex<SideChannel>>,
        killed: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let handshake = Bytes::from(facts.encode());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut socket = RouterSocket::new();
            socket
                .bind_listener(listener)
                .await
                .expect("a bound listener can be adopted");
            let served = stopped
                .run_until_cancelled(serve(&mut socket, &handshake, &mode))
                .await;
            socket.close().await;
            if served.is_some() {
                killed.store(true, Ordering::Relaxed);
            }
        });
        Ok(Self {
            address,
            stop,
            task,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it; the port is free when this returns.
    pub async fn stop(mut self) {
        self.stop.cancel();
        (&mut self.task)
            .await
            .expect("the side channel's task does not panic");
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Answers until a request comes that the real listener does not survive.
async fn serve(socket: &mut RouterSocket, handshake: &Bytes, mode: &Mutex<SideChannel>) {
    while let Ok(request) = socket.recv().await {
        let frames = request.into_vec();
        // The peer's identity, which this side of the socket puts first, and what a REQ sends: an empty frame, a request.
        let [identity, _, request] = &frames[..] else {
            return;
        };
        if !is_survived(request) {
            return;
        }
        let payload = match *mode.lock().unwrap() {
            SideChannel::Normal => handshake.clone(),
            SideChannel::Garbage => Bytes::from_static(b"\xc1\xff\x00 no handshake"),
            SideChannel::OtherShape => Bytes::from_static(b"\x81\xa1a\x01"),
            SideChannel::Mute => continue,
        };
        let reply = vec![identity.clone(), Bytes::new(), payload, clock()];
        let reply = ZmqMessage::try_from(reply).expect("a reply has frames");
        // A peer that is gone needs no answer.
        let _ = socket.send(reply).await;
    }
}

/// Three values whose last two are the ranks, of which there is one each. What is asked for is not looked at.
fn is_survived(request: &[u8]) -> bool {
    let read: Result<(IgnoredAny, u32, u32), _> = rmp_serde::from_slice(request);
    matches!(read, Ok((_, 0, 0)))
}

/// The host's monotonic clock, in seconds: one timeline for all engines of a host, whatever their lives.
fn clock() -> Bytes {
    let now = clock_gettime(ClockId::Monotonic);
    let since = Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    );
    let clock = rmp_serde::to_vec(&since.as_secs_f64()).expect("a number is writable");
    clock.into()
}

/// Why there is no handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Nobody listens, nobody speaks ZMQ, or nobody answers: a decode engine cannot tell these apart, it waits.
    #[error("no handshake from {address} within {} s", patience.as_secs_f64())]
    NoAnswer {
        /// Who was asked.
        address: String,
        /// How long.
        patience: Duration,
    },
    /// What came is no handshake.
    #[error("the handshake is strange: {0}")]
    Nonsense(String),
}

/// Asks for a handshake as a decode engine does, which has [`PATIENCE`].
pub async fn handshake(
    host: &str,
    port: u16,
    patience: Duration,
) -> Result<HandshakeFacts, HandshakeError> {
    let address = match host.parse() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    };
    let asked = tokio::time::timeout(patience, answered(&address, patience)).await;
    let frames = asked.map_err(|_| HandshakeError::NoAnswer { address, patience })?;
    let [payload, _clock] = &frames[..] else {
        let count = frames.len();
        return Err(HandshakeError::Nonsense(format!("it has {count} frames")));
    };
    HandshakeFacts::parse(payload)
}

/// The reply's frames. libzmq hides a connection that breaks and lets its caller wait, so this does.
async fn answered(address: &str, patience: Duration) -> Vec<Bytes> {
    match exchange(address, patience).await {
        Ok(reply) => reply.into_vec(),
        Err(_) => std::future::pending().await,
    }
}

async fn exchange(address: &str, patience: Duration) -> Result<ZmqMessage, ZmqError> {
    let mut options = SocketOptions::default();
    options.connect_timeout(patience);
    let mut socket = ReqSocket::with_options(options);
    socket.connect(&format!("tcp://{address}")).await?;
    socket.send(Bytes::from_static(REQUEST).into()).await?;
    socket.recv().await
}

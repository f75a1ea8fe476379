//! The loopback fabric: agents that reach each other over TCP to 127.0.0.1, for emulated engines where NIXL is absent.
//!
//! It behaves as NIXL does, where that can be had: whoever knows an agent may read all that it has registered, nobody checks
//! whose the bytes are, a notification has no answer, a peer that stands still makes a read wait for ever, and one that has
//! died is never met again under its name.
//!
//! ```text
//! hello:   agent that is meant, agent that asks (u16 length each)     → 1 if it is the one, else the connection ends
//! read:    'R', count (u32), spans (address u64, bytes u64)           → 0, then the bytes; or 1 if there are no such
//! notify:  'N', message (u32 length)                                  → nothing
//! ```
//! Numbers are little-endian.

mod client;
mod link;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::client::Connections;
pub use self::link::Link;
use self::server::Server;
use crate::agent::Read;
use crate::inbox::Inbox;
use crate::pool::{Retired, Span, lock};
use crate::raw::Memory;
use crate::{AgentConfig, Metadata, Notification, ReadFailed, TransferError};

const READ: u8 = b'R';
const NOTIFY: u8 = b'N';

/// More than any engine has blocks and layers.
const MOST_SPANS: u32 = 1 << 22;
const LONGEST_MESSAGE: u32 = 1 << 24;

/// Bytes that are copied at a time.
const CHUNK: usize = 256 << 10;

/// How long a notification waits to be sent before it counts as sent: a peer that stands still must not hold its caller.
const SENT: Duration = Duration::from_secs(1);

/// How long it then goes on trying.
const UNDELIVERABLE: Duration = Duration::from_secs(60);

/// An agent. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Plane {
    name: String,
    port: u16,
    regions: Arc<Regions>,
    connections: Arc<Connections>,
    inbox: Arc<Inbox>,
    link: Arc<Link>,
    ended: CancellationToken,
}

/// What it has registered.
#[derive(Debug, Default)]
struct Regions {
    by_address: Mutex<BTreeMap<u64, Arc<Memory>>>,
    retired: Arc<Retired>,
}

impl Regions {
    fn add(&self, memory: Arc<Memory>) {
        lock(&self.by_address).insert(memory.address(), memory);
    }

    /// Where a span is, if all of it is registered.
    fn find(&self, span: &Span) -> Option<(Arc<Memory>, usize)> {
        let mut regions = lock(&self.by_address);
        for address in self.retired.take() {
            regions.remove(&address);
        }
        let (start, memory) = regions.range(..=span.address).next_back()?;
        let offset = usize::try_from(span.address - start).ok()?;
        let fits = offset.checked_add(span.bytes)? <= memory.len();
        fits.then(|| (Arc::clone(memory), offset))
    }
}

impl Plane {
    pub(crate) async fn start(config: AgentConfig) -> Result<Self, TransferError> {
        let failed = |error: std::io::Error| TransferError::Start(error.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let plane = Self {
            port: listener.local_addr().map_err(failed)?.port(),
            regions: Arc::default(),
            connections: Arc::new(Connections::new(config.name.clone())),
            inbox: Arc::default(),
            link: Arc::new(Link::new(config.bandwidth)),
            ended: CancellationToken::new(),
            name: config.name,
        };
        let server = Server {
            name: plane.name.clone(),
            regions: Arc::clone(&plane.regions),
            inbox: Arc::clone(&plane.inbox),
            link: Arc::clone(&plane.link),
            ended: plane.ended.clone(),
        };
        tokio::spawn(Arc::new(server).serve(listener));
        Ok(plane)
    }

    pub(crate) fn metadata(&self) -> Result<Metadata, TransferError> {
        self.alive()?;
        Ok(Metadata::loopback(&self.name, self.port))
    }

    pub(crate) fn register(&self, memory: Arc<Memory>) -> Arc<Retired> {
        self.regions.add(memory);
        Arc::clone(&self.regions.retired)
    }

    pub(crate) async fn notify(
        &self,
        peer: &str,
        port: Option<u16>,
        message: &[u8],
    ) -> Result<(), TransferError> {
        self.alive()?;
        let (connections, ended) = (Arc::clone(&self.connections), self.ended.clone());
        let (peer, message) = (peer.to_owned(), message.to_vec());
        let sending = tokio::spawn(async move {
            let sending = connections.notify(&peer, port, &message);
            let sending = tokio::time::timeout(UNDELIVERABLE, sending);
            match ended.run_until_cancelled(sending).await {
                None => Err(TransferError::Gone),
                Some(sent) => sent.unwrap_or(Ok(())),
            }
        });
        match tokio::time::timeout(SENT, sending).await {
            Err(_) => Ok(()),
            Ok(sent) => sent.unwrap_or(Err(TransferError::Gone)),
        }
    }

    /// The answer is dropped unanswered if the agent ends.
    pub(crate) fn read(&self, read: Read) {
        let (connections, ended) = (Arc::clone(&self.connections), self.ended.clone());
        let reading = async move {
            let Read {
                peer,
                port,
                remote,
                into,
                notification,
                mut answer,
            } = read;
            let notification = notification.as_deref();
            let outcome = {
                let fetch = connections.read(&peer, port, &remote, &into, notification);
                tokio::pin!(fetch);
                tokio::select! {
                    outcome = &mut fetch => outcome,
                    () = answer.closed() => {
                        // It goes on, as it would over NIXL.
                        into.quarantine();
                        fetch.await
                    }
                }
            };
            let _ = answer.send(match outcome {
                Ok(()) => Ok(into),
                Err(error) => Err(ReadFailed::with(error, into)),
            });
        };
        tokio::spawn(async move { ended.run_until_cancelled(reading).await });
    }

    pub(crate) fn stall(&self, stalled: bool) {
        self.link.stall(stalled);
    }

    pub(crate) fn forget(&self, peer: &str) {
        self.connections.forget(peer);
    }

    pub(crate) async fn notifications(&self) -> Option<Vec<Notification>> {
        self.inbox.take(|| ()).await
    }

    pub(crate) fn end(&self) {
        self.ended.cancel();
        self.inbox.end();
    }

    fn alive(&self) -> Result<(), TransferError> {
        let ended = self.ended.is_cancelled();
        (!ended).then_some(()).ok_or(TransferError::Gone)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.end();
    }
}

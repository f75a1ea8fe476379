//! An agent of either fabric.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::metadata::is_a_name;
use crate::pool::{Pool, Slots, Span, lock};
use crate::raw::Memory;
use crate::{
    Kind, Library, Metadata, Notification, ReadFailed, TransferError, Unavailable, loopback, nixl,
};

/// How many agents this process has started.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Longest deadline that is counted; a longer one is none.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Over what agents of this process transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric(Kind);

impl Fabric {
    /// NIXL. The library is loaded for the life of the process, and there can be only one.
    ///
    /// UCX, which is part of it, installs handlers of fatal signals and of SIGHUP unless `UCX_HANDLE_ERRORS` and
    /// `UCX_DEBUG_SIGNO` say otherwise, and warns on standard output, unless `UCX_LOG_FILE` does; NIXL's own lines go to
    /// standard error.
    pub fn nixl(library: &Library) -> Result<Self, Unavailable> {
        library.load()?;
        Ok(Self(Kind::Nixl))
    }

    /// TCP to 127.0.0.1, where NIXL is absent: for emulated engines.
    pub fn loopback() -> Self {
        Self(Kind::Loopback)
    }

    /// Which one it is.
    pub fn kind(self) -> Kind {
        self.0
    }
}

/// How an agent is made.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its name: one for each life of a process, as peers that met it keep what it told them.
    pub name: String,
    /// NIXL: network devices that it uses and listens on, as `UCX_NET_DEVICES` lists them. `None` is `lo`: an agent beside
    /// its engine needs no other, and nothing listens where other hosts could reach it.
    pub devices: Option<String>,
    /// NIXL: how long its progress thread rests between two looks, at least 10 µs. Without a rest it takes all of a core.
    pub progress_delay: Duration,
    /// Loopback: bytes per second at which it gives its memory away; `None` is as fast as the machine.
    pub bandwidth: Option<f64>,
}

impl AgentConfig {
    /// What fits an agent beside an engine.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            devices: None,
            progress_delay: Duration::from_micros(100),
            bandwidth: None,
        }
    }
}

/// Reads memory of other agents, gives its own to be read, and exchanges notifications with them.
///
/// Clones are one agent; it ends when the last one is dropped, or at [`Agent::end`].
#[derive(Debug, Clone)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    number: u64,
    plane: Plane,
    met: Mutex<HashMap<String, Met>>,
}

#[derive(Debug)]
enum Plane {
    Nixl(nixl::Plane),
    Loopback(loopback::Plane),
}

/// What is remembered of a name, for as long as the agent lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    /// Met with metadata of this digest; `forgotten` since, or not.
    As { digest: [u8; 32], forgotten: bool },
    /// Its metadata could not be loaded.
    Poisoned,
}

/// Another agent that this one has met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    name: String,
    by: u64,
    port: Option<u16>,
}

impl Peer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A read on its way to a plane.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) peer: String,
    pub(crate) port: Option<u16>,
    pub(crate) remote: Vec<Span>,
    pub(crate) into: Slots,
    pub(crate) notification: Option<Vec<u8>>,
    pub(crate) answer: oneshot::Sender<Result<Slots, ReadFailed>>,
}

impl Agent {
    /// Starts an agent. The loopback fabric's runs on the current tokio runtime, NIXL's on a thread of its own.
    pub async fn start(fabric: &Fabric, config: AgentConfig) -> Result<Self, TransferError> {
        if !is_a_name(&config.name) {
            return Err(TransferError::Refused("no agent can be called that"));
        }
        let name = config.name.clone();
        let plane = match fabric.kind() {
            Kind::Nixl => Plane::Nixl(nixl::Plane::start(config).await?),
            Kind::Loopback => Plane::Loopback(loopback::Plane::start(config).await?),
        };
        Ok(Self(Arc::new(Inner {
            name,
            number: STARTED.fetch_add(1, Ordering::Relaxed),
            plane,
            met: Mutex::default(),
        })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Over what it transfers.
    pub fn kind(&self) -> Kind {
        match self.0.plane {
            Plane::Nixl(_) => Kind::Nixl,
            Plane::Loopback(_) => Kind::Loopback,
        }
    }

    /// What others must know to meet it. Memory that is registered later is not in it, so register first.
    pub async fn metadata(&self) -> Result<Metadata, TransferError> {
        match &self.0.plane {
            Plane::Nixl(plane) => Metadata::parse(&plane.metadata().await?),
            Plane::Loopback(plane) => plane.metadata(),
        }
    }

    /// Gets to know another agent. Nothing is sent: whether it is there shows when something is.
    ///
    /// A name stands for the same bytes as long as this agent lives: bytes that differ are refused, and so is a name whose
    /// bytes could not be loaded once, since NIXL does not forget what it has understood of them.
    pub async fn meet(&self, remote: &Metadata) -> Result<Peer, TransferError> {
        let name = remote.agent_name();
        if name == self.name() {
            return Err(TransferError::Refused("an agent does not meet itself"));
        }
        if remote.kind() != self.kind() {
            return Err(TransferError::Refused(
                "the agents are of different fabrics",
            ));
        }
        self.remember(name, remote.digest())?;
        if let Plane::Nixl(plane) = &self.0.plane {
            let met = plane.meet(remote.clone()).await;
            met.inspect_err(|error| {
                if *error != TransferError::Gone {
                    lock(&self.0.met).insert(name.to_owned(), Met::Poisoned);
                }
            })?;
        }
        Ok(Peer {
            name: name.to_owned(),
            by: self.0.number,
            port: remote.port(),
        })
    }

    fn remember(&self, name: &str, digest: [u8; 32]) -> Result<(), TransferError> {
        let now = Met::As {
            digest,
            forgotten: false,
        };
        match lock(&self.0.met).entry(name.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(now);
                Ok(())
            }
            Entry::Occupied(mut entry) => match *entry.get() {
                Met::Poisoned => Err(TransferError::Poisoned(name.to_owned())),
                Met::As { digest: before, .. } if before != digest => {
                    Err(TransferError::Changed(name.to_owned()))
                }
                Met::As { .. } => {
                    entry.insert(now);
                    Ok(())
                }
            },
        }
    }

    /// Sends a notification. That it was sent does not say that it arrived: a process that ends soon after may take it along.
    pub async fn notify(&self, peer: &Peer, message: &[u8]) -> Result<(), TransferError> {
        self.check(peer)?;
        match &self.0.plane {
            Plane::Nixl(plane) => plane.notify(peer.name.clone(), message.to_vec()).await,
            Plane::Loopback(plane) => plane.notify(&peer.name, peer.port, message).await,
        }
    }

    /// Forgets an agent and the connections to it, but not which bytes its name stands for. What is being read from it goes on
    /// until it ends.
    pub async fn forget(&self, peer: Peer) {
        match lock(&self.0.met).get_mut(&peer.name) {
            Some(Met::As { forgotten, .. }) if peer.by == self.0.number && !*forgotten => {
                *forgotten = true;
            }
            _ => return,
        }
        match &self.0.plane {
            Plane::Nixl(plane) => plane.forget(peer.name).await,
            Plane::Loopback(plane) => plane.forget(&peer.name),
        }
    }

    /// Registers memory: `slots` of this many bytes each, all zero. Peers can read it who met this agent afterwards.
    ///
    /// Deregistration is no fence: a peer that knew the memory may go on reading it. It is not given back to the system before
    /// NIXL's agent has ended, for a read of what is gone could end this process.
    pub async fn register(&self, slot_bytes: usize, slots: usize) -> Result<Pool, TransferError> {
        let bytes = slot_bytes.saturating_mul(slots);
        let memory = Memory::zeroed(bytes).ok_or(TransferError::NoRoom(bytes))?;
        let memory = Arc::new(memory);
        let retired = match &self.0.plane {
            Plane::Nixl(plane) => plane.register(Arc::clone(&memory)).await?,
            Plane::Loopback(plane) => plane.register(Arc::clone(&memory)),
        };
        Ok(Pool::new(memory, slot_bytes, self.0.number, retired))
    }

    /// Reads memory of a peer into slots, which the spans fill in order, and notifies the peer when all has come.
    ///
    /// No transfer can be ended before its time. If the deadline passes, or this is dropped, the slots are in quarantine and
    /// come back to their pool when nothing can be written to them any more.
    pub async fn read(
        &self,
        peer: &Peer,
        remote: &[Span],
        into: Slots,
        notification: Option<&[u8]>,
        deadline: Duration,
    ) -> Result<Slots, ReadFailed> {
        if let Err(error) = self.check_read(peer, remote, &into) {
            return Err(ReadFailed::with(error, into));
        }
        let (answer, answered) = oneshot::channel();
        let read = Read {
            peer: peer.name.clone(),
            port: peer.port,
            remote: remote.to_vec(),
            into,
            notification: notification.map(<[u8]>::to_vec),
            answer,
        };
        let until = Instant::now() + deadline.min(FOREVER);
        let ended = timeout_at(until, async {
            match &self.0.plane {
                Plane::Nixl(plane) => plane.read(read).await,
                Plane::Loopback(plane) => plane.read(read),
            }
            answered.await
        });
        match ended.await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Err(ReadFailed::without(TransferError::Gone)),
            Err(_) => Err(ReadFailed::without(TransferError::Deadline(deadline))),
        }
    }

    fn check_read(&self, peer: &Peer, remote: &[Span], into: &Slots) -> Result<(), TransferError> {
        self.check(peer)?;
        let bytes = remote
            .iter()
            .try_fold(0usize, |sum, span| sum.checked_add(span.bytes));
        let why = if into.agent() != self.0.number {
            "the slots are another agent's"
        } else if remote.is_empty() || remote.iter().any(|span| span.bytes == 0) {
            "there is nothing to read"
        } else if bytes.is_none_or(|bytes| bytes > into.bytes()) {
            "the slots are too small"
        } else {
            return Ok(());
        };
        Err(TransferError::Refused(why))
    }

    fn check(&self, peer: &Peer) -> Result<(), TransferError> {
        match lock(&self.0.met).get(&peer.name) {
            Some(Met::As {
                forgotten: false, ..
            }) if peer.by == self.0.number => Ok(()),
            _ => Err(TransferError::Unknown(peer.name.clone())),
        }
    }

    /// Waits for notifications and takes all that came. Several callers share them. Nothing is lost when this is dropped.
    pub async fn notifications(&self) -> Result<Vec<Notification>, TransferError> {
        let came = match &self.0.plane {
            Plane::Nixl(plane) => plane.notifications().await,
            Plane::Loopback(plane) => plane.notifications().await,
        };
        came.ok_or(TransferError::Gone)
    }

    /// Loopback: its memory is given to nobody any more, as in a partitioned network, or again.
    pub fn stall(&self, stalled: bool) {
        if let Plane::Loopback(plane) = &self.0.plane {
            plane.stall(stalled);
        }
    }

    /// Ends it, whoever has clones: what is under way fails, later calls are answered with [`TransferError::Gone`].
    pub fn end(&self) {
        match &self.0.plane {
            Plane::Nixl(plane) => plane.end(),
            Plane::Loopback(plane) => plane.end(),
        }
    }
}

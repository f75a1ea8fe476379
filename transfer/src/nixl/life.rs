//! What the thread of an agent does from its start to its end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nixl_sys::{Agent, NixlError, RegistrationHandle, XferOp, XferRequest, XferStatus};
use tokio::sync::{mpsc, oneshot};

use super::Command;
use super::calls::{heard, list, lost, notifying, start};
use super::flight::Flight;
use crate::agent::Read;
use crate::inbox::Inbox;
use crate::pool::Retired;
use crate::raw::Memory;
use crate::{AgentConfig, Metadata, ReadFailed, TransferError};

/// How long transfers that are under way may still end by themselves when the agent ends.
const LINGER: Duration = Duration::from_secs(1);

/// Looks at transfers, at notifications that somebody waits for, and at the rest.
const SOON: Duration = Duration::from_micros(50);
const LATER: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(100);

/// That the agent is to end.
#[derive(Debug, Default)]
pub(super) struct Ending(AtomicBool);

impl Ending {
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What the thread and the way to it have in common.
pub(super) struct Shared {
    pub(super) inbox: Arc<Inbox>,
    pub(super) retired: Arc<Retired>,
    pub(super) ending: Arc<Ending>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.end();
    }
}

/// One agent. Fields are dropped in this order, so nothing outlives what it needs: requests, registrations, NIXL's agent
/// with all its threads and connections, and only then the memory that others could reach until now.
pub(super) struct Life {
    flights: Vec<Flight>,
    registered: HashMap<u64, RegistrationHandle>,
    agent: Agent,
    memories: Vec<Arc<Memory>>,
    leaving: HashSet<String>,
    heard: Instant,
    commands: mpsc::Receiver<Command>,
    shared: Shared,
}

impl Life {
    pub(super) fn lead(
        config: &AgentConfig,
        commands: mpsc::Receiver<Command>,
        shared: Shared,
        started: oneshot::Sender<Result<(), TransferError>>,
    ) {
        let agent = match start(config) {
            Ok(agent) => agent,
            Err(error) => {
                let _ = started.send(Err(TransferError::Start(error.to_string())));
                return;
            }
        };
        let mut life = Self {
            flights: Vec::new(),
            registered: HashMap::new(),
            agent,
            memories: Vec::new(),
            leaving: HashSet::new(),
            heard: Instant::now(),
            commands,
            shared,
        };
        // Whoever does not wait for the start has dropped the way here, which ends the loop.
        let _ = started.send(Ok(()));
        while life.obey() {
            life.look_at_flights();
            life.deregister();
            life.hear();
            std::thread::park_timeout(life.rest());
        }
        life.end();
    }

    /// Does what is asked for. Whether there is more to come.
    fn obey(&mut self) -> bool {
        while !self.shared.ending.has_begun() {
            match self.commands.try_recv() {
                Ok(command) => self.act(command),
                Err(mpsc::error::TryRecvError::Empty) => return true,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
        false
    }

    /// Who asked and does not wait for the answer needs none.
    fn act(&mut self, command: Command) {
        match command {
            Command::Metadata(answer) => {
                let metadata = self.agent.get_local_md();
                let _ =
                    answer.send(metadata.map_err(|error| TransferError::Start(error.to_string())));
            }
            Command::Meet(metadata, answer) => {
                let _ = answer.send(self.meet(&metadata));
            }
            Command::Notify(peer, message, answer) => {
                let sent = self.agent.send_notification(&peer, &message, None);
                let _ = answer.send(sent.map_err(|error| lost(&error, &peer)));
            }
            Command::Forget(peer) => {
                self.leaving.insert(peer);
                self.let_go();
            }
            Command::Register(memory, answer) => {
                let _ = answer.send(self.register(memory));
            }
            Command::Read(read) => self.read(read),
        }
    }

    /// Loads metadata. After a failure NIXL may have understood half of it, for good.
    fn meet(&mut self, metadata: &Metadata) -> Result<(), TransferError> {
        self.leaving.remove(metadata.agent_name());
        match self.agent.load_remote_md(metadata.bytes()) {
            Ok(name) if name == metadata.agent_name() => Ok(()),
            Ok(name) => {
                let _ = self.agent.invalidate_remote_md(&name);
                Err(TransferError::BadMetadata(
                    "NIXL reads another name in them",
                ))
            }
            Err(_) => Err(TransferError::BadMetadata("NIXL does not understand them")),
        }
    }

    fn register(&mut self, memory: Arc<Memory>) -> Result<(), TransferError> {
        let registered = self.agent.register_memory(&*memory, None);
        let registered = registered.map_err(|_| TransferError::NoRoom(memory.len()))?;
        self.registered.insert(memory.address(), registered);
        self.memories.push(memory);
        Ok(())
    }

    /// The memory itself is kept: a peer that does not know may still read it, and without it this process would end.
    fn deregister(&mut self) {
        for address in self.shared.retired.take() {
            self.registered.remove(&address);
        }
    }

    fn read(&mut self, read: Read) {
        // Nobody has touched the slots yet, so they need no quarantine.
        if read.answer.is_closed() {
            return;
        }
        let request = self.draw_up(&read);
        let Read {
            peer, into, answer, ..
        } = read;
        match request {
            Ok(request) => self.post(Flight {
                request,
                slots: into,
                answer: Some(answer),
                peer,
                since: Instant::now(),
            }),
            Err(_) => {
                let failed = ReadFailed::with(TransferError::NoSuchMemory(peer), into);
                let _ = answer.send(Err(failed));
            }
        }
    }

    fn draw_up(&self, read: &Read) -> Result<XferRequest, NixlError> {
        let pieces = read.into.scatter(&read.remote);
        let (mut near, mut far) = (list()?, list()?);
        for piece in pieces.ok_or(NixlError::InvalidParam)? {
            let (address, bytes) = (piece.remote.address, piece.remote.bytes);
            near.add_desc(read.into.memory().start() + piece.offset, bytes, 0);
            let address = usize::try_from(address).map_err(|_| NixlError::InvalidParam)?;
            far.add_desc(address, bytes, piece.remote.device);
        }
        let options = read.notification.as_deref().map(notifying).transpose()?;
        self.agent
            .create_xfer_req(XferOp::Read, &near, &far, &read.peer, options.as_ref())
    }

    fn post(&mut self, mut flight: Flight) {
        match self.agent.post_xfer_req(&flight.request, None) {
            Ok(false) => flight.land(Ok(())),
            Ok(true) => self.flights.push(flight),
            // Of many pieces some may be under way all the same.
            Err(error) => match self.agent.get_xfer_status(&flight.request) {
                Ok(XferStatus::InProgress) => {
                    let error = lost(&error, &flight.peer);
                    if let Some(answer) = flight.answer.take() {
                        let _ = answer.send(Err(ReadFailed::without(error)));
                    }
                    self.flights.push(flight);
                }
                _ => flight.land(Err(error)),
            },
        }
    }

    fn look_at_flights(&mut self) {
        let mut index = 0;
        while let Some(flight) = self.flights.get_mut(index) {
            if flight
                .answer
                .as_ref()
                .is_none_or(oneshot::Sender::is_closed)
            {
                flight.slots.quarantine();
            }
            match self.agent.get_xfer_status(&flight.request) {
                Ok(XferStatus::InProgress) => index += 1,
                Ok(XferStatus::Success) => self.flights.swap_remove(index).land(Ok(())),
                Err(error) => self.flights.swap_remove(index).land(Err(error)),
            }
        }
        self.let_go();
    }

    /// Forgets peers that nothing is being read from any more.
    fn let_go(&mut self) {
        let flights = &self.flights;
        let agent = &self.agent;
        self.leaving.retain(|peer| {
            let busy = flights.iter().any(|flight| flight.peer == *peer);
            if !busy {
                let _ = agent.invalidate_remote_md(peer);
            }
            busy
        });
    }

    /// Fetches notifications: often if somebody waits for them, else now and then, so that they do not pile up in NIXL.
    fn hear(&mut self) {
        let pause = if self.shared.inbox.is_awaited() {
            LATER
        } else {
            SELDOM
        };
        if self.heard.elapsed() < pause {
            return;
        }
        self.heard = Instant::now();
        for notification in heard(&self.agent).unwrap_or_default() {
            self.shared.inbox.put(notification);
        }
    }

    fn rest(&self) -> Duration {
        let young = self
            .flights
            .iter()
            .any(|flight| flight.since.elapsed() < 5 * LATER);
        if young {
            SOON
        } else if !self.flights.is_empty() || self.shared.inbox.is_awaited() {
            LATER
        } else {
            SELDOM
        }
    }

    fn end(mut self) {
        self.commands.close();
        let since = Instant::now();
        while !self.flights.is_empty() && since.elapsed() < LINGER {
            self.look_at_flights();
            std::thread::park_timeout(LATER);
        }
        for flight in self.flights.drain(..) {
            flight.abandon();
        }
    }
}

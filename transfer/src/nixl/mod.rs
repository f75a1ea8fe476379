//! The NIXL fabric: an agent of NIXL's on a thread of its own, and the way to it.
//!
//! NIXL's calls hold a lock while they copy (over shared memory a whole transfer runs inside the call that begins it), so
//! none of them is made on a thread that has something else to do.

mod calls;
mod flight;
mod life;

use std::sync::Arc;
use std::thread::Thread;

use tokio::sync::{mpsc, oneshot};

use self::life::Life;
use crate::agent::Read;
use crate::inbox::Inbox;
use crate::pool::Retired;
use crate::raw::Memory;
use crate::{AgentConfig, Metadata, Notification, TransferError};

/// Commands that wait for the thread; who wants more of it waits as well.
const MOST_COMMANDS: usize = 1024;

type Answer<T> = oneshot::Sender<Result<T, TransferError>>;

/// What the thread is asked for.
enum Command {
    Metadata(Answer<Vec<u8>>),
    Meet(Metadata, Answer<()>),
    Notify(String, Vec<u8>, Answer<()>),
    Forget(String),
    Register(Arc<Memory>, Answer<()>),
    Read(Read),
}

/// The way to the thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Plane {
    commands: mpsc::Sender<Command>,
    thread: Thread,
    inbox: Arc<Inbox>,
    retired: Arc<Retired>,
    ending: Arc<life::Ending>,
}

impl Plane {
    pub(crate) async fn start(config: AgentConfig) -> Result<Self, TransferError> {
        let (commands, asked) = mpsc::channel(MOST_COMMANDS);
        let (inbox, retired, ending) = (Arc::default(), Arc::default(), Arc::default());
        let (started, up) = oneshot::channel();
        let shared = life::Shared {
            inbox: Arc::clone(&inbox),
            retired: Arc::clone(&retired),
            ending: Arc::clone(&ending),
        };
        let thread = std::thread::Builder::new()
            .name("nixl".to_owned())
            .spawn(move || Life::lead(&config, asked, shared, started))
            .map_err(|error| TransferError::Start(error.to_string()))?;
        let plane = Self {
            commands,
            thread: thread.thread().clone(),
            inbox,
            retired,
            ending,
        };
        up.await.unwrap_or(Err(TransferError::Gone))?;
        Ok(plane)
    }

    pub(crate) async fn metadata(&self) -> Result<Vec<u8>, TransferError> {
        self.ask(Command::Metadata).await
    }

    pub(crate) async fn meet(&self, metadata: Metadata) -> Result<(), TransferError> {
        self.ask(|answer| Command::Meet(metadata, answer)).await
    }

    pub(crate) async fn notify(&self, peer: String, message: Vec<u8>) -> Result<(), TransferError> {
        self.ask(|answer| Command::Notify(peer, message, answer))
            .await
    }

    pub(crate) async fn forget(&self, peer: String) {
        self.send(Command::Forget(peer)).await;
    }

    pub(crate) async fn register(
        &self,
        memory: Arc<Memory>,
    ) -> Result<Arc<Retired>, TransferError> {
        self.ask(|answer| Command::Register(memory, answer)).await?;
        Ok(Arc::clone(&self.retired))
    }

    /// If the thread has ended the answer is dropped unanswered.
    pub(crate) async fn read(&self, read: Read) {
        self.send(Command::Read(read)).await;
    }

    pub(crate) async fn notifications(&self) -> Option<Vec<Notification>> {
        self.inbox.take(|| self.thread.unpark()).await
    }

    pub(crate) fn end(&self) {
        self.ending.begin();
        self.thread.unpark();
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, TransferError> {
        let (answer, answered) = oneshot::channel();
        self.send(command(answer)).await;
        answered.await.unwrap_or(Err(TransferError::Gone))
    }

    async fn send(&self, command: Command) {
        // Fails only if the thread has ended, which whoever asked learns from the answer that it does not get.
        let _ = self.commands.send(command).await;
        self.thread.unpark();
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.end();
    }
}

//! Tells an engine what its decode peers would tell it, over NIXL: that KV was fetched, or that it is still wanted.
//!
//! An agent of ours lives as long as the life of the engine that it has met; one that lost its peer is of no use any more.
//! To make one takes a second, and several on a busy machine, which is more than whoever has something to tell can wait
//! for. So an engine is met before there is anything to tell it, and what was begun goes on when its caller gives up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::{Error, ErrorKind, Incarnation, Source, Stage};
use baton_transfer::{Agent, AgentConfig, Fabric, Kind, Library, Peer, TransferError};
use tokio::sync::Mutex;

use crate::handshake::Handshake;
use crate::mapped;
use crate::transfer_params::Notification;

/// Longest a message may take on its way to one rank. The first one sets the connection up.
const PATIENCE: Duration = Duration::from_millis(1200);

/// How NIXL is had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NixlConfig {
    /// Its library, or the folder that it is in.
    pub library: Option<PathBuf>,
    /// Where else it may be.
    pub near: Vec<PathBuf>,
    /// Network devices that it uses.
    pub devices: Option<String>,
}

/// Speaks to one engine.
#[derive(Debug)]
pub struct Notifier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: NixlConfig,
    met: Mutex<Option<Met>>,
}

#[derive(Debug)]
struct Met {
    life: Incarnation,
    agent: Agent,
    peers: Vec<Peer>,
}

impl Notifier {
    /// One that has met nobody.
    pub fn new(config: NixlConfig) -> Self {
        let met = Mutex::default();
        Self(Arc::new(Inner { config, met }))
    }

    /// Another agent of our own, on the same fabric.
    pub async fn agent(&self, kind: Kind) -> Result<Agent, Error> {
        self.0.start(kind).await
    }

    /// Meets an engine. It is not waited for; that it went wrong shows when there is something to tell.
    pub fn prepare(&self, ranks: Vec<Arc<Handshake>>) {
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut met = inner.met.lock().await;
            if let Err(error) = inner.meet(&mut met, &ranks).await {
                tracing::warn!(%error, "KV that nobody fetches cannot be given back");
            }
        });
    }

    /// Sends a message to each rank of an engine. The message may still be sent after a caller has given up.
    pub async fn tell(
        &self,
        ranks: Vec<Arc<Handshake>>,
        message: Notification,
    ) -> Result<(), Error> {
        let inner = Arc::clone(&self.0);
        let telling = tokio::spawn(async move { inner.tell(&ranks, &message).await });
        telling
            .await
            .unwrap_or_else(|died| Err(unable(&died.to_string())))
    }
}

impl Inner {
    async fn tell(&self, ranks: &[Arc<Handshake>], message: &Notification) -> Result<(), Error> {
        let mut met = self.met.lock().await;
        let told = async {
            let Met { agent, peers, .. } = self.meet(&mut met, ranks).await?;
            for peer in peers {
                let sent = agent.notify(peer, message.as_bytes());
                let sent = tokio::time::timeout(PATIENCE, sent).await;
                sent.map_err(|_| TransferError::Deadline(PATIENCE))
                    .flatten()
                    .map_err(|error| failed(&error))?;
            }
            Ok(())
        };
        let told = told.await;
        if told.is_err() {
            *met = None;
        }
        told
    }

    async fn meet<'a>(
        &self,
        met: &'a mut Option<Met>,
        ranks: &[Arc<Handshake>],
    ) -> Result<&'a Met, Error> {
        let first = ranks.first().ok_or_else(|| unable("it has no ranks"))?;
        let known = met
            .take()
            .filter(|met| met.life == first.incarnation && met.peers.len() == ranks.len());
        let now = match known {
            Some(known) => known,
            None => {
                let agent = self.start(first.agent.kind()).await?;
                let mut peers = Vec::with_capacity(ranks.len());
                for rank in ranks {
                    peers.push(
                        agent
                            .meet(&rank.agent)
                            .await
                            .map_err(|error| failed(&error))?,
                    );
                }
                let life = first.incarnation.clone();
                Met { life, agent, peers }
            }
        };
        Ok(met.insert(now))
    }

    async fn start(&self, kind: Kind) -> Result<Agent, Error> {
        let fabric = match kind {
            Kind::Loopback => Fabric::loopback(),
            Kind::Nixl => load(self.config.clone()).await?,
        };
        let mut config = AgentConfig::new(format!("baton-{}", baton_daemon::fresh::hex_id()));
        config.devices.clone_from(&self.config.devices);
        Agent::start(&fabric, config)
            .await
            .map_err(|error| failed(&error))
    }
}

/// Loads NIXL. Many processes are looked at for it, and much is read from the disk.
async fn load(config: NixlConfig) -> Result<Fabric, Error> {
    let loading = tokio::task::spawn_blocking(move || {
        let library = config.find()?;
        Fabric::nixl(&library).map_err(|why| unable(&why.to_string()))
    });
    loading
        .await
        .unwrap_or_else(|died| Err(unable(&died.to_string())))
}

impl NixlConfig {
    /// NIXL's library: the one that was named, or the one that the engine has.
    fn find(&self) -> Result<Library, Error> {
        let near: Vec<PathBuf> = mapped::folders("libnixl.so")
            .into_iter()
            .chain(self.near.iter().cloned())
            .collect();
        Library::find(self.library.as_deref(), &near).map_err(|why| unable(&why.to_string()))
    }
}

fn failed(error: &TransferError) -> Error {
    let message = format!("the engine could not be told over NIXL: {error}");
    Error::new(
        ErrorKind::Unreachable,
        Source::Engine,
        Stage::Handoff,
        message,
    )
}

fn unable(why: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        Source::Sidecar,
        Stage::Handoff,
        format!("the engine cannot be told anything over NIXL: {why}"),
    )
}

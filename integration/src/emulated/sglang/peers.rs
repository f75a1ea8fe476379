//! What a decode rank remembers of the prefill engines that it has met.
//!
//! As the real one does, it asks a bootstrap server once, by the address that it was given, and forgets that only when the server
//! has missed several heartbeats in a row. Whoever is back at the same address sooner is taken for who was there before: what is
//! said to that one reaches nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::bootstrap::{self, Topology};
use super::config::Patience;

/// Host and port of a bootstrap server.
type Address = (String, u16);

/// Prefill engines by where their bootstrap servers are.
#[derive(Debug)]
pub(super) struct Peers {
    known: Mutex<HashMap<Address, Peer>>,
    patience: Patience,
    /// The end of this life.
    dead: CancellationToken,
}

#[derive(Debug)]
struct Peer {
    topology: Topology,
    ranks: HashMap<u64, SocketAddr>,
}

impl Peers {
    pub(super) fn new(patience: Patience, dead: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            patience,
            dead,
        })
    }

    /// Of which shape an engine is; `None` if it cannot be asked.
    pub(super) async fn topology(self: &Arc<Self>, host: &str, port: u16) -> Option<Topology> {
        let at = (host.to_owned(), port);
        if let Some(peer) = self.known.lock().unwrap().get(&at) {
            return Some(peer.topology);
        }
        let topology = bootstrap::topology(host, port).await?;
        let met = Peer {
            topology,
            ranks: HashMap::new(),
        };
        if self.known.lock().unwrap().insert(at.clone(), met).is_none() {
            let (peers, dead) = (Arc::clone(self), self.dead.clone());
            tokio::spawn(async move { dead.run_until_cancelled(peers.watch(at)).await });
        }
        Some(topology)
    }

    /// Where a rank of it is; `None` if it cannot be asked.
    pub(super) async fn rank(&self, host: &str, port: u16, rank: u64) -> Option<SocketAddr> {
        let at = (host.to_owned(), port);
        let known = |known: &HashMap<Address, Peer>| known.get(&at)?.ranks.get(&rank).copied();
        if let Some(address) = known(&self.known.lock().unwrap()) {
            return Some(address);
        }
        let address = bootstrap::rank(host, port, rank).await?;
        if let Some(peer) = self.known.lock().unwrap().get_mut(&at) {
            peer.ranks.insert(rank, address);
        }
        Some(address)
    }

    /// Where it takes the first rank to be of the engine with this bootstrap server.
    pub(super) fn known(&self, bootstrap: SocketAddr) -> Option<SocketAddr> {
        let at = (bootstrap.ip().to_string(), bootstrap.port());
        let known = self.known.lock().unwrap();
        known.get(&at)?.ranks.get(&0).copied()
    }

    /// Looks for heartbeats until there are none.
    async fn watch(self: Arc<Self>, (host, port): Address) {
        let mut failures = 0;
        while failures < self.patience.heartbeat_failures {
            tokio::time::sleep(self.patience.heartbeat).await;
            if bootstrap::is_healthy(&host, port).await {
                failures = 0;
            } else {
                failures += 1;
            }
        }
        self.known.lock().unwrap().remove(&(host, port));
    }
}

//! How a rank fetches KV: handshake with engines it has not met, then a read of their memory.
//!
//! The agent of an `engine_id` is kept for good (the real engine: an hour), so a holder that restarted under the same
//! `engine_id` fails every transfer, as recorded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use baton_transfer::{Agent, Peer};

use super::super::core::{Core, Failure, Network, Pending, Remote};
use super::super::reach::Reader;
use super::side_channel::{self, HandshakeFacts};

/// An engine that this one has met.
#[derive(Debug, Clone)]
struct Met {
    peer: Peer,
    facts: Arc<HandshakeFacts>,
}

/// The transfer side of one rank.
#[derive(Debug)]
pub(super) struct Transfer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    own: HandshakeFacts,
    reader: Reader,
    met: Mutex<HashMap<String, Met>>,
}

impl Transfer {
    pub(super) fn new(own: HandshakeFacts, reader: Reader) -> Self {
        Self(Arc::new(Inner {
            own,
            reader,
            met: Mutex::default(),
        }))
    }
}

impl Network for Transfer {
    fn fetch(
        &self,
        remote: Remote,
        first_token: usize,
        tokens: usize,
    ) -> Pending<Result<Vec<u8>, Failure>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.fetch(&remote, first_token, tokens).await })
    }

    fn notify(&self, remote: Remote, message: String) -> Pending<()> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            // Fire and forget.
            if let Ok(met) = inner.meet(&remote).await {
                let _ = inner
                    .reader
                    .agent
                    .notify(&met.peer, message.as_bytes())
                    .await;
            }
        })
    }
}

impl Inner {
    async fn fetch(
        &self,
        remote: &Remote,
        first_token: usize,
        tokens: usize,
    ) -> Result<Vec<u8>, Failure> {
        let Met { peer, facts } = self.meet(remote).await?;
        let block_size = facts.block_size as usize;
        let blocks = first_token / block_size..tokens.div_ceil(block_size);
        let ids = remote.blocks.get(blocks).ok_or(Failure::NoSuchBlock)?;
        let arrived = format!("{}:1", remote.request_id);
        let regions = facts.regions();
        self.reader.read(&peer, &regions, ids, &arrived).await
    }

    /// The engine behind a side channel; a handshake if this one has not met it.
    async fn meet(&self, remote: &Remote) -> Result<Met, Failure> {
        let known = self.met.lock().unwrap().get(&remote.engine_id).cloned();
        if let Some(met) = known {
            return Ok(met);
        }
        let facts = side_channel::handshake(&remote.host, remote.port, side_channel::PATIENCE)
            .await
            .map_err(|error| Failure::Handshake(error.to_string()))?;
        self.check(remote, &facts)
            .map_err(|why| Failure::Handshake(why.to_owned()))?;
        let met = Met {
            peer: self.reader.agent.meet(&facts.metadata).await?,
            facts: Arc::new(facts),
        };
        let mut known = self.met.lock().unwrap();
        Ok(known.entry(remote.engine_id.clone()).or_insert(met).clone())
    }

    fn check(&self, remote: &Remote, facts: &HandshakeFacts) -> Result<(), &'static str> {
        if facts.engine_id != remote.engine_id {
            return Err("another engine_id");
        }
        if facts.compatibility_hash != self.own.compatibility_hash {
            return Err("another compatibility hash");
        }
        if facts.layout != self.own.layout {
            return Err("another layout");
        }
        if facts.base_addresses.len() != self.own.base_addresses.len() {
            return Err("another number of layers");
        }
        let divides = facts.block_size > 0 && self.own.block_size.is_multiple_of(facts.block_size);
        divides.then_some(()).ok_or("block sizes do not divide")
    }
}

/// Takes notifications until the agent ends. The real scheduler looks for them between its steps: one that stands still
/// hears nothing.
pub(super) async fn listen(agent: Agent, core: Arc<Core>) {
    while let Ok(notifications) = agent.notifications().await {
        core.thawed().await;
        for notification in notifications {
            core.notified(&notification.message);
        }
    }
}

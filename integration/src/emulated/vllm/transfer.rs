//! How a rank fetches KV: handshake with engines it has not met, then blocks over the data plane.
//!
//! The agent of an `engine_id` is kept for good (the real engine: an hour), so a holder that restarted under the same
//! `engine_id` fails every transfer, as recorded.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::super::core::{Network, Pending, Remote};
use super::super::plane::{Connections, Failure};
use super::side_channel::{self, HandshakeFacts};

/// An engine that this one has met.
#[derive(Debug, Clone)]
struct Met {
    agent: String,
    plane: SocketAddr,
    block_size: usize,
}

/// The transfer side of one rank.
#[derive(Debug)]
pub(super) struct Transfer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    own: HandshakeFacts,
    row_bytes: usize,
    met: Mutex<HashMap<String, Met>>,
    connections: Connections,
}

impl Transfer {
    pub(super) fn new(own: HandshakeFacts, row_bytes: usize) -> Self {
        Self(Arc::new(Inner {
            own,
            row_bytes,
            met: Mutex::default(),
            connections: Connections::default(),
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
            // Fire and forget, as over NIXL.
            if let Ok(met) = inner.meet(&remote).await {
                let message = message.as_bytes();
                let _ = inner
                    .connections
                    .notify(met.plane, &met.agent, message)
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
        let met = self.meet(remote).await?;
        let blocks = first_token / met.block_size..tokens.div_ceil(met.block_size);
        let ids = remote.blocks.get(blocks).ok_or(Failure::NoSuchBlock)?;
        let block_bytes = met.block_size * self.row_bytes;
        let arrived = format!("{}:1", remote.request_id);
        self.connections
            .read(met.plane, &met.agent, ids, block_bytes, &arrived)
            .await
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
        let port = facts.kv_plane_port;
        let port = port.ok_or_else(|| Failure::Handshake("a real engine".to_owned()))?;
        let met = Met {
            agent: facts.agent,
            plane: SocketAddr::from(([127, 0, 0, 1], port)),
            block_size: facts.block_size as usize,
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
        let divides = facts.block_size > 0 && self.own.block_size.is_multiple_of(facts.block_size);
        divides.then_some(()).ok_or("block sizes do not divide")
    }
}

//! How a rank fetches KV: handshake with engines it has not met, then a read of their memory.
//!
//! The agent of an `engine_id` is kept for good (the real engine: an hour), so a holder that restarted under the same
//! `engine_id` fails every transfer, as recorded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_transfer::{Agent, AgentConfig, Peer, Pool, ReadFailed, Span, TransferError};

use super::super::core::{Core, Failure, Network, Pending, Remote};
use super::super::memory::Memory;
use super::config::Config;
use super::side_channel::{self, HandshakeFacts};
use super::telling::LAYERS;

/// The real engine waits for its KV as long as the holder stands still.
const NO_DEADLINE: Duration = Duration::MAX;

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
    agent: Agent,
    /// KV is read into here, and from here into blocks.
    landing: Pool,
    met: Mutex<HashMap<String, Met>>,
}

impl Transfer {
    pub(super) fn new(own: HandshakeFacts, agent: Agent, landing: Pool) -> Self {
        Self(Arc::new(Inner {
            own,
            agent,
            landing,
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
                let _ = inner.agent.notify(&met.peer, message.as_bytes()).await;
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
        let spans = ids.iter().map(|id| facts.spans(*id).map(Iterator::collect));
        let spans: Option<Vec<Vec<Span>>> = spans.collect();
        let spans = spans.ok_or(Failure::NoSuchBlock)?.concat();
        if spans.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = ids.len() * facts.block_bytes();
        let into = self.landing.take(bytes.div_ceil(self.landing.slot_bytes()));
        let into = into.ok_or(Failure::NoRoom)?;
        let arrived = format!("{}:1", remote.request_id);
        let read = self
            .agent
            .read(&peer, &spans, into, Some(arrived.as_bytes()), NO_DEADLINE);
        let read = read.await.map_err(|ReadFailed { error, .. }| error)?;
        let mut rows = read.to_vec();
        rows.truncate(bytes);
        Ok(rows)
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
            peer: self.agent.meet(&facts.metadata).await?,
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

/// An agent of this name, KV memory that it has registered, and what the side channel says of both.
pub(super) async fn memory(
    config: &Config,
    engine_id: &str,
    agent: String,
) -> Result<(Agent, Memory, HandshakeFacts), TransferError> {
    let agent = AgentConfig {
        bandwidth: config.kv_bandwidth,
        ..AgentConfig::new(agent)
    };
    let agent = Agent::start(&config.fabric, agent).await?;
    let block_len_bytes = config.core(0).block_bytes() / LAYERS;
    let layer_bytes = block_len_bytes * config.blocks as usize;
    let regions = agent.register(layer_bytes, LAYERS).await?;
    let regions = regions
        .take(LAYERS)
        .ok_or(TransferError::NoRoom(layer_bytes))?;
    let facts = HandshakeFacts {
        compatibility_hash: config.compatibility_hash.clone(),
        engine_id: engine_id.to_owned(),
        metadata: agent.metadata().await?,
        block_size: config.block_size,
        block_len_bytes: block_len_bytes as u64,
        num_blocks: u64::from(config.blocks),
        base_addresses: (0..LAYERS)
            .map(|layer| regions.span(layer).address)
            .collect(),
        layout: config.layout.clone(),
        attention_backend: "CPU_ATTN".to_owned(),
    };
    Ok((agent, Memory::Registered(regions), facts))
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

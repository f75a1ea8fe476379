//! How a rank reaches the memory of others: agents, regions of blocks, and what is read of them.

use baton_transfer::{
    Agent, AgentConfig, Fabric, Metadata, Peer, Pool, ReadFailed, Span, TransferError,
};
use std::time::Duration;

use super::core::Failure;
use super::memory::Memory;
use super::pool::BlockId;

/// Layers of the recorded model: each has its part of every block in a region of its own.
pub const LAYERS: usize = 2;

/// The real engines wait for their KV as long as the holder stands still.
const NO_DEADLINE: Duration = Duration::MAX;

/// Where the blocks of an engine are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regions {
    /// What its agent tells of itself. Its name is new for every life of the engine.
    pub metadata: Metadata,
    /// Address of each layer's KV, new for every life of the engine.
    pub bases: Vec<u64>,
    /// Bytes of one block of one layer.
    pub block_len_bytes: u64,
    /// Blocks per layer.
    pub blocks: u64,
}

impl Regions {
    /// Where a block is, layer by layer; `None` if there is none of this number.
    pub fn spans(&self, block: u32) -> Option<impl Iterator<Item = Span>> {
        let offset = u64::from(block).checked_mul(self.block_len_bytes)?;
        let bytes = usize::try_from(self.block_len_bytes).ok()?;
        let at = move |base: &u64| Span {
            address: base.wrapping_add(offset),
            bytes,
            device: 0,
        };
        let exists = u64::from(block) < self.blocks;
        exists.then(|| self.bases.iter().map(at))
    }

    /// Bytes of a block over all layers.
    pub fn block_bytes(&self) -> usize {
        usize::try_from(self.block_len_bytes)
            .unwrap_or(usize::MAX)
            .saturating_mul(self.bases.len())
    }
}

/// Reads blocks of others.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) agent: Agent,
    /// KV is read into here, and from here into blocks.
    landing: Pool,
}

impl Reader {
    /// One with room for as many blocks as its engine has.
    pub(super) async fn new(agent: &Agent, block_bytes: usize, blocks: u32) -> Self {
        let landing = agent.register(block_bytes, blocks as usize).await;
        Self {
            agent: agent.clone(),
            landing: landing.expect("as much memory again"),
        }
    }

    /// The bytes of these blocks, one after the other; their holder is notified.
    pub(super) async fn read(
        &self,
        peer: &Peer,
        regions: &Regions,
        ids: &[BlockId],
        arrived: &str,
    ) -> Result<Vec<u8>, Failure> {
        let spans = ids
            .iter()
            .map(|id| regions.spans(*id).map(Iterator::collect));
        let spans: Option<Vec<Vec<Span>>> = spans.collect();
        let spans = spans.ok_or(Failure::NoSuchBlock)?.concat();
        if spans.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = ids.len() * regions.block_bytes();
        let into = self.landing.take(bytes.div_ceil(self.landing.slot_bytes()));
        let into = into.ok_or(Failure::NoRoom)?;
        let read = self
            .agent
            .read(peer, &spans, into, Some(arrived.as_bytes()), NO_DEADLINE);
        let read = read.await.map_err(|ReadFailed { error, .. }| error)?;
        let mut rows = read.to_vec();
        rows.truncate(bytes);
        Ok(rows)
    }
}

/// An agent of this name, memory for so many blocks that it has registered, and where they are.
pub(super) async fn memory(
    fabric: &Fabric,
    agent: AgentConfig,
    blocks: u32,
    block_bytes: usize,
) -> Result<(Agent, Memory, Regions), TransferError> {
    let agent = Agent::start(fabric, agent).await?;
    let block_len_bytes = block_bytes / LAYERS;
    let layer_bytes = block_len_bytes * blocks as usize;
    let regions = agent.register(layer_bytes, LAYERS).await?;
    let slots = regions
        .take(LAYERS)
        .ok_or(TransferError::NoRoom(layer_bytes))?;
    let regions = Regions {
        metadata: agent.metadata().await?,
        bases: (0..LAYERS).map(|layer| slots.span(layer).address).collect(),
        block_len_bytes: block_len_bytes as u64,
        blocks: u64::from(blocks),
    };
    Ok((agent, Memory::Registered(slots), regions))
}

/// The name of an agent, new every time.
pub(super) fn uuid() -> String {
    let hex = format!("{:032x}", rand::random::<u128>());
    let cuts = [0, 8, 12, 16, 20, 32];
    let parts: Vec<&str> = cuts.windows(2).map(|cut| &hex[cut[0]..cut[1]]).collect();
    parts.join("-")
}

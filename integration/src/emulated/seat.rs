//! What a rank has whose handoffs are made between the engines themselves: memory that others read, and where its legs meet them.

use std::net::SocketAddr;
use std::sync::Arc;

use baton_transfer::{Agent, AgentConfig, Fabric};

use super::core::{Core, CoreConfig, Listener, Mortal};
use super::process::Death;
use super::reach::{self, Reader, Regions};
use super::rooms::Rooms;
use super::tokenizer::Tokenizer;
use super::transfer::Transfer;

/// What a rank has for handoffs.
pub(super) struct Seat {
    pub(super) rooms: Arc<Rooms>,
    pub(super) transfer: Transfer,
    pub(super) regions: Regions,
    /// Where decode calls.
    pub(super) address: SocketAddr,
}

impl Seat {
    /// A rank in memory of its own, which does not work yet.
    pub(super) async fn take(
        fabric: &Fabric,
        config: CoreConfig,
        tokenizer: Arc<Tokenizer>,
        listener: Arc<dyn Listener>,
        death: &Arc<Death>,
    ) -> (Arc<Core>, Agent, Self) {
        let (blocks, block_bytes) = (config.blocks, config.block_bytes());
        let agent = AgentConfig {
            bandwidth: config.kv_bandwidth,
            ..AgentConfig::new(reach::uuid())
        };
        let (agent, memory, regions) = reach::memory(fabric, agent, blocks, block_bytes)
            .await
            .expect("an agent and memory");
        let reader = Reader::new(&agent, block_bytes, blocks).await;
        let transfer = Transfer::new(reader, config.block_size);
        let core = Core::within(
            memory,
            config,
            tokenizer,
            Arc::new(transfer.clone()),
            listener,
            Arc::clone(death) as Arc<dyn Mortal>,
        );
        let (rooms, address) = Rooms::open(&agent, &core, death).await;
        let seat = Self {
            rooms,
            transfer,
            regions,
            address,
        };
        (core, agent, seat)
    }
}

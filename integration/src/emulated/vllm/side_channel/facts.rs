//! What an engine says of its KV cache in a handshake, and in which bytes.

use std::collections::BTreeMap;

use baton_transfer::Metadata;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::HandshakeError;
use crate::emulated::reach::Regions;
use crate::emulated::vllm::Config;

/// What a decode engine learns of a prefill engine. All layers have blocks of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeFacts {
    /// Digest of what two engines must share; equal ones are not enough.
    pub compatibility_hash: String,
    /// Its `engine_id`.
    pub engine_id: String,
    /// What its agent tells of itself, NIXL's or an emulated engine's own. Its name is new for every life of the engine.
    pub metadata: Metadata,
    /// Tokens per block.
    pub block_size: u32,
    /// Bytes of one block of one layer.
    pub block_len_bytes: u64,
    /// Blocks per layer.
    pub num_blocks: u64,
    /// Address of each layer's KV, new for every life of the engine.
    pub base_addresses: Vec<u64>,
    /// Order of the dimensions.
    pub layout: String,
    /// Name of the attention backend.
    pub attention_backend: String,
}

#[derive(Serialize, Deserialize)]
struct Payload {
    compatibility_hash: String,
    agent_metadata_bytes: ByteBuf,
}

#[expect(clippy::struct_field_names, reason = "the wire's own names")]
#[derive(Serialize, Deserialize)]
struct AgentMetadata {
    engine_id: String,
    agent_metadata: ByteBuf,
    kv_caches_base_addr: Vec<u64>,
    device_id: u32,
    num_blocks: u64,
    block_lens: Vec<u64>,
    block_strides: Vec<u64>,
    kv_cache_layout: String,
    block_size: u32,
    ssm_sizes: [u64; 2],
    attn_backend_name: String,
    physical_blocks_per_logical_kv_block: u32,
    region_num_blocks: Vec<u64>,
    region_group_ids: Vec<u32>,
    region_names: Vec<String>,
    region_mem_types: Vec<String>,
    dcp_size: u32,
    pcp_size: u32,
    ple_block_len: Option<u64>,
    region_members: Vec<u8>,
    packed_member_layouts: BTreeMap<String, u8>,
}

impl HandshakeFacts {
    /// Those of an engine.
    pub(in crate::emulated::vllm) fn of(
        config: &Config,
        engine_id: &str,
        regions: Regions,
    ) -> Self {
        Self {
            compatibility_hash: config.compatibility_hash.clone(),
            engine_id: engine_id.to_owned(),
            metadata: regions.metadata,
            block_size: config.block_size,
            block_len_bytes: regions.block_len_bytes,
            num_blocks: regions.blocks,
            base_addresses: regions.bases,
            layout: config.layout.clone(),
            attention_backend: "CPU_ATTN".to_owned(),
        }
    }

    /// First frame of a reply.
    pub fn encode(&self) -> Vec<u8> {
        let metadata = rmp_serde::to_vec_named(&self.metadata()).expect("metadata are writable");
        let payload = Payload {
            compatibility_hash: self.compatibility_hash.clone(),
            agent_metadata_bytes: metadata.into(),
        };
        rmp_serde::to_vec_named(&payload).expect("a payload is writable")
    }

    /// Reads the first frame of a reply, a real engine's too.
    pub fn parse(frame: &[u8]) -> Result<Self, HandshakeError> {
        let strange = |error: rmp_serde::decode::Error| HandshakeError::Nonsense(error.to_string());
        let payload: Payload = rmp_serde::from_slice(frame).map_err(strange)?;
        let metadata: AgentMetadata =
            rmp_serde::from_slice(&payload.agent_metadata_bytes).map_err(strange)?;
        let missing = |what: &str| HandshakeError::Nonsense(format!("it has no {what}"));
        let block_len_bytes = *metadata
            .block_lens
            .first()
            .ok_or_else(|| missing("layers"))?;
        let agent = Metadata::parse(&metadata.agent_metadata)
            .map_err(|error| HandshakeError::Nonsense(error.to_string()))?;
        Ok(Self {
            compatibility_hash: payload.compatibility_hash,
            metadata: agent,
            block_size: metadata.block_size,
            block_len_bytes,
            num_blocks: metadata.num_blocks,
            base_addresses: metadata.kv_caches_base_addr,
            engine_id: metadata.engine_id,
            layout: metadata.kv_cache_layout,
            attention_backend: metadata.attn_backend_name,
        })
    }

    fn metadata(&self) -> AgentMetadata {
        let layers = self.base_addresses.len();
        let name = |layer| format!("model.layers.{layer}.self_attn.attn");
        AgentMetadata {
            engine_id: self.engine_id.clone(),
            agent_metadata: self.metadata.bytes().to_vec().into(),
            kv_caches_base_addr: self.base_addresses.clone(),
            device_id: 0,
            num_blocks: self.num_blocks,
            block_lens: vec![self.block_len_bytes; layers],
            block_strides: vec![self.block_len_bytes; layers],
            kv_cache_layout: self.layout.clone(),
            block_size: self.block_size,
            ssm_sizes: [0; 2],
            attn_backend_name: self.attention_backend.clone(),
            physical_blocks_per_logical_kv_block: 1,
            region_num_blocks: vec![self.num_blocks; layers],
            region_group_ids: vec![0; layers],
            region_names: (0..layers).map(name).collect(),
            region_mem_types: vec!["DRAM".to_owned(); layers],
            dcp_size: 1,
            pcp_size: 1,
            ple_block_len: None,
            region_members: Vec::new(),
            packed_member_layouts: BTreeMap::new(),
        }
    }

    /// Where its blocks are.
    pub fn regions(&self) -> Regions {
        Regions {
            metadata: self.metadata.clone(),
            bases: self.base_addresses.clone(),
            block_len_bytes: self.block_len_bytes,
            blocks: self.num_blocks,
        }
    }
}

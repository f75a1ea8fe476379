//! What an engine says of its KV cache in a handshake, and in which bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::HandshakeError;

/// Where a NIXL blob begins: with its agent's name.
const AGENT: &[u8] = b"nixlSerDes|Agent";

/// What follows the name: no connections.
const NO_CONNECTIONS: &[u8] = b"|Conns\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Before the port of an emulated engine's KV, which is a u16, little-endian.
const KV_PLANE: &[u8] = b"|EmulatedKv";

/// What a decode engine learns of a prefill engine. All layers have blocks of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeFacts {
    /// Digest of what two engines must share; equal ones are not enough.
    pub compatibility_hash: String,
    /// Its `engine_id`.
    pub engine_id: String,
    /// Name of its NIXL agent, new for every life of the engine.
    pub agent: String,
    /// Where an emulated engine gives its KV away; `None` for a real one.
    pub kv_plane_port: Option<u16>,
    /// Tokens per block.
    pub block_size: u32,
    /// Bytes of one block of one layer.
    pub block_len_bytes: u64,
    /// Blocks per layer.
    pub num_blocks: u64,
    /// How many.
    pub layers: usize,
    /// Address of the first layer's KV, new for every life of the engine. The others follow it.
    pub base_address: u64,
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
        let (agent, rest) =
            agent_name(&metadata.agent_metadata).ok_or_else(|| missing("agent name"))?;
        let regions = metadata
            .block_lens
            .first()
            .zip(metadata.kv_caches_base_addr.first());
        let (block_len_bytes, base_address) = regions.ok_or_else(|| missing("layers"))?;
        Ok(Self {
            compatibility_hash: payload.compatibility_hash,
            agent: agent.to_owned(),
            kv_plane_port: kv_plane_port(rest),
            block_size: metadata.block_size,
            block_len_bytes: *block_len_bytes,
            num_blocks: metadata.num_blocks,
            layers: metadata.block_lens.len(),
            base_address: *base_address,
            engine_id: metadata.engine_id,
            layout: metadata.kv_cache_layout,
            attention_backend: metadata.attn_backend_name,
        })
    }

    fn metadata(&self) -> AgentMetadata {
        let layers = self.layers;
        let layer_bytes = self.num_blocks * self.block_len_bytes;
        let bases = (0..layers as u64).map(|layer| self.base_address + layer * layer_bytes);
        let name = |layer| format!("model.layers.{layer}.self_attn.attn");
        AgentMetadata {
            engine_id: self.engine_id.clone(),
            agent_metadata: self.blob().into(),
            kv_caches_base_addr: bases.collect(),
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

    /// What stands where NIXL's own description would.
    pub(super) fn blob(&self) -> Vec<u8> {
        let mut blob = AGENT.to_vec();
        blob.extend((self.agent.len() as u64).to_le_bytes());
        blob.extend(self.agent.as_bytes());
        blob.extend(NO_CONNECTIONS);
        if let Some(port) = self.kv_plane_port {
            blob.extend(KV_PLANE);
            blob.extend(port.to_le_bytes());
        }
        blob
    }
}

/// The name, which its length as a u64, little-endian, precedes, and what follows it.
fn agent_name(blob: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = blob.strip_prefix(AGENT)?.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (name, rest) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

fn kv_plane_port(rest: &[u8]) -> Option<u16> {
    let at = rest
        .windows(KV_PLANE.len())
        .position(|window| window == KV_PLANE)?;
    let port = rest[at + KV_PLANE.len()..].first_chunk()?;
    Some(u16::from_le_bytes(*port))
}

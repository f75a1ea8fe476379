//! vLLM's NIXL handshake: what an engine says over its side channel about its KV cache.
//!
//! Read for three things: the life of the engine (its NIXL agent's name), whether a pair can hand over (equal
//! compatibility hashes are not enough: block size, block lengths and layout must agree too), and how big a block is.

use std::collections::BTreeMap;

use baton_proto::Incarnation;
use baton_proto::compat::Compatibility;
use baton_transfer::Metadata;
use serde::Deserialize;
use serde_bytes::ByteBuf;

/// A tensor-parallel rank of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TpRank(u8);

impl TpRank {
    /// The one that every engine has.
    pub const FIRST: Self = Self(0);

    /// All ranks of an engine that says that it has so many; nothing for a number that cannot be.
    pub fn all(tp_size: u32) -> Option<impl Iterator<Item = Self>> {
        let most = u8::try_from(tp_size)
            .ok()
            .filter(|size| (1..=128).contains(size))?;
        Some((0..most).map(Self))
    }

    /// The one request that may be sent: msgpack `[bin "get_meta_msg", pp_rank 0, tp_rank]`. A rank that the engine does
    /// not have, or another framing, ends its listener for good (0.32.0).
    pub fn request(self) -> [u8; 17] {
        let mut request = *b"\x93\xc4\x0cget_meta_msg\x00\x00";
        request[16] = self.0;
        request
    }
}

/// Most regions (layers) and blocks that are believed.
const MOST_REGIONS: usize = 100_000;

/// What an engine says in its handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// Which life of the engine: the name of its NIXL agent, new for every process.
    pub incarnation: Incarnation,
    /// Its `engine_id`.
    pub engine_id: String,
    /// Shape of its KV cache.
    pub geometry: Geometry,
    /// What its NIXL agent tells others of itself.
    pub agent: Metadata,
    compatibility_hash: String,
    layout: String,
    attention: String,
    facts: BTreeMap<String, String>,
}

/// Shape of an engine's KV cache on one tensor-parallel rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks per region.
    pub num_blocks: u64,
    block_lens: Vec<u64>,
    groups: Vec<usize>,
}

#[derive(Deserialize)]
struct Payload {
    compatibility_hash: String,
    agent_metadata_bytes: ByteBuf,
}

#[derive(Deserialize)]
struct AgentMetadata {
    engine_id: String,
    #[serde(rename = "agent_metadata")]
    nixl_blob: ByteBuf,
    num_blocks: u64,
    block_lens: Vec<u64>,
    kv_cache_layout: String,
    block_size: u32,
    #[serde(default)]
    attn_backend_name: Option<String>,
    #[serde(default)]
    physical_blocks_per_logical_kv_block: Option<u32>,
    #[serde(default)]
    region_group_ids: Option<Vec<usize>>,
    #[serde(default)]
    region_names: Option<Vec<String>>,
    #[serde(default)]
    region_mem_types: Option<Vec<String>>,
    #[serde(default)]
    dcp_size: Option<u32>,
    #[serde(default)]
    pcp_size: Option<u32>,
}

impl Handshake {
    /// Reads the first frame of a reply. Unknown fields are ignored.
    pub fn parse(frame: &[u8]) -> Result<Self, String> {
        let payload: Payload = rmp_serde::from_slice(frame)
            .map_err(|error| format!("the handshake is strange: {error}"))?;
        let metadata: AgentMetadata = rmp_serde::from_slice(&payload.agent_metadata_bytes)
            .map_err(|error| format!("the handshake's agent metadata are strange: {error}"))?;
        let agent = Metadata::parse(&metadata.nixl_blob)
            .map_err(|bad| format!("the handshake's NIXL blob is strange: {bad}"))?;
        let incarnation = agent
            .agent_name()
            .parse()
            .map_err(|bad| format!("the handshake's NIXL agent has a strange name: {bad}"))?;
        let regions = metadata.block_lens.len();
        if metadata.block_size == 0 || regions == 0 || regions > MOST_REGIONS {
            return Err(format!(
                "the handshake's geometry is absurd: {regions} regions, block size {}",
                metadata.block_size
            ));
        }
        let facts = metadata.facts();
        let groups = metadata
            .region_group_ids
            .filter(|groups| groups.len() == regions);
        Ok(Self {
            incarnation,
            agent,
            engine_id: metadata.engine_id,
            geometry: Geometry {
                block_size: metadata.block_size,
                num_blocks: metadata.num_blocks,
                groups: groups.unwrap_or_else(|| vec![0; regions]),
                block_lens: metadata.block_lens,
            },
            compatibility_hash: payload.compatibility_hash,
            layout: metadata.kv_cache_layout,
            attention: metadata.attn_backend_name.unwrap_or_default(),
            facts,
        })
    }

    /// What another engine must share, given a digest of how this one tokenises.
    pub fn compatibility(&self, tokenisation: Option<String>) -> Compatibility {
        let mut facts = self.facts.clone();
        facts.insert(
            "compatibility_hash".to_owned(),
            self.compatibility_hash.clone(),
        );
        facts.insert("kv_cache_layout".to_owned(), self.layout.clone());
        facts.insert("attention_backend".to_owned(), self.attention.clone());
        if let Some(digest) = tokenisation {
            facts.insert("tokenisation".to_owned(), digest);
        }
        Compatibility {
            handoff: "vllm-nixl-pull".to_owned(),
            facts,
            block_size: self.geometry.block_size,
        }
    }
}

impl AgentMetadata {
    fn facts(&self) -> BTreeMap<String, String> {
        let number =
            |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
        let per_token: Vec<String> = self
            .block_lens
            .iter()
            .map(|length| format!("{:.3}", ratio(*length, self.block_size)))
            .collect();
        let facts = [
            ("kv_bytes_per_token", short_digest(&per_token)),
            (
                "regions",
                short_digest(self.region_names.as_deref().unwrap_or_default()),
            ),
            (
                "memory",
                short_digest(self.region_mem_types.as_deref().unwrap_or_default()),
            ),
            ("dcp_size", number(self.dcp_size)),
            ("pcp_size", number(self.pcp_size)),
            (
                "physical_blocks_per_logical",
                number(self.physical_blocks_per_logical_kv_block),
            ),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "compared as text with three decimals"
)]
fn ratio(length: u64, block_size: u32) -> f64 {
    length as f64 / f64::from(block_size)
}

/// How many, which, in a form that fits a sentence.
fn short_digest(parts: &[String]) -> String {
    let mut distinct: Vec<&str> = parts.iter().map(String::as_str).collect();
    distinct.dedup();
    match distinct[..] {
        [] => "none".to_owned(),
        [one] => format!("{} x {one}", parts.len()),
        _ => format!(
            "{} ({})",
            parts.len(),
            &blake3::hash(parts.join("\0").as_bytes()).to_hex()[..16]
        ),
    }
}

impl Geometry {
    /// Bytes of one block over all regions of a KV cache group.
    pub fn block_bytes(&self, group: usize) -> u64 {
        let of_group = self
            .groups
            .iter()
            .zip(&self.block_lens)
            .filter(|(of, _)| **of == group);
        of_group.fold(0u64, |sum, (_, length)| sum.saturating_add(*length))
    }

    /// KV bytes per token over all regions.
    pub fn bytes_per_token(&self) -> u64 {
        let block: u64 = self
            .block_lens
            .iter()
            .fold(0u64, |sum, length| sum.saturating_add(*length));
        block / u64::from(self.block_size)
    }
}

//! Laws of a handshake.

use serde_json::Value;

use super::super::wire;
use super::Broken;

/// Described once a region.
const BY_REGION: [&str; 7] = [
    "kv_caches_base_addr",
    "block_lens",
    "block_strides",
    "region_num_blocks",
    "region_group_ids",
    "region_names",
    "region_mem_types",
];

/// How NIXL's description of an agent begins; its name follows, after a length of eight bytes.
const AGENT: &[u8] = b"nixlSerDes|Agent";

/// Everything that is wrong with a handshake.
pub fn broken(payload: &Value) -> Vec<Broken> {
    let metadata = &payload["metadata"];
    let mut broken = Vec::new();
    let lengths: Vec<usize> = BY_REGION
        .iter()
        .map(|key| metadata[key].as_array().map_or(0, Vec::len))
        .collect();
    if lengths[0] == 0 || lengths.iter().any(|length| *length != lengths[0]) {
        broken.push(("every region is described", format!("{lengths:?}")));
    }
    let blob = metadata["agent_metadata"].as_str().unwrap_or_default();
    let blob = blob
        .strip_prefix("hex:")
        .and_then(wire::unhex)
        .unwrap_or_default();
    if agent_name(&blob).is_none() {
        let what = format!("{} bytes", blob.len());
        broken.push(("the agent's description begins with its name", what));
    }
    broken
}

/// The NIXL agent's name: a UUID, new in each worker process.
fn agent_name(blob: &[u8]) -> Option<&str> {
    let rest = blob.strip_prefix(AGENT)?;
    let (length, rest) = rest.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let name = std::str::from_utf8(rest.get(..length)?).ok()?;
    let uuid = name.len() == 36 && name.bytes().filter(|byte| *byte == b'-').count() == 4;
    uuid.then_some(name)
}

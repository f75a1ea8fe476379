//! What a vLLM engine is, put together from its handshake, its models and its metrics.

use baton_proto::worker::{EngineKind, Role, Tier, TierBlocks, WorkerInfo};

use crate::handshake::{Geometry, Handshake};
use crate::http::Model;
use crate::metrics_page::MetricsPage;

/// What the engine is, without what another one must share to exchange KV with it.
pub(crate) fn info(
    version: String,
    models: &[Model],
    role: Role,
    handshake: Option<&Handshake>,
    page: &MetricsPage<'_>,
) -> WorkerInfo {
    let geometry = handshake.map(|handshake| &handshake.geometry);
    let label = |name| {
        page.label("vllm:cache_config_info", name)
            .and_then(|text| text.parse::<u64>().ok())
    };
    let blocks = label("num_gpu_blocks").or(geometry.map(|geometry| geometry.num_blocks));
    let (adapters, base): (Vec<_>, Vec<_>) =
        models.iter().partition(|model| model.parent.is_some());
    WorkerInfo {
        engine_version: version,
        models: base.iter().map(|model| model.id.clone()).collect(),
        lora_adapters: adapters.iter().map(|model| model.id.clone()).collect(),
        block_size: geometry
            .map(|geometry| geometry.block_size)
            .or(label("block_size").and_then(|size| u32::try_from(size).ok())),
        capacity: blocks
            .map(|blocks| TierBlocks {
                tier: Tier::Device,
                blocks,
            })
            .into_iter()
            .collect(),
        kv_bytes_per_token: geometry.map(Geometry::bytes_per_token),
        context_length: base.iter().find_map(|model| model.max_model_len),
        ..WorkerInfo::unknown(EngineKind::Vllm, role)
    }
}

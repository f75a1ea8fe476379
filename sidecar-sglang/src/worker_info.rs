//! What an SGLang engine is, in terms that every engine shares.

use baton_proto::worker::{EngineKind, Role, Tier, TierBlocks, WorkerInfo};

use crate::http::Model;
use crate::server_info::ServerInfo;

/// What the engine is, without what another one must share to exchange KV with it.
pub(crate) fn info(server: &ServerInfo, models: &[Model], role: Role) -> WorkerInfo {
    let (adapters, base): (Vec<_>, Vec<_>) =
        models.iter().partition(|model| model.parent.is_some());
    let block_size = server.block_size();
    let blocks = server
        .max_total_num_tokens
        .map(|tokens| tokens / u64::from(block_size.max(1)));
    let chunk = server
        .chunked_prefill_size
        .and_then(|size| u32::try_from(size).ok());
    WorkerInfo {
        // An engine that was set apart for a leg refuses requests without a room (0.5.23).
        legs_only: role != Role::Local,
        engine_version: server.version.clone(),
        models: base.iter().map(|model| model.id.clone()).collect(),
        lora_adapters: adapters.iter().map(|model| model.id.clone()).collect(),
        ranks: server.dp_size.unwrap_or(1).max(1),
        block_size: Some(block_size),
        capacity: blocks
            .map(|blocks| TierBlocks {
                tier: Tier::Device,
                blocks,
            })
            .into_iter()
            .collect(),
        max_sequences: server.max_running_requests,
        max_batched_tokens: chunk.or(server.max_prefill_tokens),
        context_length: base
            .iter()
            .find_map(|model| model.max_model_len)
            .or(server.context_length),
        ..WorkerInfo::unknown(EngineKind::Sglang, role)
    }
}

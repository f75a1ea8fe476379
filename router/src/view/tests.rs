//! What the tests of views have in common.

use baton_proto::worker::{EngineKind, Role, WorkerInfo};

/// A worker that serves `tiny` and an adapter `ada`, on one rank, in blocks of this many tokens.
pub(crate) fn info(block_size: u32) -> WorkerInfo {
    WorkerInfo {
        models: vec!["tiny".to_owned()],
        lora_adapters: vec!["ada".to_owned()],
        block_size: Some(block_size),
        ..WorkerInfo::unknown(EngineKind::Vllm, Role::Any)
    }
}

//! What the tests of views have in common.

use baton_proto::worker::{EngineKind, Role, WorkerInfo};

/// A worker that serves `tiny` and an adapter `ada`, on one rank, in blocks of this many tokens.
pub(crate) fn info(block_size: u32) -> WorkerInfo {
    WorkerInfo {
        engine: EngineKind::Vllm,
        engine_version: String::new(),
        role: Role::Any,
        models: vec!["tiny".to_owned()],
        model_digest: None,
        lora_adapters: vec!["ada".to_owned()],
        ranks: 1,
        block_size: Some(block_size),
        capacity: Vec::new(),
        kv_bytes_per_token: None,
        max_sequences: None,
        max_batched_tokens: None,
        context_length: None,
        tokenizer_digest: None,
        chat_template_digest: None,
        topology: std::collections::BTreeMap::new(),
        compatibility: None,
    }
}

//! Flags of `baton-sidecar-trtllm`.

use std::path::PathBuf;

use baton_daemon::config::Common;
use baton_daemon::run::Arguments;
use baton_proto::worker::Role;
use baton_sidecar_core::args::CoreArgs;

/// The sidecar for one TensorRT-LLM engine (trtllm-serve).
///
/// Either it stands beside an engine that runs already: give --engine, and what of the engine's options it does not tell itself.
/// Or it launches the engine: put its own command after `--`; the sidecar reads its options, has it tell of its KV cache and its
/// load if they say nothing of that, and ends with it. Nobody else may poll the engine's /kv_cache_events and /metrics.
///
///   baton-sidecar-trtllm --worker-id p0 --role prefill --router http://router:8000 -- \
///     trtllm-serve MODEL --port 8001 --extra_llm_api_options prefill.yaml
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "baton-sidecar-trtllm", version, verbatim_doc_comment)]
pub struct TrtllmArgs {
    /// Base URL of a running engine, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", env = "BATON_ENGINE")]
    pub engine: Option<String>,
    /// Which legs of split requests it serves: prefill, decode, any; or local, if it hands no KV over. The engine does not tell.
    #[arg(long, value_name = "ROLE", env = "BATON_ROLE", default_value = "local", value_parser = role)]
    pub role: Role,
    /// The engine's cache_transceiver_config.kv_transfer_timeout_ms: how long it holds KV that nobody fetches. Read from the
    /// options of an engine that is launched.
    #[arg(long, value_name = "MS", env = "BATON_KV_TRANSFER_TIMEOUT_MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub kv_transfer_timeout_ms: Option<u64>,
    /// Take an engine whose kv_transfer_timeout_ms is not set, although it may hold KV that nobody fetches for ever.
    #[arg(long, env = "BATON_ALLOW_UNBOUNDED_TRANSFER")]
    pub allow_unbounded_transfer: bool,
    /// The engine's kv_cache_config.tokens_per_block, where it does not tell (1.2). Read from the options of an engine that is
    /// launched.
    #[arg(long, value_name = "TOKENS", env = "BATON_TOKENS_PER_BLOCK", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens_per_block: Option<u32>,
    /// The engine's kv_cache_config.event_buffer_max_size: tells events that it dropped from events that somebody else took.
    /// Read from the options of an engine that is launched.
    #[arg(long, value_name = "EVENTS", env = "BATON_EVENT_BUFFER_MAX_SIZE")]
    pub event_buffer_max_size: Option<u64>,
    /// Ranks of attention data parallelism. Read from the options of an engine that is launched.
    #[arg(long, value_name = "N", env = "BATON_ATTENTION_DP_RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    pub attention_dp_ranks: Option<u32>,
    /// Have decode begin while prefill computes, on both sides of a handoff. It needs the engine's Python transceiver, and was
    /// never tried.
    #[arg(long, env = "BATON_GENERATION_FIRST")]
    pub generation_first: bool,
    /// The engine's internal_request_auth_key, if it has one. Better given by the environment or a file.
    #[arg(
        long,
        value_name = "KEY",
        env = "BATON_INTERNAL_REQUEST_AUTH_KEY",
        hide_env_values = true
    )]
    pub internal_request_auth_key: Option<String>,
    /// File with that key.
    #[arg(
        long,
        value_name = "FILE",
        env = "BATON_INTERNAL_REQUEST_AUTH_KEY_FILE",
        conflicts_with = "internal_request_auth_key"
    )]
    pub internal_request_auth_key_file: Option<PathBuf>,
    /// Count blocks as plain although their names do not follow from their tokens. For an engine that names blocks in a way that
    /// is not known here, and that has neither LoRA adapters nor cache salts.
    #[arg(long, env = "BATON_TRUST_BLOCK_NAMES")]
    pub trust_block_names: bool,
    /// Directory with the engine's tokenizer.json. The model of an engine that is launched, if not given.
    #[arg(long, value_name = "DIR", env = "BATON_MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// What all sidecars have.
    #[command(flatten)]
    pub core: CoreArgs,
    /// The engine's command, to launch it.
    #[arg(last = true, value_name = "ENGINE COMMAND")]
    pub command: Vec<String>,
}

impl Arguments for TrtllmArgs {
    fn common(&self) -> &Common {
        &self.core.common
    }
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        "any" => Ok(Role::Any),
        "local" => Ok(Role::Local),
        _ => Err("a role is one of prefill, decode, any, local".to_owned()),
    }
}

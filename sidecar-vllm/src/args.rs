//! Flags of `baton-sidecar-vllm`.

use std::path::PathBuf;

use baton_daemon::config::Common;
use baton_daemon::run::Arguments;
use baton_sidecar_core::args::CoreArgs;

/// The sidecar for one vLLM engine.
///
/// Either it stands beside an engine that runs already: give --engine, and --kv-transfer-config as it was given to the
/// engine. Or it launches the engine: put vLLM's own command after `--`; the sidecar reads its flags, gives it a fresh
/// engine_id, and ends with it.
///
///   baton-sidecar-vllm --worker-id p0 --router http://router:8000 -- vllm serve MODEL --kv-transfer-config '{...}'
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "baton-sidecar-vllm", version, verbatim_doc_comment)]
pub struct VllmArgs {
    /// Base URL of a running engine, such as http://127.0.0.1:8001.
    #[arg(long, value_name = "URL", env = "BATON_ENGINE")]
    pub engine: Option<String>,
    /// The engine's own --kv-transfer-config, given again because a running engine does not tell it.
    #[arg(long, value_name = "JSON", env = "BATON_KV_TRANSFER_CONFIG")]
    pub kv_transfer_config: Option<String>,
    /// The engine's NIXL side channel; from VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT if not given.
    #[arg(long, value_name = "HOST:PORT", env = "BATON_SIDE_CHANNEL")]
    pub side_channel: Option<String>,
    /// The engine's libnixl_capi.so, or the folder that has it, to give KV back that nobody fetches. Found by itself where the
    /// engine runs on this host or is launched from its Python environment.
    #[arg(long, value_name = "PATH", env = "BATON_NIXL_LIB")]
    pub nixl_lib: Option<PathBuf>,
    /// Network devices for NIXL, as the engine's UCX_NET_DEVICES; that variable or `lo` if not given.
    #[arg(long, value_name = "DEVICES", env = "BATON_NIXL_DEVICES")]
    pub nixl_devices: Option<String>,
    /// The engine's own --kv-events-config, given again for an engine that does not tell it (before 0.32), or that connects
    /// to its subscribers.
    #[arg(long, value_name = "JSON", env = "BATON_KV_EVENTS_CONFIG")]
    pub kv_events_config: Option<String>,
    /// Directory with the engine's tokenizer.json. Found by itself if the engine's model is a directory here, or a name
    /// that is in the Hugging Face cache here.
    #[arg(long, value_name = "DIR", env = "BATON_MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// The engine's own --chat-template, given again because a running engine does not tell it.
    #[arg(long, value_name = "FILE", env = "BATON_CHAT_TEMPLATE")]
    pub chat_template: Option<String>,
    /// The engine's own --max-num-seqs, given again because a running engine does not tell it. Routers give it no more
    /// sequences than that, and let further requests wait until they know who is free first.
    #[arg(
        long,
        value_name = "N",
        env = "BATON_MAX_NUM_SEQS",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub max_num_seqs: Option<u32>,
    /// The engine's --api-key, if it has one.
    #[arg(
        long,
        value_name = "KEY",
        env = "BATON_ENGINE_API_KEY",
        hide_env_values = true
    )]
    pub engine_api_key: Option<String>,
    /// What all sidecars have.
    #[command(flatten)]
    pub core: CoreArgs,
    /// vLLM's command, to launch it.
    #[arg(last = true, value_name = "ENGINE COMMAND")]
    pub command: Vec<String>,
}

impl Arguments for VllmArgs {
    fn common(&self) -> &Common {
        &self.core.common
    }
}

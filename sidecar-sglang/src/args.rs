//! Flags of `baton-sidecar-sglang`.

use std::path::PathBuf;

use baton_daemon::config::Common;
use baton_daemon::run::Arguments;
use baton_sidecar_core::args::CoreArgs;

/// The sidecar for one SGLang engine.
///
/// Either it stands beside an engine that runs already: give --engine; everything else the engine tells itself. Or it
/// launches the engine: put SGLang's own command after `--`; the sidecar has it publish its KV events and its load if its
/// flags say nothing of them, and ends with it.
///
///   baton-sidecar-sglang --worker-id p0 --router http://router:8000 -- python -m sglang.launch_server --model-path MODEL \
///     --disaggregation-mode prefill --disaggregation-transfer-backend nixl
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "baton-sidecar-sglang", version, verbatim_doc_comment)]
pub struct SglangArgs {
    /// Base URL of a running engine, such as http://127.0.0.1:30000.
    #[arg(long, value_name = "URL", env = "BATON_ENGINE")]
    pub engine: Option<String>,
    /// The engine's --api-key, if it has one.
    #[arg(
        long,
        value_name = "KEY",
        env = "BATON_ENGINE_API_KEY",
        hide_env_values = true
    )]
    pub engine_api_key: Option<String>,
    /// Where decode engines on other hosts reach this engine, if it prefills: a host of this engine alone, and no name that
    /// another engine may stand behind tomorrow. The host that routers are told, if not given.
    #[arg(long, value_name = "HOST", env = "BATON_BOOTSTRAP_HOST")]
    pub bootstrap_host: Option<String>,
    /// Directory with the engine's tokenizer.json. Found by itself if the engine's model is a directory here, or a name
    /// that is in the Hugging Face cache here.
    #[arg(long, value_name = "DIR", env = "BATON_MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// What all sidecars have.
    #[command(flatten)]
    pub core: CoreArgs,
    /// SGLang's command, to launch it.
    #[arg(last = true, value_name = "ENGINE COMMAND")]
    pub command: Vec<String>,
}

impl Arguments for SglangArgs {
    fn common(&self) -> &Common {
        &self.core.common
    }
}

//! vLLM on the CPU: the command line of one engine, and its environment.
//!
//! What each setting is for is written beside it; facts about 0.32.0 are from the project's wire notes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Engine, MODEL, Role, words};
use crate::namespace::SCRATCH;

/// Flags of every engine. Without a tool parser a named `tool_choice` is refused.
const SWITCHES: [&str; 4] = [
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
];

/// Words of the command that starts an engine with a model, to which flags are added.
pub(super) fn bare_command<'a>(python: &'a str, model: &'a str) -> Vec<&'a str> {
    vec![
        python,
        // `vllm serve` asks for the metadata of a distribution that the CPU wheel does not have.
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        // Greedy text must not depend on batching; on a CPU this is also faster than half precision.
        "--dtype",
        "float32",
        "--enforce-eager",
        "--disable-uvicorn-access-log",
    ]
}

/// Flags of an engine that a sidecar launches: it adds an engine id.
pub(super) fn launched(engine: &Engine) -> Vec<String> {
    flags(engine, kv_transfer_config(engine, None).as_deref())
}

/// Flags of an engine that is started by hand, and those of a sidecar beside it. Its engine id must be one that no earlier
/// boot had, since decode engines remember the NIXL agent of an engine id.
pub(super) fn by_hand(engine: &Engine) -> Result<(Vec<String>, Vec<String>)> {
    let config = kv_transfer_config(engine, Some(&fresh_engine_id(engine.name)?));
    let mut beside = words([(
        "--side-channel",
        format!("127.0.0.1:{}", engine.meeting_port),
    )]);
    if let Some(config) = &config {
        beside.extend(["--kv-transfer-config".to_owned(), config.clone()]);
    }
    Ok((flags(engine, config.as_deref()), beside))
}

fn kv_transfer_config(engine: &Engine, engine_id: Option<&str>) -> Option<String> {
    let kv_role = match engine.role {
        Role::Aggregated => return None,
        Role::Prefill => "kv_producer",
        Role::Decode => "kv_consumer",
    };
    let mut config = json!({
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": 30},
    });
    if let Some(engine_id) = engine_id {
        config["engine_id"] = engine_id.into();
    }
    Some(config.to_string())
}

fn fresh_engine_id(name: &str) -> Result<String> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")
        .context("the kernel gave no random UUID")?;
    Ok(format!("{name}-{}", random.trim()))
}

fn flags(engine: &Engine, kv_transfer_config: Option<&str>) -> Vec<String> {
    let mut flags = words([
        ("--served-model-name", MODEL.to_owned()),
        ("--host", "127.0.0.1".to_owned()),
        ("--port", engine.port.to_string()),
        ("--max-model-len", "2048".to_owned()),
        // The CPU backend takes multiples of 32 only.
        ("--block-size", "32".to_owned()),
        ("--num-gpu-blocks-override", "2048".to_owned()),
        ("--max-num-seqs", "16".to_owned()),
        ("--max-num-batched-tokens", "2048".to_owned()),
    ]);
    flags.extend(SWITCHES.map(str::to_owned));
    if let Some(config) = kv_transfer_config {
        flags.extend(["--kv-transfer-config".to_owned(), config.to_owned()]);
    }
    flags
}

/// Environment of an engine, or of a sidecar that launches it.
pub(super) fn environment(cache: &Path, engine: &Engine) -> Vec<(&'static str, String)> {
    vec![
        ("VLLM_CPU_KVCACHE_SPACE", "1".to_owned()),
        // Engines share the cores with each other, with the router and with the client.
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind".to_owned()),
        ("OMP_NUM_THREADS", "1".to_owned()),
        ("VLLM_HOST_IP", "127.0.0.1".to_owned()),
        ("VLLM_NO_USAGE_STATS", "1".to_owned()),
        // `--enforce-eager` leaves some of the sampler to a compiler: most of a minute at the first logprobs.
        ("TORCH_COMPILE_DISABLE", "1".to_owned()),
        ("HF_HUB_OFFLINE", "1".to_owned()),
        ("TRANSFORMERS_OFFLINE", "1".to_owned()),
        // As recorded: what is held is named with random digits. The rows of faults have engines with plain names.
        ("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0".to_owned()),
        // Cache resets, between two runs that must do the same work.
        ("VLLM_SERVER_DEV_MODE", "1".to_owned()),
        // What an engine learns about a model at its first boot makes the next one faster.
        ("VLLM_CACHE_ROOT", cache.display().to_string()),
        ("TMPDIR", SCRATCH.to_owned()),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1".to_owned()),
        (
            "VLLM_NIXL_SIDE_CHANNEL_PORT",
            engine.meeting_port.to_string(),
        ),
        ("UCX_NET_DEVICES", "lo".to_owned()),
        ("UCX_LOG_LEVEL", "warn".to_owned()),
    ]
}

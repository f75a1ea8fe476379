//! SGLang on the CPU: the command line of one engine, and its environment.
//!
//! What each setting is for is written beside it; facts about 0.5.23 are from the project's wire notes. Two shims beside the
//! recipe stand in for dependencies that exist for GPUs alone; SGLang itself is not touched.

use serde_json::json;

use super::{Engine, MODEL, Role, recipes, words};
use crate::namespace::SCRATCH;

/// Words of the command that starts an engine with a model, to which flags are added.
pub(super) fn bare_command<'a>(python: &'a str, model: &'a str) -> Vec<&'a str> {
    vec![
        python,
        "-m",
        "sglang.launch_server",
        "--model-path",
        model,
        // Greedy text must not depend on batching.
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--sampling-backend",
        "pytorch",
        "--cuda-graph-backend-decode",
        "disabled",
        "--cuda-graph-backend-prefill",
        "disabled",
        "--disable-overlap-schedule",
        // Of the machine's memory; the pool's size is set in tokens.
        "--mem-fraction-static",
        "0.05",
        // Hits are compared, and so are what engines hold and run.
        "--enable-cache-report",
        "--enable-metrics",
        "--log-level-http",
        "warning",
    ]
}

/// Flags of an engine that a sidecar launches: it adds where KV events and load are published.
pub(super) fn launched(engine: &Engine) -> Vec<String> {
    let mut flags = words([
        ("--served-model-name", MODEL.to_owned()),
        ("--host", "127.0.0.1".to_owned()),
        ("--port", engine.port.to_string()),
        ("--context-length", "2048".to_owned()),
        ("--page-size", "32".to_owned()),
        ("--max-total-tokens", "32768".to_owned()),
        ("--max-running-requests", "16".to_owned()),
        ("--tool-call-parser", "hermes".to_owned()),
    ]);
    flags.extend(match engine.role {
        Role::Aggregated => Vec::new(),
        Role::Prefill => words([
            ("--disaggregation-mode", "prefill".to_owned()),
            ("--disaggregation-transfer-backend", "nixl".to_owned()),
            (
                "--disaggregation-bootstrap-port",
                engine.meeting_port.to_string(),
            ),
        ]),
        Role::Decode => words([
            ("--disaggregation-mode", "decode".to_owned()),
            ("--disaggregation-transfer-backend", "nixl".to_owned()),
            // The usual place for what a decode engine puts aside is memory that only a GPU's driver can pin.
            (
                "--disaggregation-decode-retraction-backup",
                "cpu_tensor".to_owned(),
            ),
        ]),
    });
    flags
}

/// Flags of an engine that is started by hand.
pub(super) fn by_hand(engine: &Engine) -> Vec<String> {
    let mut flags = launched(engine);
    // Above the range that HTTP uses here.
    let [events, replay, load] = [10_000, 10_100, 10_200].map(|more| engine.port + more);
    let config = json!({
        "publisher": "zmq",
        // A concrete host would be connected to and not bound.
        "endpoint": format!("tcp://*:{events}"),
        "replay_endpoint": format!("tcp://*:{replay}"),
        "topic": "kv",
    });
    flags.extend(words([
        ("--kv-events-config", config.to_string()),
        ("--load-publish-endpoint", format!("tcp://*:{load}")),
    ]));
    flags
}

/// Environment of an engine, or of a sidecar that launches it.
pub(super) fn environment() -> Vec<(&'static str, String)> {
    let shims = recipes().join("sglang/shims").display().to_string();
    let settings = [
        // Stand-ins for kernels, and for the name of the memory that KV is in.
        ("PYTHONPATH", shims.as_str()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        // Otherwise an engine without a GPU does not start.
        ("SGLANG_USE_CPU_ENGINE", "1"),
        // Where the prefill engine's ranks say that they are.
        ("SGLANG_HOST_IP", "127.0.0.1"),
        // Engines share the cores with each other, with the router and with the client.
        ("OMP_NUM_THREADS", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("TRANSFORMERS_OFFLINE", "1"),
        ("TMPDIR", SCRATCH),
        ("UCX_TLS", "tcp,self,sm"),
        ("UCX_NET_DEVICES", "lo"),
        ("UCX_LOG_LEVEL", "warn"),
    ];
    settings
        .map(|(name, value)| (name, value.to_owned()))
        .into()
}

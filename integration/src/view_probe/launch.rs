//! How the engine is launched with few blocks, and how it is asked for what every engine has in its own way.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::detour::Ports;
use super::load::{ADAPTER, BLOCK};
use super::stand::Parts;
use crate::real::engine::Kind;
use crate::real::http;

/// A reset that is refused is tried again for so long.
const RESET_BOUND: Duration = Duration::from_secs(20);

/// Where an engine publishes its events, and where it sends them again.
#[derive(Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The event stream.
    pub events: String,
    /// Its replay.
    pub replay: String,
}

/// The engine's command with few blocks.
pub fn words(parts: &Parts, at: SocketAddr) -> Vec<String> {
    let common = [
        ("--served-model-name", parts.model.clone()),
        ("--host", at.ip().to_string()),
        ("--port", at.port().to_string()),
    ];
    let mut words = parts.engine.clone();
    words.extend(flags(common));
    words.extend(match parts.kind {
        Kind::Vllm => vllm(parts),
        Kind::Sglang => sglang(parts),
    });
    words
}

fn vllm(parts: &Parts) -> Vec<String> {
    let adapter = parts.logs.join(ADAPTER);
    let mut words = flags([
        ("--max-model-len", "1024".to_owned()),
        ("--block-size", BLOCK.to_string()),
        ("--num-gpu-blocks-override", parts.blocks.to_string()),
        ("--max-num-seqs", "8".to_owned()),
        ("--max-num-batched-tokens", "512".to_owned()),
        ("--max-lora-rank", "8".to_owned()),
        ("--lora-modules", format!("{ADAPTER}={}", adapter.display())),
    ]);
    words.extend(["--enable-lora", "--enable-prompt-tokens-details"].map(str::to_owned));
    words
}

fn sglang(parts: &Parts) -> Vec<String> {
    let tokens = parts.blocks * BLOCK as u64;
    flags([
        ("--context-length", "1024".to_owned()),
        ("--page-size", BLOCK.to_string()),
        ("--max-total-tokens", tokens.to_string()),
        ("--max-running-requests", "8".to_owned()),
        ("--chunked-prefill-size", "512".to_owned()),
    ])
}

/// Flags that have the engine tell of its cache. One binds only what has a wildcard in it; a concrete address it connects to.
pub fn events(parts: &Parts, at: &Ports) -> Vec<String> {
    let Ports { events, replay, .. } = at;
    let mut config = json!({
        "publisher": "zmq",
        "endpoint": format!("tcp://*:{}", events.port()),
        "topic": "kv",
    });
    match parts.kind {
        Kind::Vllm => {
            config["enable_kv_cache_events"] = true.into();
            config["replay_endpoint"] = format!("tcp://{replay}").into();
        }
        Kind::Sglang => config["replay_endpoint"] = format!("tcp://*:{}", replay.port()).into(),
    }
    if let Some(steps) = parts.buffer_steps {
        config["buffer_steps"] = steps.into();
    }
    flags([("--kv-events-config", config.to_string())])
}

/// Where the engine itself says that its events are.
pub fn endpoints(kind: Kind, engine: &str) -> Result<Endpoints> {
    let tell = |path: &str| http::get(&format!("{engine}/{path}"), None)?.json();
    let told = match kind {
        Kind::Vllm => tell("kv_event_sources")?["0"].clone(),
        // Its `kv_events` says nothing of sockets that are files, as a sidecar has an engine that it launches use.
        Kind::Sglang => {
            let told = tell("server_info")?;
            let config = told["kv_events_config"].as_str();
            serde_json::from_str(config.context("the engine publishes no KV events")?)?
        }
    };
    let endpoint = |name: &str| {
        let endpoint = told[name].as_str();
        let endpoint = endpoint.with_context(|| format!("the engine tells no {name}: {told}"));
        Ok::<_, anyhow::Error>(endpoint?.replace('*', "127.0.0.1"))
    };
    Ok(Endpoints {
        events: endpoint("endpoint")?,
        replay: endpoint("replay_endpoint")?,
    })
}

/// Empties the engine's prefix cache; with `running`, requests that run begin anew, where there is such a thing. Otherwise it
/// refuses while any do.
pub fn reset(kind: Kind, engine: &str, running: bool) -> Result<()> {
    http::until("the engine resets its cache", RESET_BOUND, || {
        let emptied = match kind {
            Kind::Vllm => {
                let url = format!("{engine}/reset_prefix_cache?reset_running_requests={running}");
                http::post(&http::agent(), &url, &json!({}))?.json()?["success"] == true
            }
            Kind::Sglang => {
                let url = format!("{engine}/flush_cache");
                http::post(&http::agent(), &url, &Value::Null)?.status == 200
            }
        };
        Ok(emptied.then_some(()))
    })
}

fn flags<const N: usize>(settings: [(&str, String); N]) -> Vec<String> {
    let settings = settings.map(|(flag, value)| [flag.to_owned(), value]);
    settings.into_iter().flatten().collect()
}

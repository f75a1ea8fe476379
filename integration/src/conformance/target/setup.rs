//! The command lines that the recorded engines were started with.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Role;
use crate::ports;

/// How the engines of some recordings were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Setup {
    /// The first pair and the first aggregated engine: 256 blocks, no prompt token details, no scale-out endpoints.
    First,
    /// The pair whose splits were recorded: longer prompts, prompt token details, scale-out endpoints, tools.
    Split,
    /// [`Setup::First`], but decode computes what it cannot load.
    Recompute,
    /// [`Setup::First`], but KV is held for two seconds only.
    ShortLease,
    /// An aggregated engine with 64 blocks, which must evict.
    SmallCache,
    /// Two data-parallel ranks, whole hashes of the computable kind.
    Ranks,
    /// A LoRA adapter `ada`, whole hashes.
    Lora,
}

/// Event sockets of one engine.
pub(super) struct Sockets {
    endpoint: PathBuf,
    replay: PathBuf,
}

impl Sockets {
    pub(super) fn new(directory: &Path, number: usize) -> Self {
        Self {
            endpoint: directory.join(format!("events-{number}")),
            replay: directory.join(format!("replay-{number}")),
        }
    }
}

impl Setup {
    /// True if an engine that was started with other flags will do.
    pub fn fits_a_running_engine(self) -> bool {
        matches!(self, Self::First | Self::Split)
    }

    pub(super) fn flags(
        self,
        role: Role,
        adapter: Option<&Path>,
        sockets: &Sockets,
        number: usize,
    ) -> Result<Vec<String>, String> {
        let mut flags: Vec<String> = vec!["--enable-prefix-caching".to_owned()];
        let mut set = |flag: &str, value: &str| flags.extend([flag.to_owned(), value.to_owned()]);
        let (length, blocks) = match self {
            Self::Split => ("4096", "1024"),
            Self::SmallCache => ("1024", "64"),
            _ => ("1024", "256"),
        };
        set("--block-size", "32");
        set("--max-model-len", length);
        set("--num-gpu-blocks-override", blocks);
        set("--max-num-seqs", "8");
        set("--max-num-batched-tokens", "512");
        set(
            "--kv-events-config",
            &self.events(role, sockets).to_string(),
        );
        if let Some(config) = self.transfer(role, number) {
            set("--kv-transfer-config", &config.to_string());
        }
        match self {
            Self::Split => {
                set("--tool-call-parser", "hermes");
                flags.extend(
                    [
                        "--enable-auto-tool-choice",
                        "--enable-prompt-tokens-details",
                        "--enable-scale-out",
                    ]
                    .map(str::to_owned),
                );
            }
            Self::Ranks => {
                set("--data-parallel-size", "2");
                set("--prefix-caching-hash-algo", "sha256_cbor");
            }
            Self::Lora => {
                let adapter = adapter.ok_or("needs a LoRA adapter for the target's model")?;
                set("--lora-modules", &format!("ada={}", adapter.display()));
                set("--max-lora-rank", "8");
                flags.extend(
                    [
                        "--enable-lora",
                        "--enable-prompt-tokens-details",
                        "--enable-scale-out",
                    ]
                    .map(str::to_owned),
                );
            }
            Self::First | Self::Recompute | Self::ShortLease | Self::SmallCache => {}
        }
        Ok(flags)
    }

    pub(super) fn environment(self) -> Vec<(String, String)> {
        let whole = matches!(self, Self::Ranks | Self::Lora);
        let hashes = (
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
            if whole { "0" } else { "1" },
        );
        // Cache resets.
        let development = ("VLLM_SERVER_DEV_MODE", "1");
        [hashes, development]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    fn events(self, role: Role, sockets: &Sockets) -> Value {
        let topic = match self {
            Self::SmallCache => "kv@agg@tiny".to_owned(),
            Self::Ranks => "kv@dp".to_owned(),
            Self::Lora => String::new(),
            _ => format!("kv@{}@tiny", role.name()),
        };
        let (endpoint, replay) = match self {
            // Ranks count ports up, which a path has not.
            Self::Ranks => two_ports(),
            _ => (
                format!("ipc://{}", sockets.endpoint.display()),
                format!("ipc://{}", sockets.replay.display()),
            ),
        };
        let mut config = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay,
            "topic": topic,
        });
        if self == Self::SmallCache {
            config["buffer_steps"] = 1000.into();
        }
        config
    }

    fn transfer(self, role: Role, number: usize) -> Option<Value> {
        let role_name = match role {
            Role::Prefill => "kv_producer",
            Role::Decode => "kv_consumer",
            Role::Aggregated => return None,
        };
        let lease = match self {
            Self::Split => 10,
            Self::ShortLease => 2,
            _ => 30,
        };
        let policy = if self == Self::Recompute {
            "recompute"
        } else {
            "fail"
        };
        Some(json!({
            "kv_connector": "NixlConnector",
            "kv_role": role_name,
            "kv_buffer_device": "cpu",
            "engine_id": format!("{}-{}-{number}", role.name(), std::process::id()),
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"kv_lease_duration": lease},
        }))
    }
}

/// Endpoints whose next port is free too. An engine binds only what has a `*` in it.
fn two_ports() -> (String, String) {
    let pair = || {
        let mut last = ports::free();
        loop {
            let next = ports::free();
            if next.port() == last.port() + 1 {
                return last.port();
            }
            last = next;
        }
    };
    (
        format!("tcp://*:{}", pair()),
        format!("tcp://127.0.0.1:{}", pair()),
    )
}

/// Gives a command line another `engine_id`.
pub(super) fn rename(words: &mut [String], engine_id: &str) {
    let position = words.iter().position(|word| word == "--kv-transfer-config");
    let Some(config) = position.and_then(|position| words.get_mut(position + 1)) else {
        return;
    };
    if let Ok(mut value) = serde_json::from_str::<Value>(config) {
        value["engine_id"] = engine_id.into();
        *config = value.to_string();
    }
}

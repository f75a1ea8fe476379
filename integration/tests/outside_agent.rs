//! Emulated engines as processes that move their KV over a fabric, and an agent from outside that knows no more of them than
//! their handshake: it reads what they hold, keeps it, and gives it back. Over loopback TCP, and over NIXL where its library
//! is named.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use baton_integration::client;
use baton_integration::emulated::model::{self, ROW_BYTES};
use baton_integration::emulated::vllm::side_channel::{self, HandshakeFacts};
use baton_integration::ports;
use baton_integration::wait::{PATIENCE, until, until_some};
use baton_transfer::{Agent, AgentConfig, Fabric, Library, Peer, Pool, Span, TransferError};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const PROMPT: &str =
    "The KV of a prompt is all that decode knows of it, byte for byte, block for block.";

/// Tokens of a block.
const BLOCK: usize = 32;

macro_rules! on_both_fabrics {
    ($($name:ident),* $(,)?) => {
        mod loopback {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(None).await;
            })*
        }

        mod nixl {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs NIXL: cargo xtask e2e vllm --only transfer"]
            async fn $name() {
                let library = std::env::var_os("BATON_NIXL_LIB").expect("BATON_NIXL_LIB is set");
                super::$name(Some(library.into())).await;
            })*
        }
    };
}

on_both_fabrics!(
    two_processes_hand_over,
    what_is_held_can_be_read_and_given_back_from_outside,
    what_is_held_can_be_kept_from_outside,
    an_engine_that_came_back_is_another_agent,
);

/// An engine in a process of its own.
struct Engine {
    http: SocketAddr,
    side_channel: SocketAddr,
    process: Child,
}

impl Engine {
    async fn start(nixl: Option<&Path>, role: &str, lease: u32) -> Self {
        Self::start_at(ports::free(), ports::free(), nixl, role, lease).await
    }

    /// With an `engine_id` that its ports decide.
    async fn start_at(
        http: SocketAddr,
        side_channel: SocketAddr,
        nixl: Option<&Path>,
        role: &str,
        lease: u32,
    ) -> Self {
        let config = json!({
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "engine_id": format!("engine-{}", http.port()),
            "kv_connector_extra_config": {"kv_lease_duration": lease},
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton-emulated-vllm"));
        command
            .args(["--port", &http.port().to_string()])
            .args([
                "--emulate-side-channel-port",
                &side_channel.port().to_string(),
            ])
            .args(["--kv-transfer-config", &config.to_string()])
            .args([
                "--num-gpu-blocks-override",
                "64",
                "--emulate-speed",
                "instant",
            ])
            .env_remove("BATON_NIXL_LIB")
            .stdout(Stdio::null())
            .kill_on_drop(true);
        if let Some(nixl) = nixl {
            command.arg("--emulate-nixl-lib").arg(nixl);
        }
        let engine = Self {
            http,
            side_channel,
            process: command.spawn().unwrap(),
        };
        until("the engine to listen", || async {
            tokio::net::TcpStream::connect(http).await.is_ok()
        })
        .await;
        engine
    }

    async fn complete(&self, tokens: u32, params: &Value) -> client::Answer {
        let body = json!({
            "model": "tiny",
            "prompt": PROMPT,
            "max_tokens": tokens,
            "kv_transfer_params": params,
        });
        let body = body.to_string();
        client::call(self.http, "POST", "/v1/completions", &[], body).await
    }

    /// Where the prompt's KV is held.
    async fn prefill(&self) -> Value {
        let asked = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let answer = self.complete(1, &asked).await;
        answer.served().json()["kv_transfer_params"].clone()
    }

    /// A number of its metrics page.
    async fn metric(&self, name: &str) -> Option<f64> {
        let page = client::call(self.http, "GET", "/metrics", &[], "").await;
        let page = page.served().text().to_owned();
        let line = page.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    async fn until_nothing_is_held(&self) {
        until("the KV to be given back", || async {
            self.metric("vllm:kv_cache_usage_perc").await == Some(0.0)
        })
        .await;
    }
}

/// An agent that has met an engine by its handshake.
struct Outside {
    agent: Agent,
    engine: HandshakeFacts,
    peer: Peer,
}

impl Outside {
    async fn meet(nixl: Option<&Path>, engine: &Engine) -> Self {
        let fabric = match nixl {
            None => Fabric::loopback(),
            Some(path) => Fabric::nixl(&Library::find(Some(path), &[]).unwrap()).unwrap(),
        };
        let name = format!("outside-{}", engine.http.port());
        let agent = Agent::start(&fabric, AgentConfig::new(name)).await.unwrap();
        Self::meet_as(agent, engine).await
    }

    async fn meet_as(agent: Agent, engine: &Engine) -> Self {
        let port = engine.side_channel.port();
        let asked = side_channel::handshake("127.0.0.1", port, PATIENCE);
        let engine = asked.await.unwrap();
        let peer = agent.meet(&engine.metadata).await.unwrap();
        Self {
            agent,
            engine,
            peer,
        }
    }

    async fn tell(&self, message: &str) {
        let told = self.agent.notify(&self.peer, message.as_bytes());
        told.await.unwrap();
    }
}

fn request_id(params: &Value) -> &str {
    params["remote_request_id"].as_str().unwrap()
}

async fn two_processes_hand_over(nixl: Option<PathBuf>) {
    let prefill = Engine::start(nixl.as_deref(), "kv_producer", 30).await;
    let decode = Engine::start(nixl.as_deref(), "kv_consumer", 30).await;
    for _ in 0..5 {
        let params = prefill.prefill().await;
        let answer = decode.complete(5, &params).await;
        assert_eq!(answer.served().generated(), model::text(PROMPT, 5));
        prefill.until_nothing_is_held().await;
    }
    let moved = decode.metric("vllm:nixl_bytes_transferred_sum").await;
    let prompt = u32::try_from(PROMPT.len() * ROW_BYTES).unwrap();
    assert!(moved >= Some(prompt.into()), "{moved:?}");
}

/// The bytes that a prompt leaves, row by row.
fn kv_of(prompt: &str) -> Vec<u8> {
    let mut rows = vec![0; prompt.len() * ROW_BYTES];
    let mut previous = model::seed(None);
    for (token, row) in prompt.bytes().zip(rows.chunks_mut(ROW_BYTES)) {
        previous = model::write_row(previous, token.into(), row);
    }
    rows
}

async fn what_is_held_can_be_read_and_given_back_from_outside(nixl: Option<PathBuf>) {
    let prefill = Engine::start(nixl.as_deref(), "kv_producer", 30).await;
    let params = prefill.prefill().await;
    let outside = Outside::meet(nixl.as_deref(), &prefill).await;
    let blocks: Vec<u32> = serde_json::from_value(params["remote_block_ids"][0].clone()).unwrap();
    assert_eq!(blocks.len(), PROMPT.len().div_ceil(BLOCK));
    let regions = outside.engine.regions();
    let spans = blocks.iter().map(|block| regions.spans(*block).unwrap());
    let spans: Vec<Span> = spans.flatten().collect();
    let pool: Pool = outside
        .agent
        .register(BLOCK * ROW_BYTES, blocks.len())
        .await
        .unwrap();
    let into = pool.take(blocks.len()).unwrap();
    let release = format!("{}:1", request_id(&params));
    let Outside { agent, peer, .. } = &outside;
    let read = agent.read(peer, &spans, into, Some(release.as_bytes()), PATIENCE);
    let read = read.await.unwrap().to_vec();
    let expected = kv_of(PROMPT);
    assert!(read[..expected.len()] == expected, "other bytes");
    prefill.until_nothing_is_held().await;

    // Without a read.
    let params = prefill.prefill().await;
    assert!(prefill.metric("vllm:kv_cache_usage_perc").await > Some(0.0));
    outside.tell(&format!("{}:1", request_id(&params))).await;
    prefill.until_nothing_is_held().await;

    // What is not held any more does no harm.
    outside.tell(&format!("{}:1", request_id(&params))).await;
    until_some("the engine to have counted it", || async {
        let late = "vllm:nixl_num_notifications_after_expiry_total";
        prefill.metric(late).await.filter(|late| *late >= 1.0)
    })
    .await;
}

async fn what_is_held_can_be_kept_from_outside(nixl: Option<PathBuf>) {
    let lease = Duration::from_secs(6);
    let prefill = Engine::start(nixl.as_deref(), "kv_producer", 6).await;
    let outside = Outside::meet(nixl.as_deref(), &prefill).await;
    let params = prefill.prefill().await;
    let heartbeat = format!("HB:{}", request_id(&params));
    let began = Instant::now();
    // Each one keeps it for two thirds of a lease from then on.
    while began.elapsed() < lease + lease / 4 {
        outside.tell(&heartbeat).await;
        assert!(prefill.metric("vllm:kv_cache_usage_perc").await > Some(0.0));
        tokio::time::sleep(lease / 60).await;
    }
    prefill.until_nothing_is_held().await;
}

async fn an_engine_that_came_back_is_another_agent(nixl: Option<PathBuf>) {
    let mut prefill = Engine::start(nixl.as_deref(), "kv_producer", 30).await;
    let before = Outside::meet(nixl.as_deref(), &prefill).await;
    let params = prefill.prefill().await;
    prefill.process.kill().await.unwrap();
    let release = format!("{}:1", request_id(&params));
    let told = before.agent.notify(&before.peer, release.as_bytes()).await;
    let gone = TransferError::Disconnected(before.peer.name().to_owned());
    assert_eq!(told.unwrap_err(), gone);

    let Engine {
        http, side_channel, ..
    } = prefill;
    let again = Engine::start_at(http, side_channel, nixl.as_deref(), "kv_producer", 30).await;
    let after = Outside::meet_as(before.agent.clone(), &again).await;
    assert_eq!(after.engine.engine_id, before.engine.engine_id);
    assert_ne!(after.peer, before.peer);
    let params = again.prefill().await;
    let release = format!("{}:1", request_id(&params));
    let told = before.agent.notify(&before.peer, release.as_bytes()).await;
    assert_eq!(told.unwrap_err(), gone);
    assert!(again.metric("vllm:kv_cache_usage_perc").await > Some(0.0));
    after.tell(&release).await;
    again.until_nothing_is_held().await;
}

//! The command line of the emulated engine: vLLM's own flags as far as they matter, and `--emulate-…`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Deserialize;

use super::config::{Config, EventsConfig};
use super::events::HashForm;
use crate::emulated::args::EmulateArgs;

/// An emulated vLLM 0.32.0: its HTTP API, KV events, NIXL side channel and metrics, a paged prefix cache with real bytes
/// that move between engines over NIXL or loopback TCP, and no model.
///
/// The next token is a function of all KV bytes held, so wrong or missing KV changes the text. It takes vLLM's own flags;
/// a sidecar launches it as it launches the real one:
///
///   baton-sidecar-vllm -- baton-emulated-vllm --port 8000 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
#[derive(Debug, Clone, Parser)]
#[command(
    name = "baton-emulated-vllm",
    max_term_width = 100,
    verbatim_doc_comment
)]
pub struct Args {
    /// Ignored: the `serve` of `vllm serve`, and a model given without a flag.
    #[arg(hide = true)]
    positional: Vec<String>,

    /// A directory with a tokenizer.json, or any name: then a token is a byte, or a word that was generated before.
    #[arg(long, default_value = "tiny")]
    model: String,

    /// Name under which clients ask for the model [default: that of --model].
    #[arg(long)]
    served_model_name: Option<String>,

    /// Where to listen; loopback only.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port of the HTTP API.
    #[arg(long, default_value_t = 8000)]
    port: u16,

    /// What clients must bring as a bearer token.
    #[arg(long)]
    api_key: Option<String>,

    /// Tokens per KV block.
    #[arg(long, default_value_t = 32)]
    block_size: u32,

    /// KV blocks per rank, the null block among them.
    #[arg(long, default_value_t = 8192)]
    num_gpu_blocks_override: u32,

    /// Longest prompt and answer together, in tokens.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: usize,

    /// Tokens that one step computes at most.
    #[arg(long, default_value_t = 2048)]
    max_num_batched_tokens: usize,

    /// Sequences that run at a time.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,

    /// Ranks, each with a scheduler and a KV cache of its own.
    #[arg(long, default_value_t = 1)]
    data_parallel_size: u32,

    /// Tell cached tokens in the usage.
    #[arg(long)]
    enable_prompt_tokens_details: bool,

    /// Serve the endpoints under /inference.
    #[arg(long)]
    enable_scale_out: bool,

    /// vLLM's JSON: connector, role, engine_id, lease, load failure policy.
    #[arg(long, value_name = "JSON")]
    kv_transfer_config: Option<String>,

    /// vLLM's JSON: where KV events are published.
    #[arg(long, value_name = "JSON")]
    kv_events_config: Option<String>,

    /// LoRA adapters, NAME or NAME=PATH.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    lora_modules: Vec<String>,

    /// Events tell hashes as 64-bit numbers (1) or whole (0).
    #[arg(
        long,
        env = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(..=1)
    )]
    emulate_int_block_hashes: u8,

    #[command(flatten)]
    ignored: Ignored,

    /// Host of the NIXL side channel; loopback only.
    #[arg(long, env = "VLLM_NIXL_SIDE_CHANNEL_HOST", default_value = "127.0.0.1")]
    emulate_side_channel_host: IpAddr,

    /// Port of the NIXL side channel.
    #[arg(long, env = "VLLM_NIXL_SIDE_CHANNEL_PORT", default_value_t = 5600)]
    emulate_side_channel_port: u16,

    #[command(flatten)]
    emulate: EmulateArgs,
}

/// Flags of vLLM that mean nothing here: what they switch on is always on, or has nothing to work on.
#[expect(clippy::struct_excessive_bools, reason = "vLLM's own flags")]
#[derive(Debug, Clone, clap::Args)]
struct Ignored {
    #[arg(long, hide = true)]
    enable_prefix_caching: bool,
    #[arg(long, hide = true)]
    enforce_eager: bool,
    #[arg(long, hide = true)]
    enable_lora: bool,
    #[arg(long, hide = true)]
    enable_auto_tool_choice: bool,
    #[arg(long, hide = true)]
    disable_uvicorn_access_log: bool,
    #[arg(long, hide = true)]
    tool_call_parser: Option<String>,
    #[arg(long, hide = true)]
    max_lora_rank: Option<String>,
    #[arg(long, hide = true)]
    dtype: Option<String>,
    /// Block hashes are always those of `sha256_cbor`.
    #[arg(long, hide = true)]
    prefix_caching_hash_algo: Option<String>,
}

#[derive(Debug, Deserialize)]
struct KvTransfer {
    kv_connector: Option<String>,
    kv_role: Option<String>,
    engine_id: Option<String>,
    kv_load_failure_policy: Option<String>,
    #[serde(default)]
    kv_connector_extra_config: ExtraConfig,
}

#[derive(Debug, Default, Deserialize)]
struct ExtraConfig {
    kv_lease_duration: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct KvEvents {
    #[serde(default)]
    enable_kv_cache_events: bool,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
    buffer_steps: Option<usize>,
}

impl Args {
    /// Where the HTTP API listens.
    pub fn http(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Where the side channel listens.
    pub fn side_channel(&self) -> SocketAddr {
        SocketAddr::new(
            self.emulate_side_channel_host,
            self.emulate_side_channel_port,
        )
    }

    /// The engine that they describe.
    pub fn config(&self) -> Result<Config> {
        self.refuse_what_cannot_work()?;
        let mut config = Config {
            model: self.model.clone(),
            served_model_name: self
                .served_model_name
                .clone()
                .unwrap_or_else(|| self.model.clone()),
            loras: self.loras(),
            block_size: self.block_size,
            blocks: self.num_gpu_blocks_override,
            max_model_len: self.max_model_len,
            max_batched_tokens: self.max_num_batched_tokens,
            max_sequences: self.max_num_seqs,
            ranks: self.data_parallel_size,
            api_key: self.api_key.clone(),
            prompt_tokens_details: self.enable_prompt_tokens_details,
            scale_out: self.enable_scale_out,
            speed: self.emulate.speed(),
            fabric: self.emulate.fabric()?,
            kv_bandwidth: self.emulate.emulate_kv_bandwidth,
            row_bytes: self.emulate.emulate_kv_bytes_per_token,
            seed: self.emulate.emulate_seed,
            remember: false,
            ..Config::new(None)
        };
        if let Some(json) = &self.kv_transfer_config {
            connect(&mut config, json)?;
        }
        if let Some(json) = &self.kv_events_config {
            config.events = events(json, self.emulate_int_block_hashes == 1)?;
        }
        Ok(config)
    }

    fn refuse_what_cannot_work(&self) -> Result<()> {
        if !self.host.is_loopback() || !self.emulate_side_channel_host.is_loopback() {
            bail!("an emulated engine listens on loopback only; give 127.0.0.1 as --host");
        }
        if self.block_size == 0 || self.num_gpu_blocks_override < 2 || self.data_parallel_size == 0
        {
            bail!(
                "--block-size, --num-gpu-blocks-override and --data-parallel-size must leave at least one usable block"
            );
        }
        self.emulate.check(self.block_size, "--block-size")?;
        if self.max_num_batched_tokens == 0 || self.max_num_seqs == 0 {
            bail!("--max-num-batched-tokens and --max-num-seqs must be at least 1");
        }
        Ok(())
    }

    fn loras(&self) -> Vec<String> {
        let name = |lora: &String| lora.split('=').next().unwrap_or(lora).to_owned();
        self.lora_modules.iter().map(name).collect()
    }
}

fn connect(config: &mut Config, json: &str) -> Result<()> {
    let asked: KvTransfer =
        serde_json::from_str(json).context("--kv-transfer-config is not vLLM's JSON")?;
    match asked.kv_connector.as_deref() {
        Some("NixlConnector" | "NixlPullConnector") => {}
        other => bail!("only the NixlConnector is emulated, not {other:?}"),
    }
    config.role = Some(asked.kv_role.unwrap_or_else(|| "kv_both".to_owned()));
    config.engine_id = asked.engine_id;
    config.recompute_failed_loads = asked.kv_load_failure_policy.as_deref() == Some("recompute");
    if let Some(lease) = asked.kv_connector_extra_config.kv_lease_duration {
        config.lease = Duration::try_from_secs_f64(lease)
            .context("kv_lease_duration is no time in seconds")?;
    }
    Ok(())
}

fn events(json: &str, int_hashes: bool) -> Result<Option<EventsConfig>> {
    let asked: KvEvents =
        serde_json::from_str(json).context("--kv-events-config is not vLLM's JSON")?;
    let events = EventsConfig {
        endpoint: asked.endpoint.unwrap_or_else(|| "tcp://*:5557".to_owned()),
        replay_endpoint: asked.replay_endpoint,
        topic: asked.topic,
        buffer_steps: asked.buffer_steps.unwrap_or(10_000),
        hash_form: if int_hashes {
            HashForm::Int
        } else {
            HashForm::Bytes
        },
    };
    Ok(asked.enable_kv_cache_events.then_some(events))
}

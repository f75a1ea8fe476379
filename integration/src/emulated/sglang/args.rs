//! The command line of the emulated engine: SGLang's own flags as far as they matter, and `--emulate-…`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use serde::Deserialize;

use super::config::{Config, EventsConfig, Mode, Patience};
use super::events::{Form, Format};
use crate::emulated::args::EmulateArgs;

/// An emulated SGLang 0.5.23: its HTTP API, bootstrap server, KV events, load stream and metrics,
/// a paged prefix cache with real bytes that move between engines over NIXL or loopback TCP, and
/// no model.
///
/// The next token is a function of all KV bytes held, so wrong or missing KV changes the text. It
/// takes SGLang's own flags; a sidecar launches it as it launches the real one:
///
///   baton-sidecar-sglang -- baton-emulated-sglang --port 30000 --disaggregation-mode prefill
#[expect(clippy::struct_excessive_bools, reason = "SGLang's own flags")]
#[derive(Debug, Clone, Parser)]
#[command(
    name = "baton-emulated-sglang",
    max_term_width = 100,
    verbatim_doc_comment
)]
pub struct Args {
    /// A directory with a tokenizer.json, or any name: then a token is a byte, or a word that was generated before.
    #[arg(long, alias = "model", default_value = "tiny")]
    model_path: String,

    /// Name under which clients ask for the model [default: that of --model-path].
    #[arg(long)]
    served_model_name: Option<String>,

    /// Where to listen; loopback only.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port of the HTTP API.
    #[arg(long, default_value_t = 30000)]
    port: u16,

    /// What clients must bring as a bearer token.
    #[arg(long)]
    api_key: Option<String>,

    /// What administrators must bring; told by /server_info as the real one tells it.
    #[arg(long)]
    admin_api_key: Option<String>,

    /// Tokens per KV page.
    #[arg(long, default_value_t = 32)]
    page_size: u32,

    /// Tokens that the KV pool of a rank holds.
    #[arg(long, default_value_t = 262_144)]
    max_total_tokens: u32,

    /// Longest prompt and answer together, in tokens.
    #[arg(long, default_value_t = 131_072)]
    context_length: usize,

    /// Tokens of prompts that one step computes at most.
    #[arg(long, default_value_t = 4096)]
    chunked_prefill_size: usize,

    /// Sequences that run at a time.
    #[arg(long, default_value_t = 256)]
    max_running_requests: usize,

    /// Keep copies of evicted pages in the host's memory, and tell of them.
    #[arg(long)]
    enable_hierarchical_cache: bool,

    /// Pages of the host's memory, as a multiple of the engine's own.
    #[arg(long, default_value_t = 2.0)]
    hicache_ratio: f64,

    /// Ranks, each with a scheduler and a KV cache of its own.
    #[arg(long, visible_alias = "data-parallel-size", default_value_t = 1)]
    dp_size: u32,

    /// Tell cached tokens in the usage of the OpenAI routes.
    #[arg(long)]
    enable_cache_report: bool,

    /// Serve /metrics.
    #[arg(long)]
    enable_metrics: bool,

    /// What it does for other engines.
    #[arg(long, value_enum, default_value_t = ModeName::Null)]
    disaggregation_mode: ModeName,

    /// Port of the bootstrap server; decode takes it for that of a prefill whose port it is not told.
    #[arg(long, default_value_t = 8998)]
    disaggregation_bootstrap_port: u16,

    /// How KV moves: only nixl is emulated.
    #[arg(long, default_value = "nixl")]
    disaggregation_transfer_backend: String,

    /// Decode keeps a prefix cache, and tells of it.
    #[arg(long)]
    disaggregation_decode_enable_radix_cache: bool,

    /// SGLang's JSON: where KV events are published.
    #[arg(long, value_name = "JSON")]
    kv_events_config: Option<String>,

    /// Where the load is published: auto is next to the KV events.
    #[arg(long, value_name = "auto|ENDPOINT")]
    load_publish_endpoint: Option<String>,

    #[command(flatten)]
    ignored: Ignored,

    #[command(flatten)]
    waits: Waits,

    /// How events are written: releases differ.
    #[arg(long, value_enum, default_value_t = FormName::Maps)]
    emulate_event_form: FormName,

    /// A second request of a room in use ends the process, as it did over mooncake.
    #[arg(long)]
    emulate_death_by_used_room: bool,

    #[command(flatten)]
    emulate: EmulateArgs,
}

/// SGLang's own environment.
#[expect(clippy::struct_field_names, reason = "the flags' own names")]
#[derive(Debug, Clone, clap::Args)]
struct Waits {
    /// Seconds that prefill waits for its decode.
    #[arg(
        long,
        env = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
        value_name = "S"
    )]
    emulate_bootstrap_timeout: Option<f64>,

    /// Seconds that decode waits for its KV.
    #[arg(long, env = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT", value_name = "S")]
    emulate_waiting_timeout: Option<f64>,

    /// Seconds between two looks of decode at prefill's bootstrap server.
    #[arg(
        long,
        env = "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL",
        value_name = "S"
    )]
    emulate_heartbeat_interval: Option<f64>,

    /// Looks in vain after which prefill counts as lost.
    #[arg(
        long,
        env = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE",
        value_name = "N"
    )]
    emulate_heartbeat_max_failure: Option<u32>,

    /// Seconds between two looks whether a client has left.
    #[arg(long, env = "SGLANG_REQUEST_STATE_WAIT_TIMEOUT", value_name = "S")]
    emulate_disconnect_poll: Option<f64>,

    /// All waits of the engine are so many times as long.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    emulate_patience: f64,
}

/// Flags of SGLang that mean nothing here: what they switch on is always on, or has nothing to work on.
#[expect(clippy::struct_excessive_bools, reason = "SGLang's own flags")]
#[derive(Debug, Clone, clap::Args)]
struct Ignored {
    #[arg(long, hide = true)]
    disable_cuda_graph: bool,
    #[arg(long, hide = true)]
    disable_overlap_schedule: bool,
    #[arg(long, hide = true)]
    trust_remote_code: bool,
    #[arg(long, hide = true)]
    skip_server_warmup: bool,
    #[arg(long, hide = true)]
    device: Option<String>,
    #[arg(long, hide = true)]
    dtype: Option<String>,
    #[arg(long, hide = true)]
    attention_backend: Option<String>,
    #[arg(long, hide = true)]
    sampling_backend: Option<String>,
    #[arg(long, hide = true)]
    grammar_backend: Option<String>,
    #[arg(long, hide = true)]
    mem_fraction_static: Option<String>,
    #[arg(long, hide = true)]
    random_seed: Option<String>,
    #[arg(long, hide = true)]
    log_level: Option<String>,
    #[arg(long, hide = true)]
    load_balance_method: Option<String>,
    #[arg(long, hide = true)]
    disaggregation_decode_retraction_backup: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeName {
    /// Nothing.
    Null,
    /// It computes their prompts.
    Prefill,
    /// It takes prompts that they computed.
    Decode,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormName {
    /// Maps, as 0.5.23.
    Maps,
    /// Arrays, as releases long before.
    Arrays,
    /// Arrays with an eighth element, as releases between.
    Between,
}

#[derive(Debug, Deserialize)]
struct KvEvents {
    #[serde(default)]
    publisher: String,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
    buffer_steps: Option<usize>,
    format: Option<String>,
}

impl Args {
    /// Where the HTTP API listens.
    pub fn http(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// The engine that they describe.
    pub fn config(&self) -> Result<Config> {
        self.refuse_what_cannot_work()?;
        let mode = match self.disaggregation_mode {
            ModeName::Null => Mode::Null,
            ModeName::Prefill => Mode::Prefill,
            ModeName::Decode => Mode::Decode,
        };
        let name = self.served_model_name.as_ref();
        let events = self.kv_events_config.as_deref();
        let events = events.map(|json| self.events(json)).transpose()?.flatten();
        Ok(Config {
            model: self.model_path.clone(),
            served_model_name: name.unwrap_or(&self.model_path).clone(),
            page_size: self.page_size,
            pages: self.max_total_tokens / self.page_size,
            context_length: self.context_length,
            max_running_requests: self.max_running_requests,
            chunked_prefill_size: self.chunked_prefill_size,
            bootstrap_port: self.disaggregation_bootstrap_port,
            host_pages: self.host_pages(),
            dp_size: self.dp_size,
            load_endpoint: self.load_endpoint(events.as_ref())?,
            events,
            cache_report: self.enable_cache_report,
            decode_radix_cache: self.disaggregation_decode_enable_radix_cache,
            metrics: self.enable_metrics,
            api_key: self.api_key.clone(),
            admin_api_key: self.admin_api_key.clone(),
            own_way_with_tools: false,
            patience: self.waits.patience()?,
            dies_of_used_rooms: self.emulate_death_by_used_room,
            speed: self.emulate.speed(),
            fabric: self.emulate.fabric()?,
            kv_bandwidth: self.emulate.emulate_kv_bandwidth,
            row_bytes: self.emulate.emulate_kv_bytes_per_token,
            seed: self.emulate.emulate_seed,
            remember: false,
            launch_command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            ..Config::new(mode)
        })
    }

    fn host_pages(&self) -> usize {
        if !self.enable_hierarchical_cache {
            return 0;
        }
        let pages = f64::from(self.max_total_tokens / self.page_size) * self.hicache_ratio;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "as many pages as are meant, whatever is meant"
        )]
        let pages = pages.max(0.0) as usize;
        pages
    }

    fn refuse_what_cannot_work(&self) -> Result<()> {
        if !self.host.is_loopback() {
            bail!("an emulated engine listens on loopback only; give 127.0.0.1 as --host");
        }
        if self.page_size == 0 || self.max_total_tokens < self.page_size || self.dp_size == 0 {
            bail!("--page-size, --max-total-tokens and --dp-size must leave at least one page");
        }
        if self.disaggregation_transfer_backend != "nixl" {
            bail!(
                "only the transfer backend nixl is emulated; give it as --disaggregation-transfer-backend"
            );
        }
        if self.chunked_prefill_size == 0 || self.max_running_requests == 0 {
            bail!("--chunked-prefill-size and --max-running-requests must be at least 1");
        }
        self.emulate.check(self.page_size, "--page-size")
    }

    fn events(&self, json: &str) -> Result<Option<EventsConfig>> {
        let asked: KvEvents =
            serde_json::from_str(json).context("--kv-events-config is not SGLang's JSON")?;
        let format = match asked.format.as_deref() {
            None | Some("default") => Format::Default,
            Some("dynamo") => Format::Dynamo,
            Some(other) => bail!("the format of KV events is default or dynamo, not {other}"),
        };
        let events = EventsConfig {
            endpoint: asked.endpoint.unwrap_or_else(|| "tcp://*:5557".to_owned()),
            replay_endpoint: asked.replay_endpoint,
            topic: asked.topic,
            buffer_steps: asked.buffer_steps.unwrap_or(10_000),
            format,
            form: match self.emulate_event_form {
                FormName::Maps => Form::Maps,
                FormName::Arrays => Form::Arrays,
                FormName::Between => Form::ArraysWithExtras,
            },
        };
        Ok((asked.publisher == "zmq").then_some(events))
    }

    /// `auto` is the port behind those of the KV events.
    fn load_endpoint(&self, events: Option<&EventsConfig>) -> Result<Option<String>> {
        match (self.load_publish_endpoint.as_deref(), events) {
            (Some("auto"), None) => Ok(None),
            (Some("auto"), Some(events)) => {
                let (host, port) = events
                    .endpoint
                    .rsplit_once(':')
                    .and_then(|(host, port)| Some((host, port.parse::<u32>().ok()?)))
                    .context("--load-publish-endpoint auto needs KV events over TCP")?;
                Ok(Some(format!("{host}:{}", port + self.dp_size)))
            }
            (endpoint, _) => Ok(endpoint.map(str::to_owned)),
        }
    }
}

impl Waits {
    fn patience(&self) -> Result<Patience> {
        let seconds = |given: Option<f64>, default: Duration| match given {
            None => Ok(default),
            Some(given) => {
                Duration::try_from_secs_f64(given).context("a wait is no time in seconds")
            }
        };
        let real = Patience::REAL;
        let patience = Patience {
            bootstrap: seconds(self.emulate_bootstrap_timeout, real.bootstrap)?,
            waiting: seconds(self.emulate_waiting_timeout, real.waiting)?,
            heartbeat: seconds(self.emulate_heartbeat_interval, real.heartbeat)?,
            heartbeat_failures: self
                .emulate_heartbeat_max_failure
                .unwrap_or(real.heartbeat_failures),
            disconnect_poll: seconds(self.emulate_disconnect_poll, real.disconnect_poll)?,
            ..real
        };
        if !(self.emulate_patience > 0.0 && self.emulate_patience.is_finite()) {
            bail!("--emulate-patience must be more than 0");
        }
        Ok(patience.scaled(self.emulate_patience))
    }
}

#[cfg(test)]
mod tests;

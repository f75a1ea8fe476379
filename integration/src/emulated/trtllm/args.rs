//! The command line of the emulated engine: `trtllm-serve`'s own flags as far as they matter, its file of options, and
//! `--emulate-…`.

mod options;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use self::options::Options;
use super::config::{Auth, Config, Era, EventsConfig, HashAlgo, Patience, TOKENS_PER_BLOCK};
use crate::emulated::args::EmulateArgs;

/// An emulated TensorRT-LLM behind trtllm-serve, made from what its sources say: its HTTP API, KV
/// events that polls empty, statistics, both orders of disaggregation, a paged prefix cache with real
/// bytes that move between engines over NIXL or loopback TCP, and no model.
///
/// The next token is a function of all KV bytes held, so wrong or missing KV changes the text. It
/// takes trtllm-serve's own flags and its file of options; a sidecar launches it as it launches the
/// real one:
///
///   baton-sidecar-trtllm -- baton-emulated-trtllm serve tiny --port 8000 --config options.yaml
///
/// Any of them computes prompts for others, takes prompts from others, or does both, as each
/// request says.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "baton-emulated-trtllm",
    max_term_width = 100,
    verbatim_doc_comment
)]
pub struct Args {
    /// A directory with a tokenizer.json, or any name: then a token is a byte, or a word that was generated before. The word
    /// `serve` may stand before it.
    #[arg(value_name = "MODEL", num_args = 1..=2, default_value = "tiny")]
    model: Vec<String>,

    /// Name under which clients ask for the model [default: the last part of MODEL].
    #[arg(long = "served_model_name", alias = "served-model-name")]
    served_model_name: Option<String>,

    /// Where to listen; loopback only.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port of the HTTP API.
    #[arg(long, default_value_t = 8000)]
    port: u16,

    /// How the model would be run: only pytorch is emulated.
    #[arg(long, default_value = "pytorch")]
    backend: String,

    /// Sequences that run at a time [default: 256].
    #[arg(long = "max_batch_size", alias = "max-batch-size")]
    max_batch_size: Option<usize>,

    /// Tokens of prompts that one step computes at most [default: 8192].
    #[arg(long = "max_num_tokens", alias = "max-num-tokens")]
    max_num_tokens: Option<usize>,

    /// Longest prompt and answer together, in tokens [default: 131072].
    #[arg(long = "max_seq_len", alias = "max-seq-len")]
    max_seq_len: Option<usize>,

    /// Ranks, if attention data parallelism is on [default: 1].
    #[arg(long = "tp_size", alias = "tp-size")]
    tp_size: Option<u32>,

    /// The LLM API's options in YAML; flags go before it.
    #[arg(
        long = "config",
        aliases = ["extra_llm_api_options", "extra-llm-api-options"],
        value_name = "FILE"
    )]
    config: Option<PathBuf>,

    #[command(flatten)]
    ignored: Ignored,

    #[command(flatten)]
    own: Own,

    #[command(flatten)]
    emulate: EmulateArgs,
}

/// What only this engine is told.
#[expect(clippy::struct_field_names, reason = "the flags' own names")]
#[derive(Debug, Clone, clap::Args)]
struct Own {
    /// Which release's wire.
    #[arg(long, value_enum, default_value_t = EraName::V12)]
    emulate_era: EraName,

    /// How blocks are named in events.
    #[arg(long, value_enum, default_value_t = HashName::V1BlockKey)]
    emulate_hash_algo: HashName,

    /// The second KV cache manager: events say how blocks are named.
    #[arg(long)]
    emulate_second_manager: bool,

    /// Refuse what needs the internal key although there is none, as one release between did.
    #[arg(long)]
    emulate_auth_required: bool,

    /// All waits of the engine but its transfer timeout are so many times as long.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    emulate_patience: f64,
}

/// Flags of trtllm-serve that mean nothing here.
#[derive(Debug, Clone, clap::Args)]
struct Ignored {
    #[arg(long = "trust_remote_code", hide = true)]
    trust_remote_code: bool,
    #[arg(long = "log_level", hide = true)]
    log_level: Option<String>,
    #[arg(long, hide = true)]
    tokenizer: Option<String>,
    #[arg(long = "pp_size", hide = true)]
    pp_size: Option<u32>,
    #[arg(long = "ep_size", hide = true)]
    ep_size: Option<u32>,
    #[arg(long = "kv_cache_free_gpu_memory_fraction", hide = true)]
    kv_cache_free_gpu_memory_fraction: Option<f64>,
    #[arg(long = "server_role", hide = true)]
    server_role: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EraName {
    /// 1.2, the stable one.
    #[value(name = "1.2")]
    V12,
    /// What becomes 1.3 and 1.4.
    Main,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HashName {
    /// Numbers of 64 bits.
    #[value(name = "v1_block_key")]
    V1BlockKey,
    /// Digests in hexadecimal.
    #[value(name = "v2_sha256")]
    V2Sha256,
    /// Their first eight bytes.
    #[value(name = "v2_sha256_64")]
    V2Sha256Short,
}

impl Args {
    /// Where the HTTP API listens.
    pub fn http(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// The engine that they describe.
    pub fn config(&self) -> Result<Config> {
        let options = match &self.config {
            Some(file) => Options::read(file)?,
            None => Options::default(),
        };
        let config = self.described(&options)?;
        self.refuse_what_cannot_work(&config)?;
        Ok(config)
    }

    fn described(&self, options: &Options) -> Result<Config> {
        let era = match self.own.emulate_era {
            EraName::V12 => Era::V12,
            EraName::Main => Era::Main,
        };
        let model = self.model.last().cloned().unwrap_or_default();
        let last_part = model.rsplit('/').next().unwrap_or_default().to_owned();
        let sized = self.sized(options, Config::new(era));
        Ok(Config {
            served_model_name: self.served_model_name.clone().unwrap_or(last_part),
            model,
            events: self.events(options, sized.max_seq_len),
            hash_algo: match self.own.emulate_hash_algo {
                HashName::V1BlockKey => HashAlgo::V1BlockKey,
                HashName::V2Sha256 => HashAlgo::V2Sha256,
                HashName::V2Sha256Short => HashAlgo::V2Sha256Short,
            },
            iteration_stats: options.enable_iter_perf_stats,
            request_stats: options.request_stats(),
            transceiver: options.transceiver()?,
            auth: self.auth(options),
            patience: self.patience(era, options)?,
            speed: self.emulate.speed(),
            fabric: self.emulate.fabric()?,
            kv_bandwidth: self.emulate.emulate_kv_bandwidth,
            row_bytes: self.emulate.emulate_kv_bytes_per_token,
            seed: self.emulate.emulate_seed,
            remember: false,
            ..sized
        })
    }

    /// How much of everything there is; flags go before the file.
    fn sized(&self, options: &Options, config: Config) -> Config {
        let kv = &options.kv_cache_config;
        let row_bytes = self.emulate.emulate_kv_bytes_per_token;
        let tokens_per_block = kv.tokens_per_block.unwrap_or(TOKENS_PER_BLOCK);
        let ranks = self.tp_size.or(options.tensor_parallel_size).unwrap_or(1);
        Config {
            tokens_per_block,
            blocks: kv.max_tokens.unwrap_or(262_144) / tokens_per_block.max(1),
            max_batch_size: self
                .max_batch_size
                .or(options.max_batch_size)
                .unwrap_or(256),
            max_num_tokens: self
                .max_num_tokens
                .or(options.max_num_tokens)
                .unwrap_or(8192),
            max_seq_len: self.max_seq_len.or(options.max_seq_len).unwrap_or(131_072),
            host_blocks: kv.host_blocks(row_bytes, tokens_per_block),
            attention_dp: options.enable_attention_dp.then_some(ranks),
            ..config
        }
    }

    fn events(&self, options: &Options, max_seq_len: usize) -> Option<EventsConfig> {
        let kv = &options.kv_cache_config;
        let whole = u32::try_from(max_seq_len).unwrap_or(u32::MAX);
        let events = EventsConfig {
            buffer: kv.event_buffer_max_size,
            windows: kv
                .max_attention_window
                .clone()
                .unwrap_or_else(|| vec![whole]),
            second_manager: self.own.emulate_second_manager,
        };
        (events.buffer > 0).then_some(events)
    }

    fn auth(&self, options: &Options) -> Auth {
        match &options.internal_request_auth_key {
            Some(key) => Auth::Key(key.clone()),
            None if self.own.emulate_auth_required => Auth::Required,
            None => Auth::Off,
        }
    }

    fn patience(&self, era: Era, options: &Options) -> Result<Patience> {
        let factor = self.own.emulate_patience;
        if !(factor > 0.0 && factor.is_finite()) {
            bail!("--emulate-patience must be more than 0");
        }
        let real = Patience::real(era);
        Ok(Patience {
            transfer: options.transfer_timeout().or(real.transfer),
            ..real.scaled(factor)
        })
    }

    fn refuse_what_cannot_work(&self, config: &Config) -> Result<()> {
        if !self.host.is_loopback() {
            bail!("an emulated engine listens on loopback only; give 127.0.0.1 as --host");
        }
        if self.model.len() == 2 && self.model[0] != "serve" {
            bail!("give one model; only the word serve may stand before it");
        }
        if self.backend != "pytorch" {
            bail!("only the backend pytorch is emulated; give it as --backend or leave it away");
        }
        if config.tokens_per_block == 0 || config.blocks == 0 || config.ranks() == 0 {
            bail!("tokens_per_block, max_tokens and --tp_size must leave at least one block");
        }
        if config.max_num_tokens == 0 || config.max_batch_size == 0 {
            bail!("--max_num_tokens and --max_batch_size must be at least 1");
        }
        self.emulate
            .check(config.tokens_per_block, "tokens_per_block")
    }
}

#[cfg(test)]
mod tests;

//! The metrics page of vLLM 0.32.0: every family of a recorded page, the values of those that an engine models filled in.
//!
//! The page's shape is the recording itself (`skeleton`); here is only where values come from. What is not modelled is 0.

mod histogram;
mod skeleton;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

pub use self::histogram::{Histogram, Observed};

use self::skeleton::{Family, Sample};

/// What all ranks of an engine share.
#[derive(Debug, Clone)]
pub struct Engine {
    /// `--served-model-name`.
    pub model_name: String,
    /// Whether it has a NIXL connector, which brings families of its own.
    pub connector: Connector,
    /// Its KV cache.
    pub cache: CacheConfig,
    /// When it started, in seconds since 1970.
    pub started: f64,
}

/// Which part in a handoff an engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connector {
    /// None.
    #[default]
    Absent,
    /// It gives KV away.
    Producer,
    /// It loads KV, whether or not it gives some away, too.
    Consumer,
}

/// What `vllm:cache_config_info` tells.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks, the null block among them.
    pub num_gpu_blocks: u64,
    /// `--num-gpu-blocks-override`.
    pub num_gpu_blocks_override: Option<u64>,
    /// Tokens of the longest sequence.
    pub max_model_len: u64,
    /// `--prefix-caching-hash-algo`.
    pub hash_algo: String,
    /// Whether prefixes are cached.
    pub prefix_caching: bool,
}

/// What one rank has done and does.
#[derive(Debug, Clone, Default)]
pub struct MetricsSnapshot {
    /// Requests in the running batch.
    pub running: u64,
    /// Requests that wait, by reason.
    pub waiting: Waiting,
    /// Waiting requests that need KV from elsewhere, by stage.
    pub kv_fetch: KvFetch,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens looked up in the engine's own prefix cache.
    pub prefix_cache: Lookups,
    /// Tokens looked up elsewhere. Failed transfers count as hits.
    pub external_prefix_cache: Lookups,
    /// Prompt tokens, by where their KV came from.
    pub prompt_tokens: PromptTokens,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Requests, by how they ended.
    pub finished: Finished,
    /// Requests that had to begin again.
    pub preemptions: u64,
    /// What the connector counts.
    pub nixl: NixlCounters,
    /// Distributions.
    pub observed: Observed,
}

/// Requests that wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waiting {
    /// For room.
    pub capacity: u64,
    /// For something that passes: KV on its way, an adapter.
    pub deferred: u64,
}

/// Waiting requests that need KV from elsewhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct KvFetch {
    /// Not begun.
    pub waiting_to_start: u64,
    /// On its way.
    pub in_progress: u64,
    /// There, and the request not running yet.
    pub completed_waiting: u64,
}

/// Tokens that were looked for and found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lookups {
    /// Looked for.
    pub queries: u64,
    /// Found.
    pub hits: u64,
}

/// Prompt tokens by where their KV came from.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptTokens {
    /// Computed.
    pub local_compute: u64,
    /// Found in the prefix cache.
    pub local_cache_hit: u64,
    /// Transferred.
    pub external_kv_transfer: u64,
}

/// Requests by how they ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finished {
    /// At a stop token or string.
    pub stop: u64,
    /// At the most tokens.
    pub length: u64,
    /// The client went away.
    pub abort: u64,
    /// In an error.
    pub error: u64,
    /// In a loop.
    pub repetition: u64,
}

/// What the NIXL connector counts beside its histograms.
#[derive(Debug, Clone, Copy, Default)]
pub struct NixlCounters {
    /// Transfers that failed.
    pub failed_transfers: u64,
    /// Notifications that could not be sent.
    pub failed_notifications: u64,
    /// Requests whose KV nobody fetched within the lease.
    pub kv_expired_reqs: u64,
    /// Notifications about requests that were not held any more.
    pub notifications_after_expiry: u64,
}

/// The page of an engine with these ranks.
pub fn render(engine: &Engine, ranks: &[MetricsSnapshot]) -> String {
    let nothing = [MetricsSnapshot::default()];
    let mut page = String::new();
    let families = skeleton::families().iter();
    for family in families.filter(|family| engine.has(family)) {
        for line in &family.head {
            page.push_str(line);
            page.push('\n');
        }
        let ranks = if family.is_per_rank() {
            ranks
        } else {
            &nothing
        };
        for (rank, snapshot) in ranks.iter().enumerate() {
            for sample in &family.samples {
                engine.write(&mut page, family, sample, rank, snapshot);
            }
        }
    }
    page
}

impl Engine {
    fn has(&self, family: &Family) -> bool {
        let name = family.name;
        match self.connector {
            Connector::Absent => !name.starts_with("vllm:nixl_") && !name.contains("_kv_fetch_"),
            Connector::Producer => !name.contains("_kv_fetch_"),
            Connector::Consumer => true,
        }
    }

    fn write(
        &self,
        page: &mut String,
        family: &Family,
        sample: &Sample,
        rank: usize,
        snapshot: &MetricsSnapshot,
    ) {
        page.push_str(sample.name);
        for (at, (label, recorded)) in sample.labels.iter().enumerate() {
            let value = self.label(sample, label, recorded, rank);
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let before = if at == 0 { '{' } else { ',' };
            write!(page, "{before}{label}=\"{value}\"").expect("a string takes what is written");
        }
        if !sample.labels.is_empty() {
            page.push('}');
        }
        page.push(' ');
        page.push_str(&float(self.value(family, sample, snapshot)));
        page.push('\n');
    }

    fn label(&self, sample: &Sample, label: &str, recorded: &str, rank: usize) -> String {
        let of_cache =
            || (sample.name == "vllm:cache_config_info").then(|| self.cache.label(label));
        match label {
            "engine" => rank.to_string(),
            "model_name" => self.model_name.clone(),
            _ => of_cache().flatten().unwrap_or_else(|| recorded.to_owned()),
        }
    }

    fn value(&self, family: &Family, sample: &Sample, snapshot: &MetricsSnapshot) -> f64 {
        let name = sample.name;
        if name.ends_with("_created") || name == "process_start_time_seconds" {
            return self.started;
        }
        if family.is_histogram() {
            return snapshot.observed.value(family.name, sample);
        }
        match name.strip_prefix("vllm:") {
            Some("cache_config_info") => 1.0,
            Some("engine_sleep_state") if sample.label("sleep_state") == "awake" => 1.0,
            Some("kv_cache_usage_perc") => snapshot.kv_cache_usage,
            Some(name) => exact(snapshot.count(name, sample)),
            None if name == "python_info" => 1.0,
            None => 0.0,
        }
    }
}

impl CacheConfig {
    /// What differs from the recorded engine's.
    fn label(&self, label: &str) -> Option<String> {
        let tokens = self.num_gpu_blocks * u64::from(self.block_size);
        let value = match label {
            "block_size" | "effective_attention_block_size" => self.block_size.to_string(),
            "num_gpu_blocks" => self.num_gpu_blocks.to_string(),
            "num_gpu_blocks_override" => match self.num_gpu_blocks_override {
                Some(blocks) => blocks.to_string(),
                None => "None".to_owned(),
            },
            "kv_cache_size_tokens" => tokens.to_string(),
            "kv_cache_max_concurrency" => float(exact(tokens) / exact(self.max_model_len)),
            "prefix_caching_hash_algo" => self.hash_algo.clone(),
            "enable_prefix_caching" => python_bool(self.prefix_caching).to_owned(),
            _ => return None,
        };
        Some(value)
    }
}

impl MetricsSnapshot {
    fn count(&self, name: &str, sample: &Sample) -> u64 {
        let Self {
            waiting,
            prompt_tokens,
            prefix_cache,
            external_prefix_cache,
            nixl,
            ..
        } = self;
        match name {
            "num_requests_running" => self.running,
            "num_requests_waiting" => waiting.capacity + waiting.deferred,
            "num_requests_waiting_by_reason" => match sample.label("reason") {
                "capacity" => waiting.capacity,
                _ => waiting.deferred,
            },
            "num_requests_kv_fetch_by_stage" => self.kv_fetch.at(sample.label("stage")),
            "prefix_cache_queries_total" => prefix_cache.queries,
            "prefix_cache_hits_total" => prefix_cache.hits,
            "external_prefix_cache_queries_total" => external_prefix_cache.queries,
            "external_prefix_cache_hits_total" => external_prefix_cache.hits,
            "prompt_tokens_total" => prompt_tokens.local_compute + prompt_tokens.cached(),
            "prompt_tokens_by_source_total" => prompt_tokens.from(sample.label("source")),
            "prompt_tokens_cached_total" => prompt_tokens.cached(),
            "prompt_tokens_cached_by_source_total" => match sample.label("source") {
                "device" => prefix_cache.hits,
                "p2p" => external_prefix_cache.hits,
                _ => 0,
            },
            "generation_tokens_total" => self.generation_tokens,
            "request_success_total" => self.finished.by(sample.label("finished_reason")),
            "num_preemptions_total" => self.preemptions,
            "nixl_num_failed_transfers_total" => nixl.failed_transfers,
            "nixl_num_failed_notifications_total" => nixl.failed_notifications,
            "nixl_num_kv_expired_reqs_total" => nixl.kv_expired_reqs,
            "nixl_num_notifications_after_expiry_total" => nixl.notifications_after_expiry,
            _ => 0,
        }
    }
}

impl KvFetch {
    fn at(&self, stage: &str) -> u64 {
        match stage {
            "waiting_to_start" => self.waiting_to_start,
            "in_progress" => self.in_progress,
            _ => self.completed_waiting,
        }
    }
}

impl PromptTokens {
    fn cached(&self) -> u64 {
        self.local_cache_hit + self.external_kv_transfer
    }

    fn from(&self, source: &str) -> u64 {
        match source {
            "local_compute" => self.local_compute,
            "local_cache_hit" => self.local_cache_hit,
            _ => self.external_kv_transfer,
        }
    }
}

impl Finished {
    fn by(&self, reason: &str) -> u64 {
        match reason {
            "stop" => self.stop,
            "length" => self.length,
            "abort" => self.abort,
            "error" => self.error,
            _ => self.repetition,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a metrics page has nothing but floats"
)]
fn exact(count: u64) -> f64 {
    count as f64
}

fn python_bool(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

/// As the Python client writes it: with an exponent from seven digits on.
fn float(value: f64) -> String {
    let plain = format!("{value:?}");
    match plain.split_once('.') {
        Some((whole, fraction)) if whole.len() > 6 && value > 0.0 => {
            let (first, rest) = whole.split_at(1);
            let mantissa = format!("{first}.{rest}{fraction}");
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            format!("{mantissa}e+{:02}", rest.len())
        }
        _ => plain,
    }
}

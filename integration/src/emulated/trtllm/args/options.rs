//! The LLM API's file of options (`--config`, `--extra_llm_api_options`): what of it means something here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::config::Transceiver;

/// What the file says. Of what is not known nothing is said: the real one has far more options.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Options {
    pub(super) kv_cache_config: KvCache,
    pub(super) enable_iter_perf_stats: bool,
    return_perf_metrics: bool,
    perf_metrics_max_requests: usize,
    cache_transceiver_config: Option<CacheTransceiver>,
    pub(super) enable_attention_dp: bool,
    pub(super) tensor_parallel_size: Option<u32>,
    pub(super) max_batch_size: Option<usize>,
    pub(super) max_num_tokens: Option<usize>,
    pub(super) max_seq_len: Option<usize>,
    pub(super) internal_request_auth_key: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct KvCache {
    pub(super) tokens_per_block: Option<u32>,
    pub(super) max_tokens: Option<u32>,
    pub(super) event_buffer_max_size: usize,
    pub(super) max_attention_window: Option<Vec<u32>>,
    /// In bytes.
    host_cache_size: Option<usize>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct CacheTransceiver {
    backend: Option<String>,
    transceiver_runtime: Option<String>,
    kv_transfer_timeout_ms: Option<u64>,
}

impl KvCache {
    /// Blocks of the host's memory.
    pub(super) fn host_blocks(&self, row_bytes: usize, tokens_per_block: u32) -> usize {
        let block = row_bytes * tokens_per_block as usize;
        self.host_cache_size.unwrap_or(0) / block.max(1)
    }
}

impl Options {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("--config {shown} cannot be read"))?;
        // By way of JSON: what is null there is as good as left out.
        let options: Value = serde_saphyr::from_str(&text)
            .with_context(|| format!("{shown} is not the LLM API's options in YAML"))?;
        let options = serde_json::from_value(without_nulls(options));
        options.with_context(|| format!("{shown} has an option of another type"))
    }

    /// Requests whose statistics are kept, if any are.
    pub(super) fn request_stats(&self) -> Option<usize> {
        self.return_perf_metrics
            .then_some(self.perf_metrics_max_requests)
    }

    pub(super) fn transceiver(&self) -> Result<Option<Transceiver>> {
        let Some(config) = &self.cache_transceiver_config else {
            return Ok(None);
        };
        if !matches!(config.backend.as_deref(), None | Some("DEFAULT" | "NIXL")) {
            bail!("only the transceiver backend NIXL is emulated; give it or DEFAULT as backend");
        }
        match config.transceiver_runtime.as_deref() {
            None | Some("CPP") => Ok(Some(Transceiver::Cpp)),
            Some("PYTHON") => Ok(Some(Transceiver::Python)),
            Some(other) => bail!("transceiver_runtime is CPP or PYTHON, not {other}"),
        }
    }

    pub(super) fn transfer_timeout(&self) -> Option<Duration> {
        let config = self.cache_transceiver_config.as_ref()?;
        config.kv_transfer_timeout_ms.map(Duration::from_millis)
    }
}

fn without_nulls(options: Value) -> Value {
    let Value::Object(options) = options else {
        return json!({});
    };
    let said = options.into_iter().filter(|(_, value)| !value.is_null());
    let inner = said.map(|(key, value)| match value {
        Value::Object(_) => (key, without_nulls(value)),
        value => (key, value),
    });
    inner.collect::<serde_json::Map<_, _>>().into()
}

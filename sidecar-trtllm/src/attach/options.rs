//! The engine's own options, a YAML file that its command names.

use std::path::Path;

use baton_daemon::Exit;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// KV events that the engine keeps until they are polled, where its options do not say: an event is what one request stores, and
/// what is dropped is lost for good.
const EVENTS: u64 = 65_536;

/// The options that are read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct EngineOptions {
    pub(crate) kv_cache_config: KvCacheOptions,
    pub(crate) cache_transceiver_config: Option<TransceiverOptions>,
    pub(crate) enable_iter_perf_stats: Option<bool>,
    pub(crate) enable_attention_dp: Option<bool>,
    pub(crate) tensor_parallel_size: Option<u32>,
    pub(crate) max_batch_size: Option<u32>,
    pub(crate) max_num_tokens: Option<u32>,
    pub(crate) max_seq_len: Option<u32>,
    pub(crate) internal_request_auth_key: Option<String>,
}

/// Those about its KV cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct KvCacheOptions {
    pub(crate) enable_block_reuse: Option<bool>,
    pub(crate) event_buffer_max_size: Option<u64>,
    pub(crate) tokens_per_block: Option<u32>,
}

/// Those about handing KV over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TransceiverOptions {
    pub(crate) backend: Option<String>,
    pub(crate) kv_transfer_timeout_ms: Option<u64>,
}

/// A file of options, as it is and as it is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct OptionsFile {
    raw: Map<String, Value>,
    pub(crate) read: EngineOptions,
}

impl OptionsFile {
    /// Reads it.
    pub(crate) fn open(path: &Path) -> Result<Self, Exit> {
        let failed = |why: &dyn std::fmt::Display| {
            Exit::usage(format!(
                "the engine's options {} cannot be read: {why}",
                path.display()
            ))
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        Self::parse(&text).map_err(|why| failed(&why))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let raw = match value {
            Value::Object(raw) => raw,
            Value::Null => Map::new(),
            _ => return Err("they are no mapping".to_owned()),
        };
        let read = serde_json::from_value(Value::Object(without_nulls(&raw)));
        let read = read.map_err(|error| error.to_string())?;
        Ok(Self { raw, read })
    }

    /// Adds what has the engine tell of its KV cache and its load, where nothing is said of that. The file to be used instead,
    /// as JSON, which is YAML; nothing if it is fine as it is.
    pub(crate) fn complete(&mut self) -> Option<String> {
        let cache = &self.read.kv_cache_config;
        let tells =
            cache.event_buffer_max_size.is_some() || cache.enable_block_reuse == Some(false);
        let counts = self.read.enable_iter_perf_stats.is_some();
        if tells && counts {
            return None;
        }
        if !tells {
            let cache = self.raw.entry("kv_cache_config").or_insert(Value::Null);
            if cache.is_null() {
                *cache = json!({});
            }
            cache["event_buffer_max_size"] = EVENTS.into();
            self.read.kv_cache_config.event_buffer_max_size = Some(EVENTS);
        }
        if !counts {
            self.raw
                .insert("enable_iter_perf_stats".to_owned(), true.into());
            self.read.enable_iter_perf_stats = Some(true);
        }
        Some(Value::Object(self.raw.clone()).to_string())
    }
}

/// In these options null is as good as nothing.
fn without_nulls(options: &Map<String, Value>) -> Map<String, Value> {
    let said = options.iter().filter(|(_, value)| !value.is_null());
    let inner = |value: &Value| match value {
        Value::Object(inner) => Value::Object(without_nulls(inner)),
        other => other.clone(),
    };
    said.map(|(key, value)| (key.clone(), inner(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFILL: &str = "
# a prefill engine
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  tokens_per_block: 64
cache_transceiver_config: {backend: NIXL, kv_transfer_timeout_ms: 60000}
enable_attention_dp: false
internal_request_auth_key: null
disable_overlap_scheduler: true
";

    #[test]
    fn what_is_missing_is_added_and_the_rest_stays() {
        let mut options = OptionsFile::parse(PREFILL).unwrap();
        let transceiver = options.read.cache_transceiver_config.clone().unwrap();
        assert_eq!(transceiver.kv_transfer_timeout_ms, Some(60_000));
        assert_eq!(options.read.internal_request_auth_key, None);
        let completed: Value = serde_json::from_str(&options.complete().unwrap()).unwrap();
        assert_eq!(
            completed,
            json!({
                "kv_cache_config": {"free_gpu_memory_fraction": 0.8, "tokens_per_block": 64, "event_buffer_max_size": EVENTS},
                "cache_transceiver_config": {"backend": "NIXL", "kv_transfer_timeout_ms": 60000},
                "enable_attention_dp": false,
                "internal_request_auth_key": null,
                "disable_overlap_scheduler": true,
                "enable_iter_perf_stats": true,
            })
        );
        assert_eq!(options.complete(), None, "once");
        let again = OptionsFile::parse(&completed.to_string()).unwrap();
        assert_eq!(again.read, options.read, "JSON is YAML");
    }

    #[test]
    fn what_was_decided_is_left_alone() {
        for decided in [
            "{kv_cache_config: {event_buffer_max_size: 0}, enable_iter_perf_stats: false}",
            "{kv_cache_config: {enable_block_reuse: false}, enable_iter_perf_stats: true}",
        ] {
            assert_eq!(OptionsFile::parse(decided).unwrap().complete(), None);
        }
    }

    #[test]
    fn an_empty_file_is_one_and_a_wrong_one_is_said() {
        assert!(OptionsFile::parse("").unwrap().complete().is_some());
        assert!(
            OptionsFile::parse("kv_cache_config:\n")
                .unwrap()
                .complete()
                .is_some()
        );
        for wrong in [
            "- a\n",
            "a: [",
            "enable_iter_perf_stats: maybe",
            "kv_cache_config: {tokens_per_block: -1}",
        ] {
            assert!(OptionsFile::parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! What an engine says of itself: KV events, and the numbers on its metrics page.

use std::sync::{Arc, Mutex};

use super::super::core::{Listener, Measured, Stats};
use super::super::pool::Change;
use super::super::process::Life;
use super::super::publisher::Publisher;
use super::super::reach::LAYERS;
use super::super::texts::Texts;
use super::config::Config;
use super::engine::EmulatedVllm;
use super::events::{Event, Form, HashForm, Removed, Stored};
use super::metrics::{
    self, CacheConfig, Connector, Finished, Histogram, KvFetch, Lookups, MetricsSnapshot,
    NixlCounters, Observed, PromptTokens, Waiting,
};

/// What a rank told so far.
pub(super) struct Telling {
    publisher: Option<Arc<Publisher>>,
    block_size: u32,
    observed: Mutex<Observed>,
    hash_form: HashForm,
    /// All that was ever in the cache, if that is to be remembered.
    texts: Option<Arc<Mutex<Texts>>>,
}

impl Telling {
    pub(super) fn new(publisher: Option<Arc<Publisher>>, config: &Config) -> Self {
        let events = config.events.as_ref();
        Self {
            publisher,
            block_size: config.block_size,
            hash_form: events.map_or_else(HashForm::default, |events| events.hash_form),
            observed: Mutex::default(),
            texts: config.remember.then(Arc::default),
        }
    }

    /// What is remembered of the cache.
    pub(super) fn texts(&self) -> Option<Arc<Mutex<Texts>>> {
        self.texts.clone()
    }

    fn event(&self, change: Change) -> Event {
        match change {
            Change::Stored {
                hashes,
                parent,
                tokens,
                keys,
            } => {
                let (lora_name, lora_id) = keys.lora.unzip();
                Event::Stored(Stored {
                    hashes,
                    parent,
                    tokens,
                    block_size: self.block_size,
                    lora_id,
                    lora_name,
                    salt: keys.salt,
                    session_id: keys.session,
                })
            }
            Change::Removed(hash) => Event::Removed(Removed { hashes: vec![hash] }),
            Change::Cleared => Event::Cleared,
            Change::Copied { .. }
            | Change::RemovedFromHost(_)
            | Change::Offloaded(_)
            | Change::Onboarded(_) => {
                unreachable!("the host's memory is not used")
            }
        }
    }
}

impl Listener for Telling {
    fn changed(&self, changes: Vec<Change>) {
        if let Some(texts) = &self.texts {
            texts.lock().unwrap().add(&changes, self.block_size);
        }
        if let Some(publisher) = &self.publisher {
            let events = changes.into_iter().map(|change| self.event(change));
            publisher.publish(Event::write(events.collect(), Form::Maps, self.hash_form));
        }
    }

    fn measured(&self, measured: Vec<Measured>) {
        let mut observed = self.observed.lock().unwrap();
        for measured in &measured {
            observe(&mut observed, measured);
        }
    }
}

fn observe(observed: &mut Observed, measured: &Measured) {
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of tokens and bytes are small"
    )]
    let count = |count: usize| count as f64;
    match *measured {
        Measured::Queued(took) => observed.observe(Histogram::QueueSeconds, took.as_secs_f64()),
        Measured::FirstToken(took) => {
            observed.observe(Histogram::TimeToFirstTokenSeconds, took.as_secs_f64());
        }
        Measured::NextToken(took) => {
            observed.observe(Histogram::InterTokenSeconds, took.as_secs_f64())
        }
        // A step that nothing came out of is not counted.
        Measured::Step { told, .. } if told > 0 => {
            observed.observe(Histogram::IterationTokens, count(told));
        }
        Measured::Step { .. } => {}
        Measured::Transfer {
            took,
            bytes,
            blocks,
        } => {
            observed.observe(Histogram::NixlTransferSeconds, took.as_secs_f64());
            observed.observe(Histogram::NixlPostSeconds, 0.0);
            observed.observe(Histogram::NixlBytes, count(bytes));
            observed.observe(Histogram::NixlDescriptors, count(blocks * LAYERS));
        }
        Measured::Request {
            took,
            prompt,
            computed,
            generated,
            limit,
        } => {
            observed.observe(Histogram::EndToEndSeconds, took.as_secs_f64());
            observed.observe(Histogram::PromptTokens, count(prompt));
            observed.observe(Histogram::PrefillComputedTokens, count(computed));
            observed.observe(Histogram::GenerationTokens, count(generated));
            observed.observe(Histogram::MaxGenerationTokens, count(generated));
            observed.observe(Histogram::ParamsMaxTokens, count(limit));
            observed.observe(Histogram::ParamsN, 1.0);
        }
    }
}

/// `/metrics` of one life.
pub(super) fn page(emulated: &EmulatedVllm, life: &Life) -> String {
    let config = emulated.config();
    let connector = match config.role.as_deref() {
        None => Connector::Absent,
        Some("kv_producer") => Connector::Producer,
        Some(_) => Connector::Consumer,
    };
    let engine = metrics::Engine {
        model_name: config.served_model_name.clone(),
        connector,
        cache: CacheConfig {
            block_size: config.block_size,
            num_gpu_blocks: u64::from(config.blocks),
            num_gpu_blocks_override: Some(u64::from(config.blocks)),
            max_model_len: config.max_model_len as u64,
            hash_algo: "sha256_cbor".to_owned(),
            prefix_caching: true,
        },
        started: life.started,
    };
    let tellings = emulated.inner.tellings.lock().unwrap().clone();
    let ranks = life.ranks.iter().zip(&tellings).map(|(rank, telling)| {
        let observed = telling.observed.lock().unwrap().clone();
        snapshot(&rank.core.stats(), observed)
    });
    let ranks: Vec<_> = ranks.collect();
    metrics::render(&engine, &ranks)
}

fn snapshot(stats: &Stats, observed: Observed) -> MetricsSnapshot {
    let finished = |reason| stats.finished.get(reason).copied().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "blocks are few")]
    let kv_cache_usage = stats.blocks_used as f64 / stats.blocks.max(1) as f64;
    MetricsSnapshot {
        running: stats.running as u64,
        waiting: Waiting {
            capacity: stats.waiting as u64,
            deferred: stats.fetching as u64,
        },
        kv_fetch: KvFetch {
            in_progress: stats.fetching as u64,
            ..KvFetch::default()
        },
        kv_cache_usage,
        prefix_cache: Lookups {
            queries: stats.cache_queries,
            hits: stats.cache_hits,
        },
        external_prefix_cache: Lookups {
            queries: stats.external_queries,
            hits: stats.external_hits,
        },
        prompt_tokens: PromptTokens {
            local_compute: stats.computed_tokens,
            local_cache_hit: stats.cache_hits,
            external_kv_transfer: stats.external_tokens,
        },
        generation_tokens: stats.generated_tokens,
        finished: Finished {
            stop: finished("stop"),
            length: finished("length"),
            abort: finished("abort"),
            error: finished("error"),
            repetition: 0,
        },
        preemptions: stats.preemptions,
        nixl: NixlCounters {
            failed_transfers: stats.failed_transfers,
            failed_notifications: 0,
            kv_expired_reqs: stats.expired,
            notifications_after_expiry: stats.unrecognized_notifications,
        },
        observed,
    }
}

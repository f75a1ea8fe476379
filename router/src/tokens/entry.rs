//! One tokenizer: fetched, tried, used for as long as it makes the engine's tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use baton_proto::model::ModelFiles;
use baton_tokens::{ContentFormat, EngineSettings, Limits, Model};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::parity::{self, Parity, Sample, Tried};
use crate::calls::Calls;
use crate::fleet::Worker;
use crate::metrics::Metrics;

/// One of so many requests is compared with the engine, the first one included.
const SAMPLED: u64 = 256;

/// After how long files are asked for again that could not be had.
const AGAIN: Duration = Duration::from_secs(10);

/// What a tokenizer can be used for.
#[derive(Debug, Clone)]
pub(super) enum Use {
    /// It is being fetched and tried.
    Loading,
    /// It makes the engine's tokens, as far as they were compared.
    Exact(Arc<Model>),
    /// It could not be had; another worker may have it.
    Absent(String, Instant),
    /// It does not make the engine's tokens, or none at all.
    Unfit(String),
}

#[derive(Debug)]
pub(super) struct Entry {
    state: ArcSwap<Use>,
    prompts: AtomicU64,
    compared: AtomicU64,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            state: ArcSwap::from_pointee(Use::Loading),
            prompts: AtomicU64::new(0),
            compared: AtomicU64::new(0),
        }
    }
}

/// What is needed to load a tokenizer.
pub(super) struct Loading {
    pub(super) calls: Calls,
    pub(super) metrics: Metrics,
    pub(super) worker: Arc<Worker>,
    pub(super) digest: String,
    /// The base model's name.
    pub(super) model: String,
    pub(super) context_length: Option<u32>,
}

impl Entry {
    /// Whether it is worth fetching, though it is known.
    pub(super) fn may_try(&self) -> bool {
        matches!(&**self.state.load(), Use::Absent(_, since) if since.elapsed() > AGAIN)
    }

    /// The model, if it makes the engine's tokens.
    pub(super) fn ready(&self) -> Option<Arc<Model>> {
        match &**self.state.load() {
            Use::Exact(model) => Some(Arc::clone(model)),
            _ => None,
        }
    }

    /// Fetches the files, reads them and tries them against the worker's engine.
    pub(super) async fn load(&self, loading: Loading) {
        let state = match read(&loading).await {
            Ok((model, tried)) => {
                let parity = parity::compare(&loading.calls, &loading.worker, tried).await;
                loading.metrics.parity(parity.word());
                match parity {
                    Parity::Equal => Use::Exact(model),
                    Parity::Unknown(why) => Use::Absent(why, Instant::now()),
                    Parity::Different(why) => Use::Unfit(why),
                }
            }
            Err(state) => state,
        };
        match &state {
            Use::Exact(_) => tracing::info!(digest = loading.digest, "tokens of texts are known"),
            Use::Absent(why, _) | Use::Unfit(why) => {
                tracing::warn!(digest = loading.digest, worker = %loading.worker.id(), %why, "tokens of texts are not known");
            }
            Use::Loading => {}
        }
        self.state.store(Arc::new(state));
    }

    /// Whether this prompt is to be compared; its number.
    pub(super) fn sample(&self) -> Option<u64> {
        let turn = self.prompts.fetch_add(1, Ordering::Relaxed);
        turn.is_multiple_of(SAMPLED).then_some(turn)
    }

    /// Compares a client's prompt. One that differs ends the use of the tokenizer.
    pub(super) async fn compare(&self, sample: Sample, turn: u64) {
        let parity = sample.ask().await;
        sample.metrics.parity(parity.word());
        self.compared.fetch_add(1, Ordering::Relaxed);
        if let Parity::Different(why) = parity {
            tracing::error!(%why, turn, worker = %sample.worker.id(), "the tokenizer does not make the engine's tokens: it is used no more");
            self.state.store(Arc::new(Use::Unfit(why)));
        }
    }

    /// In JSON, for operators.
    pub(super) fn shown(&self) -> Value {
        let (mode, why) = match &**self.state.load() {
            Use::Loading => ("loading", None),
            Use::Exact(model) => {
                let shown = model.shown();
                return json!({
                    "mode": "exact",
                    "tokenizer": shown.tokenizer,
                    "cuts_texts": shown.cuts_texts,
                    "memory_bytes": shown.memory_bytes,
                    "templates": shown.templates.iter().map(|(name, template)| {
                        json!({"name": name, "template": format!("{template:?}")})
                    }).collect::<Vec<_>>(),
                    "prompts": self.prompts.load(Ordering::Relaxed),
                    "compared": self.compared.load(Ordering::Relaxed),
                });
            }
            Use::Absent(why, _) => ("absent", Some(why.clone())),
            Use::Unfit(why) => ("unfit", Some(why.clone())),
        };
        json!({"mode": mode, "why": why})
    }
}

async fn read(loading: &Loading) -> Result<(Arc<Model>, Vec<Tried>), Use> {
    let absent = |why: String| Use::Absent(why, Instant::now());
    let files = loading.calls.model_files(&loading.worker).await;
    let files = files.map_err(|error| absent(error.to_string()))?;
    if files.digest() != loading.digest {
        return Err(absent(
            "the files are not those that were announced".to_owned(),
        ));
    }
    let (context_length, model_name) = (loading.context_length, loading.model.clone());
    let read = tokio::task::spawn_blocking(move || {
        let files = files_of(files, context_length)?;
        let model = Model::load(&files, Limits::default()).map_err(|error| error.to_string())?;
        let tried = parity::tried(&model, &model_name);
        Ok((Arc::new(model), tried))
    });
    let read = read.await.unwrap_or_else(|died| Err(died.to_string()));
    read.map_err(Use::Unfit)
}

fn files_of(
    files: ModelFiles,
    context_length: Option<u32>,
) -> Result<baton_tokens::ModelFiles, String> {
    let prompting = files.prompting;
    let content_format = match prompting.content_format.as_deref() {
        None => None,
        Some("string") => Some(ContentFormat::String),
        Some("openai") => Some(ContentFormat::OpenAi),
        Some(other) => return Err(format!("the content format {other:?} is not known")),
    };
    Ok(baton_tokens::ModelFiles {
        tokenizer: files.tokenizer,
        tokenizer_config: files.tokenizer_config,
        special_tokens_map: files.special_tokens_map,
        config: files.config,
        chat_template: files.chat_template,
        engine: EngineSettings {
            context_length,
            content_format,
            default_template_arguments: prompting.default_template_arguments,
            exclude_tools_when_not_chosen: prompting.exclude_tools_when_not_chosen,
            part_separator: prompting.part_separator,
        },
    })
}

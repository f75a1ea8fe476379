//! An engine that is an object in this very process and has no HTTP server: a user's `LLM` (wire page, in-process surface).
//!
//! No request comes to it through Baton, so it takes none: routers are told what it holds and how busy it is
//! ([`Role::Observed`]). How that is understood is the same as with a server. It lives as long as the object does, so it has one
//! life.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use baton_daemon::Exit;
use baton_daemon::config::Common;
use baton_daemon::run::Arguments;
use baton_proto::model::ModelFiles;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::worker::{EngineKind, Role, WorkerInfo};
use baton_proto::{Error, Incarnation, RequestId};
use baton_sidecar_core::args::CoreArgs;
use baton_sidecar_core::engine::{
    Attached, Engine, EngineLoad, Following, Foreseen, Leg, Offer, Prefilled, Returned, Verdict,
};
use baton_sidecar_core::model_files::PromptConfig;
use baton_sidecar_core::view::Feed;
use baton_transfer::Agent;
use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::events::tracker::Known;
use crate::follow::Ears;
use crate::refusal::unusable;
use crate::source::Source;

/// What routers are told of an `LLM` in this process.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "baton.attach", disable_help_flag = true)]
pub struct ObservedArgs {
    /// Name under which the model is known.
    #[arg(long, value_name = "NAME", env = "BATON_MODEL")]
    pub model: Option<String>,
    /// The engine's version, in its own words.
    #[arg(long, value_name = "VERSION", default_value = "unknown")]
    pub engine_version: String,
    /// The engine's kv_cache_config.tokens_per_block.
    #[arg(long, value_name = "TOKENS", env = "BATON_TOKENS_PER_BLOCK", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens_per_block: Option<u32>,
    /// The engine's kv_cache_config.event_buffer_max_size.
    #[arg(long, value_name = "EVENTS", env = "BATON_EVENT_BUFFER_MAX_SIZE")]
    pub event_buffer_max_size: Option<u64>,
    /// Ranks of attention data parallelism.
    #[arg(long, value_name = "N", env = "BATON_ATTENTION_DP_RANKS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub attention_dp_ranks: u32,
    /// The engine's max_batch_size.
    #[arg(long, value_name = "N")]
    pub max_batch_size: Option<u32>,
    /// The engine's max_num_tokens.
    #[arg(long, value_name = "N")]
    pub max_num_tokens: Option<u32>,
    /// The engine's max_seq_len.
    #[arg(long, value_name = "N")]
    pub max_seq_len: Option<u32>,
    /// Count blocks as plain although their names do not follow from their tokens.
    #[arg(long, env = "BATON_TRUST_BLOCK_NAMES")]
    pub trust_block_names: bool,
    /// Directory with the engine's tokenizer.json.
    #[arg(long, value_name = "DIR", env = "BATON_MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// What all sidecars have.
    #[command(flatten)]
    pub core: CoreArgs,
}

impl Arguments for ObservedArgs {
    fn common(&self) -> &Common {
        &self.core.common
    }
}

/// Runs a sidecar beside an engine in this process until it is asked to stop. `started` becomes true once routers can reach it.
pub async fn run(
    args: ObservedArgs,
    source: impl Source,
    started: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), Exit> {
    let core = args.core.clone();
    let engine = ObservedEngine {
        args,
        source,
        ears: Ears::default(),
        files: Mutex::default(),
        started,
    };
    baton_sidecar_core::run::run(engine, core, None, stop).await
}

/// An engine of which only what it tells once is known.
#[derive(Debug)]
struct ObservedEngine<S> {
    args: ObservedArgs,
    source: S,
    ears: Ears,
    files: Mutex<Option<Read>>,
    started: watch::Sender<bool>,
}

/// The files that decide its prompts' tokens, once they were looked for.
#[derive(Debug, Clone)]
struct Read(Option<(Arc<ModelFiles>, String)>);

impl<S: Source> ObservedEngine<S> {
    fn info(&self, files: &Read) -> WorkerInfo {
        let args = &self.args;
        let heard = self.ears.ranks.load(std::sync::atomic::Ordering::Relaxed);
        WorkerInfo {
            engine_version: args.engine_version.clone(),
            models: args.model.iter().cloned().collect(),
            ranks: args.attention_dp_ranks.max(heard),
            block_size: args.tokens_per_block,
            max_sequences: args.max_batch_size,
            max_batched_tokens: args.max_num_tokens,
            context_length: args.max_seq_len,
            tokenizer_digest: files.0.as_ref().map(|(_, digest)| digest.clone()),
            ..WorkerInfo::unknown(EngineKind::Trtllm, Role::Observed)
        }
    }

    /// Read once: they do not change while the engine lives.
    async fn files(&self) -> Read {
        let known = self.lock().clone();
        if let Some(known) = known {
            return known;
        }
        let prompts = PromptConfig {
            directory: self.args.model_dir.clone(),
            ..PromptConfig::default()
        };
        let read = tokio::task::spawn_blocking(move || {
            let files = prompts.read(None)?;
            let digest = files.digest();
            Ok::<_, String>((files, digest))
        });
        let read = read.await.unwrap_or_else(|died| Err(died.to_string()));
        let read =
            read.inspect_err(|why| tracing::info!(%why, "routers cannot know the tokens of texts"));
        self.lock().insert(Read(read.ok())).clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Read>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No leg gets as far as the engine: the core refuses them by the worker's role.
fn no_requests() -> Error {
    unusable("no request reaches an engine that is only observed")
}

impl<S: Source> Engine for ObservedEngine<S> {
    fn base_url(&self) -> &'static str {
        "http://observed.invalid"
    }

    fn authorization(&self) -> Option<&HeaderValue> {
        None
    }

    async fn attach(&self) -> Result<Attached, Error> {
        self.started.send_replace(true);
        let files = self.files().await;
        Ok(Attached {
            incarnation: self.ears.lives.attach().await?,
            info: self.info(&files),
        })
    }

    /// It is part of this process.
    async fn alive(&self) -> Result<(), Error> {
        self.ears.lives.check()
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        self.ears.lives.attached()
    }

    fn follow(&self, feed: &Feed) -> Option<Following> {
        let known = Known {
            block_size: self.args.tokens_per_block,
            buffer: self.args.event_buffer_max_size.filter(|buffer| *buffer > 0),
            trust_names: self.args.trust_block_names,
        };
        let ears = self.ears.clone();
        Some(ears.follow(
            self.source.clone(),
            known,
            self.args.attention_dp_ranks,
            feed,
        ))
    }

    async fn agent(&self) -> Result<Agent, Error> {
        Err(no_requests())
    }

    async fn reset_cache(&self) -> Result<(), Error> {
        Err(no_requests())
    }

    fn model_files(&self) -> Option<Arc<ModelFiles>> {
        let read = self.lock().clone()?;
        read.0.map(|(files, _)| files)
    }

    async fn tokenize(&self, _: &str) -> Result<Vec<u32>, Error> {
        Err(no_requests())
    }

    async fn load(&self) -> Result<EngineLoad, Error> {
        let sample = self
            .ears
            .sample
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(sample.report(Instant::now()))
    }

    fn offer(&self) -> Option<Offer> {
        None
    }

    fn prefill_body(&self, _: &ClientRequest, _: Option<&TransferMetadata>, _: Leg<'_>) -> String {
        String::new()
    }

    fn read_prefill(&self, _: &[u8]) -> Result<Prefilled, Error> {
        Err(no_requests())
    }

    fn unread(&self, _: &RequestId, _: Route) -> Option<Foreseen> {
        None
    }

    fn reports_reused(&self) -> bool {
        false
    }

    fn may_fetch_foreign_kv(&self) -> bool {
        false
    }

    async fn abort(&self, _: &RequestId) -> Result<(), Error> {
        Ok(())
    }

    async fn give_back(&self, _: &TransferMetadata) -> Result<Returned, Error> {
        Err(no_requests())
    }

    fn extends_leases(&self) -> bool {
        false
    }

    async fn keep(&self, _: &[TransferMetadata]) -> Result<std::time::Duration, Error> {
        Err(no_requests())
    }

    fn decode_body(&self, _: &ClientRequest, _: &Ticket, _: Leg<'_>) -> Result<String, Error> {
        Err(no_requests())
    }

    fn local_body(&self, _: &ClientRequest, _: Leg<'_>) -> String {
        String::new()
    }

    fn judge_event(&self, _: &[u8]) -> Verdict {
        Verdict::Preamble
    }

    fn judge_answer(&self, _: &[u8]) -> Result<(), String> {
        Err("is of no engine".to_owned())
    }

    fn is_answer_to(&self, _: &[u8], _: &RequestId) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;

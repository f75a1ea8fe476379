//! Tokens of texts and chats, by the files of the engine that will compute them.
//!
//! A sidecar that has its engine's tokenizer says so by a digest. The first worker of a digest is asked for the files, and
//! its engine for the tokens of a few requests ([`parity`]): only files that give the very same ones are used, and now and
//! then one of the clients' requests is compared as well. Engines that share files and version share all of this.
//!
//! Encoding runs on threads of its own, a few at a time. Where no files make a prompt's tokens, its engine is asked for them if
//! that is worth it ([`asking`]); else its text has to do, and where there is none, its size ([`Known`]).

mod asking;
mod entry;
mod known;
mod parity;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::worker::{EngineKind, WorkerInfo};
use baton_tokens::{Chat, Model, Unknown};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::asking::Asking;
use self::entry::Entry;
use crate::calls::Calls;
use crate::fleet::{Snapshot, Worker, WorkerView};
use crate::metrics::Metrics;
use crate::view::{BYTES_PER_TOKEN, Prompt, Text};

pub use asking::ASKED;
pub use known::{Known, Tokenised};

/// Longest wait for a thread: beyond it a request goes on without tokens.
const PATIENCE: Duration = Duration::from_millis(500);

/// Tokenizers that are kept. A fleet has a few models; whoever has its token cannot have the router load files without end.
const MOST_KEPT: usize = 64;

/// Words for how a prompt's tokens are known, or why they are not.
pub const PROMPTS: [&str; 12] = [
    "token_ids",
    "tokenised",
    "no_tokenizer",
    "busy",
    "failed",
    "too_long",
    "multimodal",
    "time_dependent",
    "no_template",
    "template",
    "refused",
    "unsupported",
];

/// Words for what a comparison of tokens came to.
pub const COMPARISONS: [&str; 3] = ["equal", "unknown", "different"];

/// Engines that make the same tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    digest: String,
    engine: EngineKind,
    version: String,
}

impl Key {
    fn of(info: &WorkerInfo) -> Option<Self> {
        Some(Self {
            digest: info.tokenizer_digest.clone()?,
            engine: info.engine,
            version: info.engine_version.clone(),
        })
    }
}

/// All tokenizers of a fleet.
pub struct Tokenizers {
    known: Mutex<HashMap<Key, Arc<Entry>>>,
    threads: Arc<Semaphore>,
    asking: Arc<Asking>,
    calls: Calls,
    metrics: Metrics,
}

impl Tokenizers {
    /// None is known yet. Engines are asked for tokens for as long as `wait`, if it is not 0.
    pub fn new(calls: Calls, metrics: Metrics, wait: Duration) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            known: Mutex::default(),
            threads: Arc::new(Semaphore::new(cores.div_ceil(2))),
            asking: Asking::new(calls.clone(), metrics.clone(), wait),
            calls,
            metrics,
        })
    }

    /// A worker introduces itself: if its tokenizer is a new one, it is fetched and tried.
    pub fn meet(self: &Arc<Self>, worker: &Arc<Worker>, info: &WorkerInfo) {
        let Some((key, model)) = Key::of(info).zip(info.models.first()) else {
            return;
        };
        let mut known = self.lock();
        if known.len() >= MOST_KEPT || known.get(&key).is_some_and(|entry| !entry.may_try()) {
            return;
        }
        let entry = Arc::new(Entry::default());
        known.insert(key.clone(), Arc::clone(&entry));
        drop(known);
        let loading = entry::Loading {
            calls: self.calls.clone(),
            metrics: self.metrics.clone(),
            worker: Arc::clone(worker),
            digest: key.digest,
            model: model.clone(),
            context_length: info.context_length,
        };
        tokio::spawn(async move { entry.load(loading).await });
    }

    /// Forgets tokenizers that no worker has any more.
    pub fn sweep(&self, snapshot: &Snapshot) {
        let infos = snapshot.workers.iter().filter_map(WorkerView::info);
        let used: HashSet<Key> = infos.filter_map(Key::of).collect();
        self.lock().retain(|key, _| used.contains(key));
        self.asking.sweep(snapshot);
    }

    /// What is known of a request's prompt.
    pub async fn prompt(
        self: &Arc<Self>,
        request: &ClientRequest,
        model: Option<&str>,
        snapshot: &Snapshot,
    ) -> Tokenised {
        let tokenised = if let Some(prompt) = Prompt::given(request) {
            self.metrics.prompt("token_ids");
            Tokenised {
                prompt: Some(prompt),
                known: Known::Given,
                ..Tokenised::default()
            }
        } else {
            match self.by_files(request, model, snapshot).await {
                Ok(tokens) => {
                    self.metrics.prompt("tokenised");
                    Tokenised::by_tokens(request, tokens, Known::Files)
                }
                Err(why) => {
                    self.metrics.prompt(why.word());
                    self.otherwise(request, model, snapshot, &why).await
                }
            }
        };
        self.metrics.prompt_known(tokenised.known);
        if let Some(because) = tokenised.because {
            let by = tokenised.known.word();
            tracing::debug!(by, because, "no files make tokens of a prompt");
        }
        tokenised
    }

    /// The tokens of a request's prompt by the model's files.
    async fn by_files(
        &self,
        request: &ClientRequest,
        model: Option<&str>,
        snapshot: &Snapshot,
    ) -> Result<Vec<Vec<u32>>, Why> {
        let known = self.entry(model, snapshot);
        let known = known.and_then(|(worker, entry)| Some((worker, entry.ready()?, entry)));
        let (worker, ready, entry) = known.ok_or(Why::NoTokenizer)?;
        let tokens = self.tokens(request, ready).await?;
        // The engine tells the tokens of one prompt at a time.
        let turn = match &tokens[..] {
            [_] => entry.sample(),
            _ => None,
        };
        if let Some(turn) = turn {
            let compare = parity::Sample {
                calls: self.calls.clone(),
                metrics: self.metrics.clone(),
                worker,
                body: request.body().clone(),
                tokens: tokens.concat(),
            };
            tokio::spawn(async move { entry.compare(compare, turn).await });
        }
        Ok(tokens)
    }

    /// What is known of a prompt that no files make tokens of. Its text is remembered even if an engine tells its tokens: the
    /// next turn may find nobody who does.
    async fn otherwise(
        &self,
        request: &ClientRequest,
        model: Option<&str>,
        snapshot: &Snapshot,
        why: &Why,
    ) -> Tokenised {
        let text = Text::of(request).filter(|_| why.has_text());
        let tokens = match &text {
            Some(_) if why.may_ask() => self.asking.tokens(request, model, snapshot).await,
            _ => None,
        };
        let known = if text.is_some() {
            Known::Text
        } else {
            Known::Size
        };
        let tokenised = match tokens {
            Some(tokens) => Tokenised::by_tokens(request, vec![tokens], Known::Engine),
            None => Tokenised {
                known,
                ..Tokenised::default()
            },
        };
        Tokenised {
            text,
            because: Some(why.word()),
            local: why.local(),
            ..tokenised
        }
    }

    async fn tokens(
        &self,
        request: &ClientRequest,
        model: Arc<Model>,
    ) -> Result<Vec<Vec<u32>>, Why> {
        let threads = Arc::clone(&self.threads);
        let thread = tokio::time::timeout(PATIENCE, threads.acquire_owned());
        let Ok(Ok(thread)) = thread.await else {
            return Err(Why::Busy);
        };
        let (route, body) = (request.route(), request.body().clone());
        let timer = std::time::Instant::now();
        let work = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            tokens_of(&model, route, &body)
        });
        let tokens = work.await.map_err(|_| Why::Failed)?;
        self.metrics.tokenised(timer.elapsed().as_secs_f64());
        tokens.map_err(|why| {
            tracing::debug!(%why, "a prompt's tokens are not known");
            Why::Unknown(why)
        })
    }

    /// The tokenizer of those who serve a model, and one of them.
    fn entry(&self, model: Option<&str>, snapshot: &Snapshot) -> Option<(Arc<Worker>, Arc<Entry>)> {
        let serves = |view: &&WorkerView| {
            let named = model.is_none_or(|model| view.serves(model));
            view.is_well() && named
        };
        let mut able = snapshot.workers.iter().filter(serves);
        let known = self.lock();
        able.find_map(|view| {
            let entry = known.get(&Key::of(view.info()?)?)?;
            Some((Arc::clone(&view.worker), Arc::clone(entry)))
        })
    }

    /// In JSON, for operators.
    pub fn shown(&self) -> Value {
        let known = self.lock();
        let shown = known.iter().map(|(key, entry)| {
            let mut shown = entry.shown();
            shown["digest"] = json!(key.digest);
            shown["engine"] = json!(key.engine);
            shown["engine_version"] = json!(key.version);
            shown
        });
        shown.collect()
    }

    /// How engines answer that are asked for tokens, for operators.
    pub fn asking_shown(&self) -> Value {
        self.asking.shown()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens of a request's prompt, or of each of its prompts.
fn tokens_of(model: &Model, route: Route, body: &[u8]) -> Result<Vec<Vec<u32>>, Unknown> {
    if route == Route::ChatCompletions {
        return Ok(vec![model.chat(&Chat::from(body))?.tokens]);
    }
    model.completions(body)
}

/// Why a request goes on without tokens.
enum Why {
    /// There are no files, or they are not trusted.
    NoTokenizer,
    /// All threads are busy.
    Busy,
    /// The thread died.
    Failed,
    Unknown(Unknown),
}

impl Why {
    fn word(&self) -> &'static str {
        match self {
            Self::NoTokenizer => "no_tokenizer",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Unknown(Unknown::TooLong { .. }) => "too_long",
            Self::Unknown(Unknown::Multimodal(_)) => "multimodal",
            Self::Unknown(Unknown::TimeDependent) => "time_dependent",
            Self::Unknown(Unknown::NoTemplate) => "no_template",
            Self::Unknown(Unknown::Template(_)) => "template",
            Self::Unknown(Unknown::Refused(_) | Unknown::Body(_)) => "refused",
            Self::Unknown(_) => "unsupported",
        }
    }

    /// Whether an engine could tell the tokens. What the tokenizer here found too long, or no chat, would burden it for nothing,
    /// and of what is not text alone it would tell a part.
    fn may_ask(&self) -> bool {
        !matches!(
            self,
            Self::Unknown(Unknown::TooLong { .. } | Unknown::Refused(_) | Unknown::Body(_))
        )
    }

    /// Whether prompts whose texts begin alike do so themselves: images are named by what they are, not by what they show.
    fn has_text(&self) -> bool {
        !matches!(self, Self::Unknown(Unknown::Multimodal(_)))
    }

    /// Two engines may make different prompts of it, and the longer one ends the second (vLLM 0.32.0).
    fn local(&self) -> Option<&'static str> {
        match self {
            Self::Unknown(Unknown::TimeDependent) => Some("its chat template looks at the clock"),
            Self::Unknown(Unknown::Multimodal(_)) => Some("it is not text alone"),
            _ => None,
        }
    }
}

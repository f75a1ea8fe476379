//! Tokens of texts and chats, by the files of the engine that will compute them.
//!
//! A sidecar that has its engine's tokenizer says so by a digest. The first worker of a digest is asked for the files, and
//! its engine for the tokens of a few requests ([`parity`]): only files that give the very same ones are used, and now and
//! then one of the clients' requests is compared as well. Engines that share files and version share all of this.
//!
//! Encoding runs on threads of its own, a few at a time; a request whose tokens cannot be known goes on without.

mod entry;
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

use self::entry::Entry;
use crate::calls::Calls;
use crate::fleet::{Snapshot, Worker, WorkerState, WorkerView};
use crate::metrics::Metrics;
use crate::view::Prompt;

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

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenised {
    /// It, if its tokens are known.
    pub prompt: Option<Prompt>,
    /// Why it must not be split, if so: two engines may make different prompts of it.
    pub local: Option<&'static str>,
}

/// All tokenizers of a fleet.
pub struct Tokenizers {
    known: Mutex<HashMap<Key, Arc<Entry>>>,
    threads: Arc<Semaphore>,
    calls: Calls,
    metrics: Metrics,
}

impl Tokenizers {
    /// None is known yet.
    pub fn new(calls: Calls, metrics: Metrics) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            known: Mutex::default(),
            threads: Arc::new(Semaphore::new(cores.div_ceil(2))),
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
    }

    /// The prompt of a request.
    pub async fn prompt(
        self: &Arc<Self>,
        request: &ClientRequest,
        model: Option<&str>,
        snapshot: &Snapshot,
    ) -> Tokenised {
        if let Some(prompt) = Prompt::given(request) {
            self.metrics.prompt("token_ids");
            return Tokenised {
                prompt: Some(prompt),
                local: None,
            };
        }
        let Some((worker, entry)) = self.entry(model, snapshot) else {
            self.metrics.prompt("no_tokenizer");
            return Tokenised::default();
        };
        let Some(ready) = entry.ready() else {
            self.metrics.prompt("no_tokenizer");
            return Tokenised::default();
        };
        let tokens = match self.tokens(request, ready).await {
            Ok(tokens) => tokens,
            Err(why) => {
                self.metrics.prompt(why.word());
                return Tokenised {
                    prompt: None,
                    local: why.local(),
                };
            }
        };
        self.metrics.prompt("tokenised");
        if let Some(turn) = entry.sample() {
            let compare = parity::Sample {
                calls: self.calls.clone(),
                metrics: self.metrics.clone(),
                worker,
                body: request.body().clone(),
                tokens: tokens.clone(),
            };
            tokio::spawn(async move { entry.compare(compare, turn).await });
        }
        Tokenised {
            prompt: Prompt::tokenised(request, tokens),
            local: None,
        }
    }

    async fn tokens(&self, request: &ClientRequest, model: Arc<Model>) -> Result<Vec<u32>, Why> {
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
            view.state() == WorkerState::Ready && named
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens of a request with one prompt.
fn tokens_of(model: &Model, route: Route, body: &[u8]) -> Result<Vec<u32>, Unknown> {
    if route == Route::ChatCompletions {
        return Ok(model.chat(&Chat::from(body))?.tokens);
    }
    let mut prompts = model.completions(body)?;
    match prompts.pop() {
        Some(prompt) if prompts.is_empty() => Ok(prompt),
        _ => Err(Unknown::Unsupported("a batch".to_owned())),
    }
}

/// Why a request goes on without tokens.
enum Why {
    /// All threads are busy.
    Busy,
    /// The thread died.
    Failed,
    Unknown(Unknown),
}

impl Why {
    fn word(&self) -> &'static str {
        match self {
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

    /// Two engines may make different prompts of it, and the longer one ends the second (vLLM 0.32.0).
    fn local(&self) -> Option<&'static str> {
        match self {
            Self::Unknown(Unknown::TimeDependent) => Some("its chat template looks at the clock"),
            Self::Unknown(Unknown::Multimodal(_)) => Some("it is not text alone"),
            _ => None,
        }
    }
}

//! The engine's own tokens of a prompt, where no files make them: asked for when that is worth it, and not waited for beyond a
//! small part of what computing the prompt would take.
//!
//! A question that is not answered in time is still heard to its end, so that the same prompt is known when it comes again, and
//! so that what asking takes is learnt ([`Record`]). Who does not answer, or too late, is not asked for a while.

mod question;
mod record;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_planner::Work;
use baton_proto::request::ClientRequest;
use baton_proto::{ErrorKind, WorkerId};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rand::Rng;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::question::{Key, Question};
use self::record::Record;
use super::BYTES_PER_TOKEN;
use crate::calls::Calls;
use crate::fleet::{Snapshot, Worker, WorkerView};
use crate::metrics::Metrics;

/// Part of a prompt's computing that may be waited for its tokens: what they are worth is a part of it, too.
const SHARE: f64 = 0.1;

/// What is not worth so much time, or is in fewer bytes, is not worth a look at all.
const LEAST: Duration = Duration::from_millis(3);
const LEAST_BYTES: usize = 512;

/// How long an answer is heard out that comes too late: it may be for a prompt that comes again.
const HEARD_OUT: Duration = Duration::from_secs(2);

/// Tokens of answers that are remembered, 32 MiB of them.
const MOST_REMEMBERED: u64 = 8 << 20;

/// How long an answer is believed: an engine may begin anew with another tokenizer under the same name.
const BELIEVED: Duration = Duration::from_secs(600);

/// Words for what became of asking an engine for tokens.
pub const ASKED: [&str; 6] = [
    "answered",
    "remembered",
    "late",
    "refused",
    "failed",
    "avoided",
];

/// An answer, and when it came.
type Told = (Instant, Arc<[u32]>);

#[derive(Debug, Clone)]
struct ByTokens;

impl Weighter<Key, Told> for ByTokens {
    fn weight(&self, _: &Key, told: &Told) -> u64 {
        told.1.len() as u64 + 32
    }
}

/// Asks engines for the tokens of prompts.
pub(super) struct Asking {
    calls: Calls,
    metrics: Metrics,
    /// The most that is waited, whatever a prompt is worth. None if nobody is to be asked.
    longest: Option<Duration>,
    remembered: Cache<Key, Told, ByTokens>,
    records: Mutex<HashMap<WorkerId, Record>>,
}

impl Asking {
    pub(super) fn new(calls: Calls, metrics: Metrics, longest: Duration) -> Arc<Self> {
        Arc::new(Self {
            calls,
            metrics,
            longest: (!longest.is_zero()).then_some(longest),
            remembered: Cache::with_weighter(1024, MOST_REMEMBERED, ByTokens),
            records: Mutex::default(),
        })
    }

    /// The tokens of a request's prompt, if they are worth asking for and come in time.
    pub(super) async fn tokens(
        self: &Arc<Self>,
        request: &ClientRequest,
        model: Option<&str>,
        snapshot: &Snapshot,
    ) -> Option<Vec<u32>> {
        let longest = self.longest?;
        let able = able(model, snapshot);
        let patience = patience(request.body().len(), &able)?.min(longest);
        let question = Question::of(request)?;
        if let Some((since, tokens)) = self.remembered.get(&question.key)
            && since.elapsed() < BELIEVED
        {
            self.metrics.asked("remembered");
            return Some(tokens.to_vec());
        }
        let worker = Arc::clone(&self.choose(&question, &able, patience)?.worker);
        let (answer, answered) = oneshot::channel();
        let (asking, asked) = (Arc::clone(self), Arc::clone(&worker));
        tokio::spawn(async move {
            // Whoever asked may have gone on without.
            let _ = answer.send(asking.ask(&asked, question, patience).await);
        });
        let (outcome, tokens) = match tokio::time::timeout(patience, answered).await {
            Ok(Ok(Ok(tokens))) => ("answered", Some(tokens)),
            Ok(Ok(Err(ErrorKind::EngineRejected))) => ("refused", None),
            Ok(_) => ("failed", None),
            Err(_) => ("late", None),
        };
        self.metrics.asked(outcome);
        self.note(worker.id(), tokens.is_some());
        tokens.map(|tokens| tokens.to_vec())
    }

    /// Whoever has the fewest questions of those who would answer this one in time, one of them by chance. It counts as asked.
    fn choose<'a>(
        &self,
        question: &Question,
        able: &[&'a WorkerView],
        patience: Duration,
    ) -> Option<&'a WorkerView> {
        let (mut records, now) = (self.lock(), Instant::now());
        let mut worth = false;
        let mut free: Option<(u32, &WorkerView)> = None;
        let first = rand::rng().random_range(0..able.len().max(1));
        for view in able.iter().cycle().skip(first).take(able.len()) {
            let record = records.entry(view.id().clone()).or_default();
            let in_time = record.is_worth(question.body.len(), patience, now);
            worth |= in_time;
            let fewer = free.is_none_or(|(least, _)| record.running() < least);
            if in_time && fewer && record.may_be_asked(now) {
                free = Some((record.running(), view));
            }
        }
        let Some((_, chosen)) = free else {
            if worth {
                self.metrics.asked("avoided");
            }
            return None;
        };
        records.entry(chosen.id().clone()).or_default().asked();
        Some(chosen)
    }

    async fn ask(
        &self,
        worker: &Worker,
        question: Question,
        patience: Duration,
    ) -> Result<Arc<[u32]>, ErrorKind> {
        let begun = Instant::now();
        let (bytes, time) = (question.body.len(), HEARD_OUT.max(patience));
        let answer = self.calls.tokenize(worker, question.body, time).await;
        let took = begun.elapsed();
        self.metrics.tokens_told(took.as_secs_f64());
        self.with(worker.id(), |record, _| record.ended());
        match answer {
            Ok(tokens) => {
                let tokens: Arc<[u32]> = tokens.into();
                let told = (Instant::now(), Arc::clone(&tokens));
                self.remembered.insert(question.key, told);
                self.with(worker.id(), |record, now| record.took(bytes, took, now));
                Ok(tokens)
            }
            Err(error) => {
                tracing::debug!(worker = %worker.id(), %error, "an engine did not tell a prompt's tokens");
                Err(error.kind)
            }
        }
    }

    fn note(&self, worker: &WorkerId, told: bool) {
        let avoided = self.with(worker, |record, now| {
            if told {
                record.told();
                return None;
            }
            record.missed(now)
        });
        if let Some(avoided) = avoided {
            tracing::warn!(%worker, seconds = avoided.as_secs_f64(), "its engine does not tell tokens in time: texts have to do meanwhile");
        }
    }

    fn with<T>(&self, worker: &WorkerId, change: impl FnOnce(&mut Record, Instant) -> T) -> T {
        let mut records = self.lock();
        change(records.entry(worker.clone()).or_default(), Instant::now())
    }

    /// Forgets workers that are gone.
    pub(super) fn sweep(&self, snapshot: &Snapshot) {
        self.lock()
            .retain(|worker, _| snapshot.place_of(worker).is_some());
    }

    /// In JSON, for operators.
    pub(super) fn shown(&self) -> Value {
        let (records, now) = (self.lock(), Instant::now());
        let shown = records.iter().map(|(worker, record)| {
            let mut shown = record.shown(now);
            shown["worker"] = json!(worker);
            shown
        });
        shown.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever could be given a prompt to this model.
fn able<'a>(model: Option<&str>, snapshot: &'a Snapshot) -> Vec<&'a WorkerView> {
    let serves = |view: &&WorkerView| {
        let named = model.is_none_or(|model| view.serves(model));
        view.is_well() && named
    };
    snapshot.workers.iter().filter(serves).collect()
}

/// How long it may take to learn the tokens of a prompt in so many bytes. None if they are worth nothing: there is only one who
/// could be given it, or computing it takes no time.
fn patience(bytes: usize, able: &[&WorkerView]) -> Option<Duration> {
    if able.len() < 2 || bytes < LEAST_BYTES {
        return None;
    }
    let work = Work {
        tokens: bytes as u64 / BYTES_PER_TOKEN,
        cached: 0,
    };
    let seconds = able
        .iter()
        .map(|view| view.worker.books().prefill_seconds(work));
    let least = seconds.min_by(f64::total_cmp)?;
    let patience = Duration::try_from_secs_f64(least * SHARE).unwrap_or(Duration::MAX);
    (patience >= LEAST).then_some(patience)
}

//! Everything a router counts. Labels are types; their values are bounded.

use std::sync::atomic::AtomicU64;

use baton_daemon::metrics::{Counter, Family, Gauge, Histogram, Registry, seconds};
use baton_proto::{Error, ErrorKind};
use prometheus_client::encoding::EncodeLabelSet;

use crate::fleet::breaker::Phase;
use crate::fleet::{WorkerState, WorkerView};
use crate::prefill::Waste;
use crate::tokens::Known;
use crate::view::{Cause, Proofs, Resync, TIERS};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlanLabel {
    plan: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    plan: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabel {
    kind: &'static str,
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PromptLabel {
    known: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabel {
    granted: &'static str,
}

/// A counter of seconds.
type Seconds = Counter<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KnownLabel {
    by: &'static str,
}

/// Everything a router counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Requests between arrival and the last byte of their answer.
    pub in_flight: Gauge,
    requests: Family<EndLabel, Counter>,
    failures: Family<FailureLabel, Counter>,
    /// Handoffs that could not be settled: the answer was withheld and computed anew.
    pub unsettled: Counter,
    /// KV bytes that split requests had moved.
    pub handoff_bytes: Counter,
    workers: Family<StateLabel, Gauge>,
    first_token: Family<PlanLabel, Histogram, fn() -> Histogram>,
    prompts: Family<PromptLabel, Counter>,
    tokenise: Histogram,
    prompts_known: Family<KnownLabel, Counter>,
    /// Requests that wait for room in a worker.
    pub queued: Gauge,
    queue: Histogram,
    refused: Family<ReasonLabel, Counter>,
    asked: Family<OutcomeLabel, Counter>,
    asking: Histogram,
    parity: Family<OutcomeLabel, Counter>,
    suspicions: Family<CauseLabel, Gauge>,
    breakers: Family<StateLabel, Gauge>,
    retries: Family<RetryLabel, Counter>,
    wasted: Family<CauseLabel, Seconds>,
    view_blocks: Family<TierLabel, Gauge>,
    view_ranks: Family<StateLabel, Gauge>,
    view_resyncs: Family<ReasonLabel, Counter>,
    index_bytes: Gauge,
    /// Predicted against reported cache hits.
    pub proofs: Proofs,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            in_flight: Gauge::default(),
            requests: Family::default(),
            failures: Family::default(),
            unsettled: Counter::default(),
            handoff_bytes: Counter::default(),
            workers: Family::default(),
            first_token: Family::new_with_constructor(|| Histogram::new(seconds())),
            prompts: Family::default(),
            tokenise: Histogram::new(seconds()),
            prompts_known: Family::default(),
            queued: Gauge::default(),
            queue: Histogram::new(seconds()),
            refused: Family::default(),
            asked: Family::default(),
            asking: Histogram::new(seconds()),
            parity: Family::default(),
            suspicions: Family::default(),
            breakers: Family::default(),
            retries: Family::default(),
            wasted: Family::default(),
            view_blocks: Family::default(),
            view_ranks: Family::default(),
            view_resyncs: Family::default(),
            index_bytes: Gauge::default(),
            proofs: Proofs::default(),
        }
    }
}

impl Metrics {
    /// Registers all families.
    pub fn register(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "in_flight",
            "Requests between arrival and the last byte of their answer",
            self.in_flight.clone(),
        );
        families.register(
            "requests",
            "Requests that ended, by the plan that served them and by outcome",
            self.requests.clone(),
        );
        families.register(
            "failures",
            "Attempts that failed before the commit point, by error kind and stage",
            self.failures.clone(),
        );
        families.register(
            "unsettled",
            "Answers withheld because their handoff could not be settled",
            self.unsettled.clone(),
        );
        families.register(
            "handoff_bytes",
            "KV bytes handed over for split requests; decode pulls what it lacks of them",
            self.handoff_bytes.clone(),
        );
        families.register(
            "workers",
            "Workers by state: joining, ready, suspect, draining",
            self.workers.clone(),
        );
        families.register(
            "first_token_seconds",
            "From a request's arrival to the first token for its client, by plan",
            self.first_token.clone(),
        );
        self.register_failures(registry);
        self.register_tokens(registry);
        self.register_fallbacks(registry);
        self.register_queue(registry);
        self.register_views(registry);
    }

    fn register_failures(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "breakers",
            "Workers by what their breaker lets through: closed, open, half_open",
            self.breakers.clone(),
        );
        families.register(
            "retries",
            "Attempts after a failed one, by whether the retry budget granted them",
            self.retries.clone(),
        );
        families.register(
            "wasted_prefill_seconds",
            "Seconds of prefills whose KV was never used, from call to end, by cause",
            self.wasted.clone(),
        );
    }

    fn register_tokens(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "prompts",
            "Requests by how their prompt's tokens are known: token_ids, tokenised, or why they are not",
            self.prompts.clone(),
        );
        families.register(
            "tokenise_seconds",
            "From a request's body to its prompt's tokens, once a thread was free",
            self.tokenise.clone(),
        );
        families.register(
            "tokenizer_comparisons",
            "Tokens compared with the engine's own, at attach and by sample: equal, different, unknown",
            self.parity.clone(),
        );
    }

    fn register_queue(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "queued",
            "Requests that wait in the router because whoever should serve them has no room",
            self.queued.clone(),
        );
        families.register(
            "queue_seconds",
            "How long requests have waited in the router for room, however that ended",
            self.queue.clone(),
        );
        families.register(
            "queue_refusals",
            "Requests told to come again: the queue was full, they gave way to another model, or the wait was or would be too long",
            self.refused.clone(),
        );
    }

    fn register_fallbacks(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "prompts_planned",
            "Requests by what their plan knew of the prompt: tokens given, by files or told by an engine, its text, its size",
            self.prompts_known.clone(),
        );
        families.register(
            "tokens_asked",
            "Prompts whose tokens an engine was to tell, by what came of it",
            self.asked.clone(),
        );
        families.register(
            "tokens_asked_seconds",
            "What engines take to tell a prompt's tokens, waited for or not",
            self.asking.clone(),
        );
    }

    fn register_views(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("router");
        families.register(
            "view_blocks",
            "KV blocks that workers are known to hold, by tier, summed over all ranks",
            self.view_blocks.clone(),
        );
        families.register(
            "view_ranks",
            "Data-parallel ranks by what is known of their KV cache: exact, uncertain, unwatched",
            self.view_ranks.clone(),
        );
        families.register(
            "view_resyncs",
            "Views that did not fit what the sidecar said and were built anew, by reason",
            self.view_resyncs.clone(),
        );
        families.register(
            "suspicions",
            "Workers of which predictions do not come true, by likely cause; /readyz names them",
            self.suspicions.clone(),
        );
        families.register(
            "index_bytes",
            "Memory of the index of KV blocks",
            self.index_bytes.clone(),
        );
        let proofs = [
            (
                "cached_tokens_compared_requests",
                "Requests with an exact prediction whose engine reported its cached tokens",
                &self.proofs.requests,
            ),
            (
                "cached_tokens_predicted",
                "Prompt tokens predicted to be cached, of the requests that were compared",
                &self.proofs.predicted,
            ),
            (
                "cached_tokens_reported",
                "Prompt tokens that engines reported as cached, of the requests that were compared",
                &self.proofs.reported,
            ),
            (
                "cached_tokens_mispredicted_requests",
                "Compared requests whose engine reported another number than was predicted",
                &self.proofs.mispredicted,
            ),
        ];
        for (name, help, counter) in proofs {
            families.register(name, help, counter.clone());
        }
    }

    /// A request's prompt is known, or why it is not.
    pub fn prompt(&self, known: &'static str) {
        self.prompts.get_or_create(&PromptLabel { known }).inc();
    }

    /// A prompt's tokens were made.
    pub fn tokenised(&self, seconds: f64) {
        self.tokenise.observe(seconds);
    }

    /// A request is planned by this.
    pub fn prompt_known(&self, known: Known) {
        let by = known.word();
        self.prompts_known.get_or_create(&KnownLabel { by }).inc();
    }

    /// A request waited for room for so long.
    pub fn waited(&self, seconds: f64) {
        self.queue.observe(seconds);
    }

    /// A request was told to come again.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// How many requests were planned by what, so far.
    pub fn prompts_planned(&self) -> impl Iterator<Item = (Known, u64)> {
        Known::ALL.into_iter().map(|known| {
            let by = known.word();
            let count = self.prompts_known.get_or_create(&KnownLabel { by }).get();
            (known, count)
        })
    }

    /// An engine was to tell a prompt's tokens.
    pub fn asked(&self, outcome: &'static str) {
        self.asked.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// An engine has told a prompt's tokens, or has failed to.
    pub fn tokens_told(&self, seconds: f64) {
        self.asking.observe(seconds);
    }

    /// A tokenizer was compared with an engine.
    pub fn parity(&self, outcome: &'static str) {
        self.parity.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A view was given up and is built anew.
    pub fn resynchronised(&self, reason: Resync) {
        let reason = reason.word();
        self.view_resyncs
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    fn trust(&self, workers: &[WorkerView]) {
        let causes = workers.iter().map(|view| view.worker.trust().causes());
        let all: Vec<Cause> = causes.flatten().collect();
        for cause in Cause::ALL {
            let label = CauseLabel {
                cause: cause.word(),
            };
            let workers = all.iter().filter(|other| **other == cause).count();
            let workers = i64::try_from(workers).unwrap_or(i64::MAX);
            self.suspicions.get_or_create(&label).set(workers);
        }
    }

    /// How much is known of the workers' KV caches.
    pub fn views(&self, workers: &[WorkerView], index_bytes: usize) {
        self.trust(workers);
        self.show_breakers(workers);
        let mut blocks = [0_u64; TIERS.len()];
        let [mut exact, mut uncertain, mut unwatched] = [0_usize; 3];
        for worker in workers {
            let of_worker = worker.worker.view().blocks();
            blocks
                .iter_mut()
                .zip(of_worker)
                .for_each(|(sum, more)| *sum += more);
            let known = worker.known_ranks();
            let certain = known.iter().filter(|rank| rank.certain).count();
            exact += certain;
            uncertain += known.len() - certain;
            let ranks = worker.info().map_or(0, |info| info.ranks);
            unwatched += usize::try_from(ranks)
                .unwrap_or(usize::MAX)
                .saturating_sub(known.len());
        }
        for ((.., tier), blocks) in TIERS.iter().zip(blocks) {
            let gauge = self.view_blocks.get_or_create(&TierLabel { tier });
            gauge.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        }
        let states = [
            ("exact", exact),
            ("uncertain", uncertain),
            ("unwatched", unwatched),
        ];
        for (state, ranks) in states {
            let gauge = self.view_ranks.get_or_create(&StateLabel { state });
            gauge.set(i64::try_from(ranks).unwrap_or(i64::MAX));
        }
        self.index_bytes
            .set(i64::try_from(index_bytes).unwrap_or(i64::MAX));
    }

    /// A request wanted to be tried again.
    pub fn retry(&self, granted: bool) {
        let granted = if granted { "yes" } else { "no" };
        self.retries.get_or_create(&RetryLabel { granted }).inc();
    }

    /// A prefill was for nothing.
    pub fn wasted(&self, cause: Waste, seconds: f64) {
        let label = CauseLabel {
            cause: cause.word(),
        };
        self.wasted.get_or_create(&label).inc_by(seconds);
    }

    fn show_breakers(&self, workers: &[WorkerView]) {
        for phase in Phase::ALL {
            let in_phase = |view: &&WorkerView| view.worker.breaker().phase() == phase;
            let count = workers.iter().filter(in_phase).count();
            let label = StateLabel {
                state: phase.word(),
            };
            let gauge = self.breakers.get_or_create(&label);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A request ended.
    pub fn request_ended(&self, plan: &'static str, failure: Option<ErrorKind>) {
        let outcome = failure.map_or("ok", ErrorKind::word);
        self.requests
            .get_or_create(&EndLabel { plan, outcome })
            .inc();
    }

    /// An attempt failed before the commit point.
    pub fn attempt_failed(&self, error: &Error) {
        let label = FailureLabel {
            kind: error.kind.word(),
            stage: error.stage.word(),
        };
        self.failures.get_or_create(&label).inc();
    }

    /// A request's first token is on its way to the client.
    pub fn first_token(&self, plan: &'static str, seconds: f64) {
        self.first_token
            .get_or_create(&PlanLabel { plan })
            .observe(seconds);
    }

    /// The fleet changed.
    pub fn workers(&self, workers: &[WorkerView]) {
        for state in WorkerState::ALL {
            let count = workers
                .iter()
                .filter(|worker| worker.state() == state)
                .count();
            let gauge = self.workers.get_or_create(&StateLabel {
                state: state.word(),
            });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

//! Everything a router counts. Labels are types; their values are bounded.

use baton_daemon::metrics::{Counter, Family, Gauge, Histogram, Registry, seconds};
use baton_proto::{Error, ErrorKind};
use prometheus_client::encoding::EncodeLabelSet;

use crate::fleet::{WorkerState, WorkerView};

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

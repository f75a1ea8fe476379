//! What every request of a router shares.

use std::sync::Arc;

use baton_proto::request::ClientRequest;
use baton_proto::token::{FleetToken, Secret};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::args::RouterArgs;
use crate::budget::RetryBudget;
use crate::calls::Calls;
use crate::fleet::{Fleet, Snapshot};
use crate::metrics::Metrics;
use crate::planner::Planning;
use crate::prefill::bypass::{self, Facts};
use crate::queue::Queue;
use crate::view::{self, Prediction};

/// What every request of a router shares.
pub struct Router {
    /// Flags.
    pub args: RouterArgs,
    /// The fleet's secret.
    pub token: FleetToken,
    /// What clients must present one of, if there are any.
    pub api_keys: Vec<Secret>,
    /// All workers.
    pub fleet: Arc<Fleet>,
    /// Plans, and the books that they are made from.
    pub planning: Planning,
    /// Calls to their sidecars.
    pub calls: Calls,
    /// Who waits for room.
    pub queue: Arc<Queue>,
    /// What may be tried again.
    pub retries: RetryBudget,
    /// What is counted.
    pub metrics: Metrics,
    /// Cancelled when it was asked to stop.
    pub draining: CancellationToken,
    /// Who may enter.
    pub places: Arc<Semaphore>,
}

impl Router {
    /// A router that knows no worker yet.
    pub fn new(args: RouterArgs, token: FleetToken, metrics: Metrics) -> Arc<Self> {
        let calls = Calls::new(&token);
        let planning = Planning::new(&args);
        let planner = Arc::clone(&planning.planner);
        let ttl = args.approximate_ttl();
        let wait = args.tokenize_wait();
        let queue = Queue::new(args.max_queued, metrics.clone());
        let fleet = Fleet::new(
            calls.clone(),
            metrics.clone(),
            planner,
            Arc::clone(&queue),
            ttl,
            wait,
        );
        Arc::new(Self {
            fleet,
            queue,
            planning,
            draining: CancellationToken::new(),
            places: Arc::new(Semaphore::new(args.max_requests)),
            api_keys: args.api_key.iter().map(|key| Secret::new(key)).collect(),
            calls,
            retries: RetryBudget::new(args.retry_percent),
            args,
            token,
            metrics,
        })
    }

    /// What a plan needs to know of a request.
    pub async fn facts(&self, request: &ClientRequest) -> Facts {
        let model: Option<String> = request.object().get_as("model");
        let snapshot = self.fleet.snapshot();
        let tokenizers = self.fleet.tokenizers();
        let tokenised = tokenizers
            .prompt(request, model.as_deref(), &snapshot)
            .await;
        bypass::facts(request, tokenised)
    }

    /// How much of a request's prompt each worker has in its cache.
    pub fn predict(&self, snapshot: &Snapshot, facts: &Facts) -> Prediction {
        let (prompt, model) = (facts.prompt.as_ref(), facts.model.as_deref());
        let prediction = match &facts.text {
            Some(text) if prompt.is_none() => {
                view::predict_by_text(snapshot, model, text, facts.prompt_tokens)
            }
            _ => view::predict(self.fleet.index(), snapshot, model, prompt),
        };
        prediction.noting(facts.text.as_ref())
    }
}

//! The fleet: all workers this router knows, and what it knows of each.
//!
//! A sidecar registers; for as long as its registration holds, a session ([`session`]) watches it. Whoever plans takes an
//! immutable [`Snapshot`]; nobody plans on data that changes underneath.

pub mod breaker;
pub mod links;
mod pairs;
mod probe;
mod quarantine;
mod reservation;
mod session;
mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
mod worker;

pub use pairs::{Blame, Knowledge, Word};
pub use probe::Admission;
pub use reservation::Reservation;
pub use snapshot::Snapshot;
pub use worker::{Worker, WorkerState, WorkerView};

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use baton_daemon::http::base_url;
use baton_index::Index;
use baton_planner::{Kind, Planner};
use baton_proto::watch::{Registered, Registration};
use baton_proto::worker::{EngineKind, Role, WorkerInfo};
use baton_proto::{
    Epoch, Error, ErrorKind, Incarnation, PROTOCOL_VERSION, Source, Stage, WorkerId,
};
use http::Uri;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::pairs::Pairs;
use self::quarantine::Quarantines;
use crate::calls::Calls;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::tokens::Tokenizers;

/// How long a registration holds. Sidecars renew it three times in that time.
pub const LEASE: Duration = Duration::from_secs(6);

/// Longest time between two looks at registrations while the router runs.
const SWEPT_LATE: Duration = Duration::from_secs(2);

/// Most workers of a fleet. A hostile or broken holder of the token cannot make the router grow without bound.
const MOST_WORKERS: usize = 4096;

struct Member {
    epoch: Epoch,
    lapses: Instant,
    worker: Arc<Worker>,
    _session: DropGuard,
}

/// What workers of one kind share.
type KindName = (EngineKind, Role, Vec<String>);

/// All workers this router knows.
pub struct Fleet {
    members: Mutex<HashMap<WorkerId, Member>>,
    pairs: Pairs,
    quarantines: Quarantines,
    snapshot: ArcSwap<Snapshot>,
    index: Arc<Index>,
    planner: Arc<Planner>,
    tokenizers: Arc<Tokenizers>,
    kinds: Mutex<HashMap<KindName, Arc<Kind>>>,
    /// When registrations were last looked at.
    swept: Mutex<Instant>,
    /// How long a worker without exact events is believed to hold what it computed.
    approximate_ttl: Duration,
    queue: Arc<Queue>,
    calls: Calls,
    metrics: Metrics,
}

impl Fleet {
    /// A fleet without workers. One whose events do not tell is believed to hold what it computed for `approximate_ttl`.
    /// Engines are asked for tokens for as long as `tokenize_wait`; `queue` is told of room that may be there.
    pub fn new(
        calls: Calls,
        metrics: Metrics,
        planner: Arc<Planner>,
        queue: Arc<Queue>,
        approximate_ttl: Duration,
        tokenize_wait: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            members: Mutex::default(),
            pairs: Pairs::default(),
            swept: Mutex::new(Instant::now()),
            quarantines: Quarantines::default(),
            snapshot: ArcSwap::default(),
            index: Arc::default(),
            planner,
            kinds: Mutex::default(),
            tokenizers: Tokenizers::new(calls.clone(), metrics.clone(), tokenize_wait),
            approximate_ttl,
            queue,
            calls,
            metrics,
        })
    }

    /// All workers, at this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Which worker holds which KV blocks.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Tokenizers of all models.
    pub fn tokenizers(&self) -> &Arc<Tokenizers> {
        &self.tokenizers
    }

    /// A sidecar says that it is there, or goodbye.
    pub fn register(self: &Arc<Self>, registration: Registration) -> Result<Registered, Error> {
        let refuse =
            |kind, message: String| Err(Error::new(kind, Source::Sidecar, Stage::Fleet, message));
        if registration.protocol != PROTOCOL_VERSION {
            let theirs = registration.protocol;
            let message = format!(
                "the sidecar speaks protocol {theirs}, this router {PROTOCOL_VERSION}: use one version"
            );
            return refuse(ErrorKind::Protocol, message);
        }
        let Some(address) = base_url(&registration.address) else {
            let message = format!("the address {:?} is no http URL", registration.address);
            return refuse(ErrorKind::BadRequest, message);
        };
        let mut members = self.lock();
        if let Some(member) = members.get_mut(&registration.worker) {
            if member.epoch > registration.epoch {
                let message = format!(
                    "another sidecar, started later, holds the worker id {}",
                    registration.worker
                );
                return refuse(ErrorKind::Conflict, message);
            }
            if member.epoch == registration.epoch && !registration.leave {
                member.lapses = Instant::now() + LEASE;
                return Ok(registered());
            }
        } else if registration.leave {
            return Ok(registered());
        } else if members.len() >= MOST_WORKERS {
            return refuse(
                ErrorKind::Overloaded,
                format!("this router knows {MOST_WORKERS} workers already"),
            );
        }
        if registration.leave {
            tracing::info!(worker = %registration.worker, "worker left");
            members.remove(&registration.worker);
        } else {
            let member = self.welcome(&registration, address);
            members.insert(registration.worker, member);
        }
        drop(members);
        self.refresh();
        Ok(registered())
    }

    fn welcome(self: &Arc<Self>, registration: &Registration, address: Uri) -> Member {
        tracing::info!(worker = %registration.worker, %address, "worker joined");
        let worker = Arc::new(Worker::new(
            registration.worker.clone(),
            registration.epoch,
            address,
            Arc::clone(&self.index),
            Arc::clone(&self.queue),
            self.approximate_ttl,
        ));
        let stop = CancellationToken::new();
        let session =
            session::Session::new(Arc::clone(self), Arc::clone(&worker), registration.epoch);
        tokio::spawn(session.run(self.calls.clone(), stop.clone()));
        Member {
            epoch: registration.epoch,
            lapses: Instant::now() + LEASE,
            worker,
            _session: stop.drop_guard(),
        }
    }

    /// Workers of one kind learn from each other how fast they are.
    fn kind_of(&self, info: &WorkerInfo) -> Arc<Kind> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever still is of a kind keeps it.
        kinds.retain(|_, kind| Arc::strong_count(kind) > 1);
        let name = (info.engine, info.role, info.models.clone());
        Arc::clone(kinds.entry(name).or_default())
    }

    /// These two engines turned out not to be able to hand over, in their present lives.
    pub fn pair_broken(&self, prefill: &Incarnation, decode: &Incarnation) {
        self.pairs.broken((prefill.clone(), decode.clone()));
        self.refresh();
    }

    /// A handoff between these two engines was settled.
    pub fn pair_proven(&self, prefill: &Incarnation, decode: &Incarnation) {
        if self.pairs.proven((prefill.clone(), decode.clone())) {
            self.refresh();
        }
    }

    /// A handoff between these two engines failed in them.
    pub fn pair_suspected(&self, prefill: &Incarnation, decode: &Incarnation) -> Blame {
        let blame = self.pairs.suspect(&(prefill.clone(), decode.clone()));
        self.refresh();
        blame
    }

    /// KV that reached this worker's engine cannot be trusted, and its sidecar knows.
    pub fn quarantined(&self, worker: &Worker) {
        self.quarantines.note(worker);
    }

    /// Forgets workers whose registration lapsed and what else is over, and shows how much is known. To be called twice a
    /// second.
    pub fn sweep(&self) {
        let now = Instant::now();
        let lost = self.lost_time(now);
        let mut members = self.lock();
        for member in members.values_mut() {
            member.lapses += lost;
        }
        let before = members.len();
        members.retain(|id, member| {
            let holds = member.lapses > now;
            if !holds {
                tracing::warn!(worker = %id, "worker is gone: its registration was not renewed");
                member.worker.fell_silent();
            }
            holds
        });
        let changed = members.len() != before;
        drop(members);
        if changed {
            self.refresh();
        }
        let snapshot = self.snapshot();
        for worker in &snapshot.workers {
            worker.worker.expected().sweep();
            worker.worker.texts().sweep();
            if let Some(info) = worker.info() {
                self.tokenizers.meet(&worker.worker, info);
            }
        }
        self.tokenizers.sweep(&snapshot);
        self.metrics
            .views(&snapshot.workers, self.index.memory_bytes());
    }

    /// Time in which this router itself stood still. Whoever could not be heard then is not held to it.
    fn lost_time(&self, now: Instant) -> Duration {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now - std::mem::replace(&mut *swept, now);
        if since > SWEPT_LATE {
            tracing::warn!(seconds = since.as_secs_f64(), "this router stood still");
            since
        } else {
            Duration::ZERO
        }
    }

    /// Makes a new snapshot. Called whenever something that plans depend on has changed.
    fn refresh(&self) {
        let members = self.lock();
        let mut workers: Vec<WorkerView> = members
            .values()
            .map(|member| WorkerView::of(&member.worker))
            .collect();
        workers.sort_by(|one, other| one.id().cmp(other.id()));
        let alive: HashSet<&Incarnation> =
            workers.iter().filter_map(WorkerView::incarnation).collect();
        let pairs = self.pairs.of(&alive);
        self.metrics.workers(&workers);
        // Stored under the lock, so that an older view never replaces a newer one.
        self.snapshot.store(Arc::new(Snapshot::new(workers, pairs)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn registered() -> Registered {
    Registered {
        lease_ms: u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::token::FleetToken;

    use super::*;

    fn fleet_of_one() -> Arc<Fleet> {
        let token = FleetToken::new("a-token-of-sixteen-letters").unwrap();
        let metrics = Metrics::default();
        let fleet = Fleet::new(
            Calls::new(&token),
            metrics.clone(),
            Arc::default(),
            Queue::new(0, metrics),
            LEASE,
            Duration::ZERO,
        );
        let registration = Registration {
            protocol: PROTOCOL_VERSION,
            worker: "a".parse().unwrap(),
            epoch: Epoch(1),
            address: "http://127.0.0.1:1".to_owned(),
            leave: false,
        };
        fleet.register(registration).unwrap();
        fleet
    }

    async fn pass(fleet: &Fleet, time: Duration, step: Duration) -> usize {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::advance(step).await;
            fleet.sweep();
        }
        fleet.snapshot().workers.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_is_not_renewed_lapses() {
        let fleet = fleet_of_one();
        let half = Duration::from_millis(500);
        assert_eq!(pass(&fleet, Duration::from_secs(5), half).await, 1);
        assert_eq!(pass(&fleet, Duration::from_secs(2), half).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_router_stood_still_is_held_against_nobody() {
        let fleet = fleet_of_one();
        let half = Duration::from_millis(500);
        assert_eq!(pass(&fleet, Duration::from_secs(3), half).await, 1);
        let minute = Duration::from_secs(60);
        assert_eq!(pass(&fleet, minute, minute).await, 1);
        assert_eq!(pass(&fleet, Duration::from_secs(2), half).await, 1);
        assert_eq!(pass(&fleet, Duration::from_secs(3), half).await, 0);
    }
}

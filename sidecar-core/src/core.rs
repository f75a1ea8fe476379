//! The state that every part of a sidecar shares.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use baton_daemon::Exit;
use baton_daemon::http::{Client, ClientLimits};
use baton_proto::route::Route;
use baton_proto::token::FleetToken;
use baton_proto::watch::{Hello, SidecarState};
use baton_proto::{
    Epoch, Error, ErrorKind, Incarnation, PROTOCOL_VERSION, RequestId, Source, Stage, WorkerId,
};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::CoreArgs;
use crate::engine::{Attached, Engine, Following};
use crate::ledger::{Ledger, Unread};
use crate::link::Links;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::record::Recorder;
use crate::relay::admission::Admission;
use crate::relay::in_flight::InFlight;
use crate::relay::pace::Pace;
use crate::relay::progress::Progress;
use crate::relay::used::UsedTickets;
use crate::routers::Routers;
use crate::status::{EngineStatus, Published, state_of};
use crate::view::KvView;

/// Which life of the engine is followed, and what follows it.
#[derive(Default)]
struct Followed {
    life: Option<Incarnation>,
    _following: Option<Following>,
}

/// The state that every part of a sidecar shares.
pub struct Core<E> {
    /// The engine beside us.
    pub engine: E,
    /// Who this is.
    pub worker: WorkerId,
    /// Which life of the sidecar.
    pub epoch: Epoch,
    /// The fleet's secret.
    pub token: FleetToken,
    /// Bounds.
    pub args: CoreArgs,
    /// Connections to the engine.
    pub client: Client,
    /// Handoffs of this engine.
    pub ledger: Ledger,
    /// Handoffs this engine has used.
    pub used: UsedTickets,
    /// Other sidecars.
    pub(crate) peers: Peers,
    /// Its end of links to other hosts.
    pub(crate) links: Links,
    /// Routers that are there.
    pub routers: Routers,
    /// What its KV cache holds.
    pub view: Arc<KvView>,
    /// Who may enter.
    pub admission: Admission,
    /// How fast it prefills.
    pub pace: Pace,
    /// Who is inside.
    pub in_flight: InFlight,
    /// Whether the engine works on what it was given.
    pub progress: Arc<Progress>,
    /// What is counted.
    pub metrics: Metrics,
    /// Cancelled when no new work is taken any more.
    pub draining: CancellationToken,
    /// Cancelled when the sidecar is about to end: streams that never end by themselves do.
    pub closing: CancellationToken,
    /// What the engine is still to be told of legs that are over: the sidecar does not end before that.
    pub(crate) farewells: TaskTracker,
    /// Wakes the watchdog before its time.
    pub look_again: Notify,
    /// Wakes all that keep this sidecar registered when a watch stream ends.
    pub unwatched: Notify,
    quarantine: ArcSwapOption<String>,
    followed: Mutex<Followed>,
    status: Mutex<EngineStatus>,
    published: watch::Sender<Published>,
}

impl<E: Engine> Core<E> {
    /// A sidecar whose engine was not seen yet.
    pub fn new(
        engine: E,
        args: CoreArgs,
        token: FleetToken,
        metrics: Metrics,
    ) -> Result<Arc<Self>, Exit> {
        let worker = args.worker_id.clone();
        let epoch = baton_daemon::fresh::epoch();
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            worker: worker.clone(),
            incarnation: None,
            epoch,
            info: None,
        };
        let start = Published {
            hello,
            state: SidecarState::Starting,
            load: baton_proto::load::LoadReport::default(),
        };
        // uvicorn, which serves vLLM and SGLang, closes a connection that is idle for 5 s.
        let limits = ClientLimits {
            connect: std::time::Duration::from_secs(2),
            idle: std::time::Duration::from_secs(3),
        };
        let recorder = args.record.as_deref().map(Recorder::open).transpose()?;
        Ok(Arc::new(Self {
            client: Client::new(limits),
            ledger: Ledger::new(token.clone(), metrics.tickets.clone()),
            used: UsedTickets::default(),
            peers: Peers::new(&token),
            links: Links::default(),
            routers: Routers::default(),
            view: KvView::new(metrics.view.clone(), recorder),
            admission: Admission::new(args.max_concurrency, args.max_queue, metrics.queued.clone()),
            pace: Pace::default(),
            in_flight: InFlight::default(),
            progress: Arc::new(Progress::new(args.progress_floor())),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            farewells: TaskTracker::new(),
            look_again: Notify::new(),
            unwatched: Notify::new(),
            quarantine: ArcSwapOption::empty(),
            followed: Mutex::default(),
            status: Mutex::new(EngineStatus::Starting),
            published: watch::Sender::new(start),
            engine,
            worker,
            epoch,
            token,
            args,
            metrics,
        }))
    }

    /// The engine, if work may be given to it now.
    pub fn ready(&self, stage: Stage) -> Result<Arc<Attached>, Error> {
        let refuse = |kind, source, message: &str| {
            Err(Error::new(kind, source, stage, message).retry(baton_proto::Retry::Safe))
        };
        if self.draining.is_cancelled() {
            return refuse(
                ErrorKind::Draining,
                Source::Sidecar,
                "this worker is draining",
            );
        }
        match &*self.status() {
            EngineStatus::Up(attached) if !attached.info.role.serves() => refuse(
                ErrorKind::NoWorker,
                Source::Sidecar,
                "this worker is observed only: no request reaches its engine",
            ),
            EngineStatus::Up(attached) => Ok(Arc::clone(attached)),
            EngineStatus::Starting => refuse(
                ErrorKind::NoWorker,
                Source::Engine,
                "the engine has not started yet",
            ),
            EngineStatus::Down => refuse(
                ErrorKind::Unreachable,
                Source::Engine,
                "the engine does not answer",
            ),
        }
    }

    /// What the engine, in this life, holds for a prefill whose answer was not read, as far as that can be told.
    pub fn unread(&self, request: &RequestId, route: Route, life: &Incarnation) -> Option<Unread> {
        let foreseen = self.engine.unread(request, route)?;
        Some(Unread {
            foreseen,
            incarnation: life.clone(),
        })
    }

    /// Life of the engine as last seen.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.status()
            .attached()
            .map(|attached| attached.incarnation.clone())
    }

    /// The engine was looked at. A new life of it voids what the old one held before anybody is told of it.
    pub fn engine_seen(&self, seen: EngineStatus) {
        if let Some(attached) = seen.attached() {
            if self.incarnation().as_ref() != Some(&attached.incarnation) {
                tracing::info!(incarnation = %attached.incarnation, "attached to an engine");
                self.metrics.incarnations.inc();
                self.progress.forget();
            }
            self.ledger.void_others(&attached.incarnation);
            self.follow(attached);
        }
        self.metrics
            .engine_up
            .set(i64::from(seen.attached().is_some()));
        *self.status() = seen;
        self.publish();
    }

    /// Each life of the engine has an event stream of its own. One that goes on is not left, whatever its engine looked
    /// like in between.
    fn follow(&self, attached: &Attached) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if followed.life.as_ref() == Some(&attached.incarnation) {
            return;
        }
        // Its cache began empty.
        self.quarantine.store(None);
        if let Some(recorder) = self.view.recorder() {
            let Attached { incarnation, info } = attached;
            recorder.attached(&json!({"incarnation": incarnation, "info": info}));
        }
        let feed = self.view.begin(&attached.info);
        *followed = Followed {
            life: Some(attached.incarnation.clone()),
            _following: self.engine.follow(&feed),
        };
    }

    /// Name of the engine's last quarantine.
    pub fn quarantine_name(&self) -> Option<Arc<String>> {
        self.quarantine.load_full()
    }

    /// KV that reached the engine cannot be trusted: no later request may hit what is cached now.
    pub fn quarantine(&self) {
        // A name and no number: what another sidecar's life quarantined must not be met again by counting anew.
        self.quarantine
            .store(Some(Arc::new(baton_daemon::fresh::hex_id())));
        self.metrics.quarantines.inc();
        // Routers have to know before this sidecar can be gone: whichever comes after it is told by them.
        self.published.send_modify(|published| {
            published.load.seq += 1;
            published.load.quarantined = true;
        });
        tracing::warn!("the engine's cache is quarantined: requests get a new cache salt");
    }

    /// The engine turned out to be in another life than the one attached to: nothing is given to it until it has
    /// introduced itself anew, which happens at once.
    pub fn engine_changed(&self) {
        self.engine_seen(EngineStatus::Down);
        self.look_again.notify_one();
    }

    /// Takes no new work from now on.
    pub fn drain(&self) {
        self.draining.cancel();
        self.publish();
    }

    /// Tells routers how things are, if anything they know changed.
    pub fn publish(&self) {
        let (hello_parts, state) = {
            let status = self.status();
            // KV that is leaving is held, but nobody may come for it any more.
            let usable = self.ledger.counts().claimed;
            let state = state_of(
                &status,
                self.draining.is_cancelled(),
                self.in_flight.count(),
                usable,
            );
            (status.attached().cloned(), state)
        };
        let (incarnation, info) = match hello_parts {
            Some(attached) => (
                Some(attached.incarnation.clone()),
                Some(Box::new(attached.info.clone())),
            ),
            None => (None, None),
        };
        self.published.send_if_modified(|published| {
            let hello = Hello {
                incarnation,
                info,
                ..published.hello.clone()
            };
            let changed = published.hello != hello || published.state != state;
            published.hello = hello;
            published.state = state;
            changed
        });
    }

    /// Tells routers how busy the worker is.
    pub fn publish_load(&self, mut load: baton_proto::load::LoadReport) {
        self.published.send_modify(|published| {
            load.seq = published.load.seq + 1;
            published.load = load;
        });
    }

    /// What routers are told, and every change of it.
    pub fn subscribe(&self) -> watch::Receiver<Published> {
        self.published.subscribe()
    }

    /// What the sidecar can do now.
    pub fn state(&self) -> SidecarState {
        self.published.borrow().state
    }

    fn status(&self) -> MutexGuard<'_, EngineStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

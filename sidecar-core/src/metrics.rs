//! Everything a sidecar counts. Labels are types; their values are bounded.

use baton_daemon::metrics::{Counter, Family, Gauge, Histogram, Registry, seconds};
use baton_proto::load::Transport;
use baton_proto::{ErrorKind, Stage};
use prometheus_client::encoding::EncodeLabelSet;

use crate::engine::Moved;
use crate::view::metrics::ViewMetrics;

/// Where a handoff is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TicketState {
    /// Its prefill is in the engine.
    Running,
    /// Its KV is held for a decode worker.
    Claimed,
    /// Its KV is held for nobody, until the engine has it back.
    Leaving,
}

/// How a handoff ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TicketEnd {
    /// Decode has the KV.
    Settled,
    /// It was given up, and its KV was given back.
    Released,
    /// Its lease ended.
    Lapsed,
    /// Its engine restarted.
    Voided,
    /// The prefill that was to fill it failed.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    stage: &'static str,
    outcome: &'static str,
}

/// Counts of handoffs.
#[derive(Debug, Clone, Default)]
pub struct TicketMetrics {
    states: Family<StateLabel, Gauge>,
    ends: Family<EndLabel, Counter>,
    /// Handoffs that nobody wanted and whose KV the engine held until its lease ended.
    pub stranded: Counter,
    /// Leases that were extended.
    pub extended: Counter,
}

impl TicketMetrics {
    /// An entry moved from one state to another.
    pub fn moved(&self, before: Option<TicketState>, after: Option<TicketState>) {
        if let Some(state) = before {
            self.states.get_or_create(&label(state)).dec();
        }
        if let Some(state) = after {
            self.states.get_or_create(&label(state)).inc();
        }
    }

    /// A handoff ended.
    pub fn ended(&self, how: TicketEnd) {
        let end = match how {
            TicketEnd::Settled => "settled",
            TicketEnd::Released => "released",
            TicketEnd::Lapsed => "lapsed",
            TicketEnd::Voided => "voided",
            TicketEnd::Failed => "failed",
        };
        self.ends.get_or_create(&EndLabel { end }).inc();
    }

    /// How many are in a state.
    pub fn in_state(&self, state: TicketState) -> i64 {
        self.states.get_or_create(&label(state)).get()
    }
}

fn label(state: TicketState) -> StateLabel {
    let state = match state {
        TicketState::Running => "running",
        TicketState::Claimed => "claimed",
        TicketState::Leaving => "leaving",
    };
    StateLabel { state }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

/// Counts of the engine's own transfers.
#[derive(Debug, Clone, Default)]
pub struct TransferMetrics {
    bytes: Counter,
    transfers: Counter,
    failed: Counter,
    expired: Counter,
    transport: Family<TransportLabel, Gauge>,
}

impl TransferMetrics {
    /// The engine has moved this since it was looked at last.
    pub fn count(&self, since: &Moved) {
        self.bytes.inc_by(since.bytes);
        self.transfers.inc_by(since.transfers);
        self.failed.inc_by(since.failed);
        self.expired.inc_by(since.expired);
    }

    /// By what KV moves, once it is known.
    pub fn transport(&self, named: Option<Transport>) {
        let Some(named) = named else { return };
        for transport in Transport::ALL {
            let label = TransportLabel {
                transport: transport.word(),
            };
            let is_it = i64::from(transport == named);
            self.transport.get_or_create(&label).set(is_it);
        }
    }

    fn register(&self, families: &mut prometheus_client::registry::Registry) {
        families.register(
            "engine_kv_fetched_bytes",
            "KV bytes that the engine says it has fetched from others",
            self.bytes.clone(),
        );
        families.register(
            "engine_kv_fetches",
            "Transfers of KV that the engine says it has finished",
            self.transfers.clone(),
        );
        families.register(
            "engine_kv_fetches_failed",
            "Transfers of KV that the engine says have failed",
            self.failed.clone(),
        );
        families.register(
            "engine_kv_expired",
            "Handoffs whose KV the engine says it held until the lease ended",
            self.expired.clone(),
        );
        families.register(
            "engine_kv_transport",
            "1 at the transport by which KV comes in, by the bytes that the host's devices counted",
            self.transport.clone(),
        );
    }
}

/// Everything a sidecar counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Handoffs.
    pub tickets: TicketMetrics,
    /// The engine's own transfers.
    pub transfers: TransferMetrics,
    /// The view of the engine's KV cache.
    pub view: ViewMetrics,
    in_flight: Family<StageLabel, Gauge>,
    legs: Family<OutcomeLabel, Counter>,
    /// Legs waiting for admission.
    pub queued: Gauge,
    /// 1 while the engine answers.
    pub engine_up: Gauge,
    /// Engine restarts seen.
    pub incarnations: Counter,
    /// Times the engine's cache was quarantined.
    pub quarantines: Counter,
    /// Times in a row that the engine made no progress on its work.
    pub stalled: Gauge,
    /// The same, ever.
    pub stalls: Counter,
    /// Routers this sidecar is registered with.
    pub routers: Gauge,
    /// KV bytes of prefills that were offered for handoff.
    pub handoff_bytes: Counter,
    /// Times the engine could not be told that it may have KV back.
    pub give_back_failures: Counter,
    first_token: Family<StageLabel, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tickets: TicketMetrics::default(),
            transfers: TransferMetrics::default(),
            view: ViewMetrics::default(),
            in_flight: Family::default(),
            legs: Family::default(),
            queued: Gauge::default(),
            engine_up: Gauge::default(),
            incarnations: Counter::default(),
            quarantines: Counter::default(),
            stalled: Gauge::default(),
            stalls: Counter::default(),
            routers: Gauge::default(),
            handoff_bytes: Counter::default(),
            give_back_failures: Counter::default(),
            first_token: Family::new_with_constructor(|| Histogram::new(seconds())),
        }
    }
}

impl Metrics {
    /// Registers all families.
    pub fn register(&self, registry: &mut Registry) {
        let families = registry.families().sub_registry_with_prefix("sidecar");
        let tickets = &self.tickets;
        families.register(
            "tickets",
            "Handoffs by state: running, claimed, leaving",
            tickets.states.clone(),
        );
        families.register(
            "tickets_ended",
            "Handoffs that ended, by how",
            tickets.ends.clone(),
        );
        families.register(
            "tickets_stranded",
            "Handoffs that nobody wanted and whose KV the engine held until its lease ended",
            tickets.stranded.clone(),
        );
        families.register(
            "leases_extended",
            "Times that the lease of a handoff was extended",
            tickets.extended.clone(),
        );
        families.register(
            "in_flight",
            "Legs being served, by stage",
            self.in_flight.clone(),
        );
        families.register(
            "legs",
            "Legs that ended, by stage and outcome",
            self.legs.clone(),
        );
        families.register("queued", "Legs waiting for admission", self.queued.clone());
        families.register(
            "engine_up",
            "1 while the engine answers",
            self.engine_up.clone(),
        );
        families.register(
            "engine_incarnations",
            "Lives of the engine seen",
            self.incarnations.clone(),
        );
        families.register(
            "quarantines",
            "Times the engine's cache was quarantined",
            self.quarantines.clone(),
        );
        families.register(
            "engine_stalled",
            "Times since its last progress that the engine left work waiting for longer than its history explains",
            self.stalled.clone(),
        );
        families.register(
            "engine_stalls",
            "Times that the engine left work waiting for longer than its history explains",
            self.stalls.clone(),
        );
        families.register(
            "routers",
            "Routers this sidecar is registered with",
            self.routers.clone(),
        );
        families.register(
            "handoff_bytes",
            "KV bytes of prefills offered for handoff",
            self.handoff_bytes.clone(),
        );
        families.register(
            "give_back_failures",
            "Times the engine could not be told that it may have KV back",
            self.give_back_failures.clone(),
        );
        families.register(
            "first_token_seconds",
            "From the start of a leg to the first token its engine gave, by stage",
            self.first_token.clone(),
        );
        self.transfers.register(families);
        self.view.register(families);
    }

    /// Gauge of legs in flight at a stage.
    pub fn in_flight(&self, stage: Stage) -> Gauge {
        self.in_flight
            .get_or_create(&StageLabel {
                stage: stage.word(),
            })
            .clone()
    }

    /// A leg ended; `None` is success.
    pub fn leg_ended(&self, stage: Stage, failure: Option<ErrorKind>) {
        let outcome = failure.map_or("ok", ErrorKind::word);
        self.legs
            .get_or_create(&OutcomeLabel {
                stage: stage.word(),
                outcome,
            })
            .inc();
    }

    /// A leg's first token came after this many seconds.
    pub fn first_token(&self, stage: Stage, seconds: f64) {
        self.first_token
            .get_or_create(&StageLabel {
                stage: stage.word(),
            })
            .observe(seconds);
    }
}

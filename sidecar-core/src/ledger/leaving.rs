//! KV that is held for nobody: what has to be true before the engine may have it back, and what was done about it.
//!
//! An engine that is told so gives the blocks to others at once. So nobody may be fetching them then: the decode worker is
//! asked first, and where it cut a leg off instead of seeing it end, its engine is given a moment to notice. What cannot
//! be made sure of waits for the engine's lease.

use std::time::Duration;

use baton_proto::call::Revoked;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Incarnation, TicketId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Claimed, Entry, Ledger, over};
use crate::engine::Foreseen;
use crate::metrics::TicketEnd;

/// How long an engine may take to notice that a leg was cut off, before KV that it may be fetching is given back. vLLM
/// notices within a step, and a transfer that has begun takes milliseconds; neither is ever confirmed.
const NOTICED: Duration = Duration::from_secs(1);

/// Until when an attempt counts as under way; no attempt takes as long.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Pause after an attempt that failed.
const AGAIN: Duration = Duration::from_millis(500);

/// Remaining lease below which it is extended, as a share of the whole.
const EXTENDED_BELOW: f64 = 0.5;

/// Who may be fetching KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetcher {
    /// No engine.
    Nobody,
    /// The decode worker whose sidecar is there.
    At(String),
    /// A decode worker that cannot be asked.
    Somebody,
    /// No engine, but the prefill itself may not be over: its engine has not answered anything since it was cut off.
    Prefill,
}

/// KV that an engine may hold for a prefill whose answer was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// What that is.
    pub foreseen: Foreseen,
    /// In which life of the engine.
    pub incarnation: Incarnation,
}

impl From<Unread> for Leaving {
    fn from(unread: Unread) -> Self {
        let Foreseen {
            metadata, lease, ..
        } = unread.foreseen;
        let lapses = Instant::now() + lease;
        let fetcher = Fetcher::Prefill;
        Self::new(metadata, unread.incarnation, lapses, fetcher, None)
    }
}

/// KV that is held for nobody.
pub(super) struct Leaving {
    metadata: TransferMetadata,
    pub(super) incarnation: Incarnation,
    pub(super) lapses: Instant,
    fetcher: Fetcher,
    not_before: Instant,
    /// The engine cannot be told, and lets go by itself when its lease ends.
    at_its_lease: bool,
    /// The leg that holds it, and ends when the token is cancelled.
    pub(super) leg: Option<CancellationToken>,
}

/// KV about which something can be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Under which name it is in the ledger.
    pub id: TicketId,
    /// What the engine calls it.
    pub metadata: TransferMetadata,
    /// Who has to be asked before.
    pub fetcher: Fetcher,
    /// The leg holds it: giving it back is ending that ([`Ledger::end_leg`]).
    pub by_leg: bool,
}

impl Leaving {
    pub(super) fn new(
        metadata: TransferMetadata,
        incarnation: Incarnation,
        lapses: Instant,
        fetcher: Fetcher,
        leg: Option<CancellationToken>,
    ) -> Self {
        Self {
            metadata,
            incarnation,
            lapses,
            fetcher,
            not_before: Instant::now(),
            at_its_lease: false,
            leg,
        }
    }
}

impl Claimed {
    /// It is given up. Unless it is known who may be fetching it, that is its decode worker.
    pub(super) fn leave(&self, fetcher: Option<Fetcher>) -> Leaving {
        let decode = || {
            self.decode_at
                .clone()
                .map_or(Fetcher::Somebody, Fetcher::At)
        };
        Leaving::new(
            self.draft.metadata.clone(),
            self.draft.incarnation.clone(),
            self.lapses,
            fetcher.unwrap_or_else(decode),
            self.leg.clone(),
        )
    }
}

impl Ledger {
    /// Gives up a ticket that a former life of this sidecar has made: its engine holds the KV still.
    pub fn adopt(&self, ticket: Ticket, decode_at: Option<String>) {
        let lapses = Instant::now() + Duration::from_millis(ticket.lease_remaining_ms);
        let fetcher = decode_at.map_or(Fetcher::Somebody, Fetcher::At);
        let left = Leaving::new(ticket.metadata, ticket.incarnation, lapses, fetcher, None);
        self.adopt_as(&ticket.id, left);
    }

    /// Gives up a prefill leg that a former life of this sidecar has begun.
    pub fn adopt_unread(&self, id: &TicketId, unread: Unread) {
        self.adopt_as(id, unread.into());
    }

    fn adopt_as(&self, id: &TicketId, left: Leaving) {
        let mut entries = self.lock();
        if entries.contains_key(id) {
            drop(entries);
            return self.release(id);
        }
        self.put(&mut entries, id, Entry::Leaving(Box::new(left)));
    }

    /// The engine has answered something that it was asked then: prefills that were cut off before are over once it has
    /// noticed that.
    pub fn engine_answered(&self, asked: Instant) {
        let mut entries = self.lock();
        for entry in entries.values_mut() {
            if let Entry::Leaving(leaving) = entry
                && leaving.fetcher == Fetcher::Prefill
                && leaving.not_before <= asked
            {
                leaving.fetcher = Fetcher::Nobody;
                leaving.not_before = Instant::now() + NOTICED;
                self.left.notify_one();
            }
        }
    }

    /// Waits until something was given up since the last time.
    pub async fn left(&self) {
        self.left.notified().await;
    }

    /// What can be done something about now; the caller has [`ATTEMPT`] for it.
    pub fn due(&self) -> Vec<Due> {
        let now = Instant::now();
        let mut entries = self.lock();
        let due = entries.iter_mut().filter_map(|(id, entry)| match entry {
            Entry::Leaving(leaving) if leaving.is_due(now) => {
                leaving.not_before = now + ATTEMPT;
                Some(Due {
                    id: id.clone(),
                    metadata: leaving.metadata.clone(),
                    fetcher: leaving.fetcher.clone(),
                    by_leg: leaving.leg.is_some(),
                })
            }
            _ => None,
        });
        due.collect()
    }

    /// When there is something to do next.
    pub fn next_due(&self) -> Option<Instant> {
        let entries = self.lock();
        let leaving = entries.values().filter_map(|entry| match entry {
            Entry::Leaving(leaving) if leaving.can_be_ended() => Some(leaving.not_before),
            _ => None,
        });
        leaving.min()
    }

    /// The decode worker said what became of a ticket: it will not fetch any more.
    pub fn revoked(&self, id: &TicketId, revoked: Revoked) {
        self.change(id, |leaving| {
            let noticed = match revoked {
                Revoked::Unseen | Revoked::Answered => Duration::ZERO,
                Revoked::Cut | Revoked::Unknown => NOTICED,
            };
            leaving.fetcher = Fetcher::Nobody;
            leaving.not_before = Instant::now() + noticed;
        });
    }

    /// An attempt failed: another one is made soon.
    pub fn put_off(&self, id: &TicketId) {
        self.change(id, |leaving| leaving.not_before = Instant::now() + AGAIN);
    }

    /// The engine cannot be told: this stays held until its lease ends, and counts as stranded then.
    pub fn left_to_lease(&self, id: &TicketId) {
        self.change(id, |leaving| leaving.at_its_lease = true);
    }

    /// The engine was told that it may have this back.
    pub fn given_back(&self, id: &TicketId) {
        let mut entries = self.lock();
        if matches!(entries.get(id), Some(Entry::Leaving(_))) {
            self.metrics.ended(TicketEnd::Released);
            self.put(&mut entries, id, over(true));
        }
    }

    /// What is wanted for longer than its lease may last.
    pub fn expiring(&self) -> Vec<(TicketId, TransferMetadata)> {
        let now = Instant::now();
        let entries = self.lock();
        let expiring = entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Claimed(claimed) if claimed.expires_early(now) => {
                Some((id.clone(), claimed.draft.metadata.clone()))
            }
            _ => None,
        });
        expiring.collect()
    }

    /// The engine holds these until then, or longer.
    pub fn extended(&self, ids: &[TicketId], until: Instant) {
        let mut entries = self.lock();
        for id in ids {
            if let Some(Entry::Claimed(claimed)) = entries.get_mut(id) {
                claimed.lapses = claimed.lapses.max(until);
                self.metrics.extended.inc();
            }
        }
    }

    fn change(&self, id: &TicketId, change: impl FnOnce(&mut Leaving)) {
        if let Some(Entry::Leaving(leaving)) = self.lock().get_mut(id) {
            change(leaving);
        }
        self.left.notify_one();
    }
}

impl Leaving {
    fn can_be_ended(&self) -> bool {
        !self.at_its_lease && !matches!(self.fetcher, Fetcher::Somebody | Fetcher::Prefill)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.can_be_ended() && self.not_before <= now
    }
}

impl Claimed {
    fn expires_early(&self, now: Instant) -> bool {
        let lease = Duration::from_millis(self.draft.lease_ms);
        let remaining = self.lapses.saturating_duration_since(now);
        !remaining.is_zero()
            && remaining < lease.mul_f64(EXTENDED_BELOW)
            && self.lapses < self.wanted
            && self.leg.is_none()
    }
}

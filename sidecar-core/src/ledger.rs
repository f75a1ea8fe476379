//! The ledger: the prefill side's truth about handoffs.
//!
//! An entry exists from the moment a prefill leg is opened until nothing about it can surprise any more. It is claimed
//! for one decode worker, settled once, and ended by its release, its lease, the end of its router or the death of its
//! engine. A ticket that was offered before its prefill ends with that leg, too: the leg is what holds the KV ([`offered`]). KV that is given up is *leaving*: held for nobody until the engine was told so, which may be only when nobody
//! can be fetching it any more ([`leaving`]). The clock is this process's own; leases travel as remaining time. Ids that
//! are over stay known for a while, so that a call that comes late, or a release that comes before its prefill, revives
//! nothing.

mod leaving;
mod offered;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::ticket::{Draft, Ticket, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_proto::{Error, ErrorKind, Incarnation, RouterId, Source, Stage, TicketId, WorkerId};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::leaving::Leaving;
pub use self::leaving::{Due, Fetcher, Unread};
use crate::metrics::{TicketEnd, TicketMetrics, TicketState};

/// How long an id that is over stays known.
const REMEMBERED: Duration = Duration::from_secs(120);

/// Most entries. Beyond it new prefills are refused; at ten thousand prefills a second it is reached in half a minute.
const MOST_ENTRIES: usize = 1 << 20;

enum Entry {
    /// The prefill leg is in the engine. Cancelling the token gives it up.
    Running { cancel: CancellationToken },
    /// KV is held for the decode worker named in the draft.
    Claimed(Box<Claimed>),
    /// KV is held for nobody, until the engine has it back.
    Leaving(Box<Leaving>),
    /// Nothing is held. Remembered until the instant.
    Over {
        until: Instant,
        /// It was the right KV for as long as anybody could fetch it.
        whole: bool,
    },
}

struct Claimed {
    draft: Draft,
    /// Base URL of the decode worker's sidecar.
    decode_at: Option<String>,
    /// For which router. Without one it lives until its lease ends.
    router: Option<RouterId>,
    lapses: Instant,
    /// Until when the request may want it: its lease is not extended beyond.
    wanted: Instant,
    /// The leg that holds the KV, while it runs. Cancelling the token ends it.
    leg: Option<CancellationToken>,
}

/// For whom KV is held, and until when at most.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Base URL of the decode worker's sidecar, if that may be asked.
    pub decode_at: Option<String>,
    /// The router whose request it is.
    pub router: Option<RouterId>,
    /// When the request's time is over.
    pub until: Instant,
}

impl Entry {
    fn state(&self) -> Option<TicketState> {
        match self {
            Self::Running { .. } => Some(TicketState::Running),
            Self::Claimed(_) => Some(TicketState::Claimed),
            Self::Leaving(_) => Some(TicketState::Leaving),
            Self::Over { .. } => None,
        }
    }

    /// Of which life of the engine KV is held.
    fn held_in(&self) -> Option<&Incarnation> {
        match self {
            Self::Claimed(claimed) => Some(&claimed.draft.incarnation),
            Self::Leaving(leaving) => Some(&leaving.incarnation),
            Self::Running { .. } | Self::Over { .. } => None,
        }
    }

    /// When the engine lets go of what it holds.
    fn lapses(&self) -> Option<Instant> {
        match self {
            Self::Claimed(claimed) => Some(claimed.lapses),
            Self::Leaving(leaving) => Some(leaving.lapses),
            Self::Running { .. } | Self::Over { .. } => None,
        }
    }
}

/// How many entries are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Prefill legs in the engine.
    pub running: usize,
    /// Handoffs that may still be used.
    pub claimed: usize,
    /// Held for nobody until the engine has it back.
    pub leaving: usize,
}

impl Counts {
    /// Handoffs whose KV the engine holds.
    pub fn held(self) -> usize {
        self.claimed + self.leaving
    }
}

/// The prefill side's truth about handoffs. Clones share it.
#[derive(Clone)]
pub struct Ledger {
    entries: Arc<Mutex<HashMap<TicketId, Entry>>>,
    token: FleetToken,
    metrics: TicketMetrics,
    /// Wakes whoever gives KV back.
    left: Arc<Notify>,
}

impl Ledger {
    /// An empty ledger whose tickets are sealed with `token`.
    pub fn new(token: FleetToken, metrics: TicketMetrics) -> Self {
        Self {
            entries: Arc::default(),
            token,
            metrics,
            left: Arc::default(),
        }
    }

    /// Opens the entry of a prefill leg. Whatever happens to the returned guard ends the leg.
    pub fn open(&self, id: &TicketId) -> Result<OpenLeg, Error> {
        let mut entries = self.lock();
        if entries.contains_key(id) {
            return Err(conflict(format!(
                "ticket {id} was used before or released before it was used"
            )));
        }
        if entries.len() >= MOST_ENTRIES {
            let message = "too many handoffs are remembered; try again in a minute";
            return Err(Error::new(
                ErrorKind::Overloaded,
                Source::Sidecar,
                Stage::Prefill,
                message,
            ));
        }
        let cancel = CancellationToken::new();
        self.put(
            &mut entries,
            id,
            Entry::Running {
                cancel: cancel.clone(),
            },
        );
        Ok(OpenLeg {
            ledger: self.clone(),
            id: id.clone(),
            cancel,
            unread: None,
            closed: false,
        })
    }

    /// Moves an unused ticket to another decode worker, or renews it for the same.
    pub fn claim(
        &self,
        id: &TicketId,
        decode: WorkerId,
        decode_at: Option<String>,
    ) -> Result<Ticket, Error> {
        let mut entries = self.lock();
        let Some(Entry::Claimed(claimed)) = entries.get_mut(id) else {
            return Err(not_held(id));
        };
        let remaining = claimed.lapses.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(lapsed(id));
        }
        claimed.draft.decode = decode;
        claimed.decode_at = decode_at;
        claimed.draft.lease_ms = claimed.draft.lease_ms.max(millis(remaining));
        Ok(claimed.draft.clone().seal(&self.token, millis(remaining)))
    }

    /// Whether a ticket could be settled now, as far as the ledger alone can tell.
    pub fn is_claimed(&self, id: &TicketId) -> Result<(), Error> {
        claimed(&self.lock(), id).map(|_| ())
    }

    /// Whether what is held for a ticket, or was until it ended, is the right KV in this life of the engine.
    pub fn confirm(&self, id: &TicketId, now: &Incarnation) -> Result<(), Error> {
        let entries = self.lock();
        let (held_in, lapses) = match entries.get(id) {
            Some(Entry::Over { whole: true, .. }) => return Ok(()),
            Some(entry) => entry.held_in().zip(entry.lapses()),
            None => None,
        }
        .ok_or_else(|| not_held(id))?;
        if lapses <= Instant::now() {
            return Err(lapsed(id));
        }
        if held_in == now {
            Ok(())
        } else {
            Err(restarted(id, held_in, now))
        }
    }

    /// Ends a ticket whose KV has arrived at decode. `now` is the engine's life as read after decode's first token.
    pub fn settle(&self, id: &TicketId, now: &Incarnation) -> Result<(), Error> {
        let held_in = {
            let mut entries = self.lock();
            let held_in = claimed(&entries, id)?.incarnation.clone();
            if held_in == *now {
                self.metrics.ended(TicketEnd::Settled);
                self.put(&mut entries, id, over(true));
                return Ok(());
            }
            held_in
        };
        self.void_others(now);
        Err(restarted(id, &held_in, now))
    }

    /// Gives up a ticket, or the leg that would have produced it. Idempotent; unknown ids are remembered as released.
    pub fn release(&self, id: &TicketId) {
        self.give_up(id, None);
    }

    /// Whether anything is known of a ticket, or of the leg that is to produce it.
    pub fn knows(&self, id: &TicketId) -> bool {
        self.lock().contains_key(id)
    }

    /// Gives up a ticket that has left this process to nobody.
    pub fn withdraw(&self, id: &TicketId) {
        self.give_up(id, Some(Fetcher::Nobody));
    }

    fn give_up(&self, id: &TicketId, fetcher: Option<Fetcher>) {
        let mut entries = self.lock();
        let left = match entries.get(id) {
            Some(Entry::Running { cancel }) => return cancel.cancel(),
            Some(Entry::Leaving(_) | Entry::Over { .. }) => return,
            Some(Entry::Claimed(claimed)) => Some(claimed.leave(fetcher)),
            None => None,
        };
        let entry = left.map_or_else(|| over(false), |left| Entry::Leaving(Box::new(left)));
        self.put(&mut entries, id, entry);
    }

    /// Ends everything that belongs to another life of the engine than `now`: its KV is gone.
    pub fn void_others(&self, now: &Incarnation) {
        let mut entries = self.lock();
        let of_another_life = |entry: &Entry| entry.held_in().is_some_and(|life| life != now);
        for id in ids_where(&entries, of_another_life) {
            self.metrics.ended(TicketEnd::Voided);
            offered::end_leg(&entries, &id);
            self.put(&mut entries, &id, over(false));
        }
    }

    /// Ends what lapsed, gives up what is of routers that are gone, and forgets what is over for long. To be called about
    /// once a second.
    pub fn sweep(&self, is_gone: impl Fn(&RouterId) -> bool) {
        let now = Instant::now();
        let mut entries = self.lock();
        let lapsed = |entry: &Entry| entry.lapses().is_some_and(|lapses| lapses <= now);
        for id in ids_where(&entries, lapsed) {
            if let Some(left) = offered::out_of_time(&entries, &id, now) {
                self.put(&mut entries, &id, Entry::Leaving(Box::new(left)));
                continue;
            }
            if matches!(entries.get(&id), Some(Entry::Leaving(_))) {
                self.metrics.stranded.inc();
            }
            self.metrics.ended(TicketEnd::Lapsed);
            offered::end_leg(&entries, &id);
            self.put(&mut entries, &id, over(false));
        }
        entries.retain(|_, entry| !matches!(entry, Entry::Over { until, .. } if *until <= now));
        let orphaned = |entry: &Entry| matches!(entry, Entry::Claimed(claimed) if claimed.router.as_ref().is_some_and(&is_gone));
        let orphans = ids_where(&entries, orphaned);
        drop(entries);
        for id in orphans {
            tracing::info!(ticket = %id, "its router is gone: the ticket is given up");
            self.release(&id);
        }
    }

    /// How many entries are in which state.
    pub fn counts(&self) -> Counts {
        let count = |state| usize::try_from(self.metrics.in_state(state)).unwrap_or(0);
        Counts {
            running: count(TicketState::Running),
            claimed: count(TicketState::Claimed),
            leaving: count(TicketState::Leaving),
        }
    }

    /// The only way an entry changes, so that the gauges cannot drift.
    fn put(&self, entries: &mut HashMap<TicketId, Entry>, id: &TicketId, entry: Entry) {
        let after = entry.state();
        if after == Some(TicketState::Leaving) {
            self.left.notify_one();
        }
        let before = entries
            .insert(id.clone(), entry)
            .and_then(|entry| entry.state());
        self.metrics.moved(before, after);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TicketId, Entry>> {
        // Every change under the lock is a single insert, so a panic elsewhere leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A prefill leg. Dropping it ends the leg with nothing held, or with what the engine may hold that it was asked for.
#[must_use]
pub struct OpenLeg {
    ledger: Ledger,
    id: TicketId,
    cancel: CancellationToken,
    unread: Option<Unread>,
    closed: bool,
}

impl OpenLeg {
    /// Waits until somebody releases the leg.
    pub async fn released(&self) {
        self.cancel.cancelled().await;
    }

    /// The engine is asked. Unless its answer is read, it may hold this.
    pub fn asked(&mut self, unread: Option<Unread>) {
        self.unread = unread;
    }

    /// It has not begun, or has ended without holding anything.
    pub fn holds_nothing(&mut self) {
        self.unread = None;
    }

    /// Whether what the engine may hold is known without its answer.
    pub fn is_known(&self) -> bool {
        self.unread
            .as_ref()
            .is_some_and(|unread| unread.foreseen.certain)
    }

    /// The prefill ended with KV that can be handed over: the ticket, born claimed.
    pub fn hold(mut self, draft: Draft, lease: Duration, wanted: Wanted) -> Ticket {
        self.closed = true;
        let ticket = draft.clone().seal(&self.ledger.token, millis(lease));
        let held = Entry::Claimed(Box::new(Claimed {
            draft,
            decode_at: wanted.decode_at,
            router: wanted.router,
            lapses: Instant::now() + lease,
            wanted: wanted.until,
            leg: None,
        }));
        self.ledger.put(&mut self.ledger.lock(), &self.id, held);
        ticket
    }

    /// The prefill ended with KV that nobody will fetch.
    pub fn leave(mut self, metadata: TransferMetadata, incarnation: Incarnation, lease: Duration) {
        self.closed = true;
        let lapses = Instant::now() + lease;
        let left = Leaving::new(metadata, incarnation, lapses, Fetcher::Nobody, None);
        let entry = Entry::Leaving(Box::new(left));
        self.ledger.put(&mut self.ledger.lock(), &self.id, entry);
    }
}

impl Drop for OpenLeg {
    fn drop(&mut self) {
        if !self.closed {
            match self.unread.take() {
                Some(unread) => {
                    let left = Entry::Leaving(Box::new(unread.into()));
                    self.ledger.put(&mut self.ledger.lock(), &self.id, left);
                }
                None => self.end(false),
            }
        }
    }
}

/// The draft of a ticket that is unused and whose lease has not ended.
fn claimed<'a>(entries: &'a HashMap<TicketId, Entry>, id: &TicketId) -> Result<&'a Draft, Error> {
    match entries.get(id) {
        Some(Entry::Claimed(claimed)) if claimed.lapses <= Instant::now() => Err(lapsed(id)),
        Some(Entry::Claimed(claimed)) => Ok(&claimed.draft),
        _ => Err(not_held(id)),
    }
}

fn over(whole: bool) -> Entry {
    Entry::Over {
        until: Instant::now() + REMEMBERED,
        whole,
    }
}

fn ids_where(entries: &HashMap<TicketId, Entry>, holds: impl Fn(&Entry) -> bool) -> Vec<TicketId> {
    entries
        .iter()
        .filter(|(_, entry)| holds(entry))
        .map(|(id, _)| id.clone())
        .collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::Conflict, Source::Router, Stage::Prefill, message)
}

fn lapsed(id: &TicketId) -> Error {
    Error::new(
        ErrorKind::LeaseExpired,
        Source::Sidecar,
        Stage::Handoff,
        format!("the lease of ticket {id} is over"),
    )
}

fn restarted(id: &TicketId, held_in: &Incarnation, now: &Incarnation) -> Error {
    let message =
        format!("the prefill engine restarted: ticket {id} is of {held_in}, the engine is {now}");
    Error::new(
        ErrorKind::IncarnationChanged,
        Source::Engine,
        Stage::Handoff,
        message,
    )
}

fn not_held(id: &TicketId) -> Error {
    let message = format!("ticket {id} is not held here: it was used, released or voided");
    Error::new(
        ErrorKind::TicketRefused,
        Source::Sidecar,
        Stage::Handoff,
        message,
    )
}

#[cfg(test)]
mod tests;

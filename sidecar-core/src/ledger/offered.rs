//! Tickets that exist before their prefill: of engines that hand over while they compute, where the leg itself holds the KV.
//!
//! Such a ticket is claimed from the start, and over when its leg is, whichever way that ends. Giving it up ends the leg, in
//! the order in which any KV is given up: decode is asked first, for a prefill engine that drops a request gives pages to
//! others which it may still be sending.

use std::collections::HashMap;
use std::time::Duration;

use baton_proto::TicketId;
use baton_proto::ticket::{Draft, Ticket};
use tokio::time::Instant;

use super::leaving::Leaving;
use super::{Claimed, Entry, Ledger, OpenLeg, Wanted, millis, over};
use crate::metrics::TicketEnd;

/// How long the decode worker of a ticket whose time is over may take to say that it fetches nothing. Then the leg ends
/// whatever it says.
const LAST_WORD: Duration = Duration::from_secs(10);

impl OpenLeg {
    /// The engine will hand over while it computes: the ticket, born claimed. The leg goes on.
    pub fn offer(&self, draft: Draft, lease: Duration, wanted: Wanted) -> Ticket {
        let ticket = draft.clone().seal(&self.ledger.token, millis(lease));
        let offered = Entry::Claimed(Box::new(Claimed {
            draft,
            decode_at: wanted.decode_at,
            router: wanted.router,
            lapses: Instant::now() + lease,
            wanted: wanted.until,
            leg: Some(self.cancel.clone()),
        }));
        self.ledger.put(&mut self.ledger.lock(), &self.id, offered);
        ticket
    }

    /// The engine says that decode has everything.
    pub fn handed_over(mut self) {
        self.closed = true;
        self.end(true);
    }

    /// The leg is over, and with it whatever was offered for it; `whole` if decode has the KV.
    pub(super) fn end(&self, whole: bool) {
        let mut entries = self.ledger.lock();
        let how = match entries.get(&self.id) {
            Some(Entry::Running { .. }) => None,
            Some(Entry::Claimed(_)) if whole => Some(TicketEnd::Settled),
            Some(Entry::Claimed(_)) => Some(TicketEnd::Failed),
            Some(Entry::Leaving(_)) => Some(TicketEnd::Released),
            Some(Entry::Over { .. }) | None => return,
        };
        if let Some(how) = how {
            self.ledger.metrics.ended(how);
        }
        self.ledger.put(&mut entries, &self.id, over(whole));
    }
}

impl Ledger {
    /// Ends the leg that holds the KV of a ticket.
    pub fn end_leg(&self, id: &TicketId) {
        end_leg(&self.lock(), id);
    }
}

/// What becomes of a claimed ticket whose time is over while its leg still runs: it is given up like any other.
pub(super) fn out_of_time(
    entries: &HashMap<TicketId, Entry>,
    id: &TicketId,
    now: Instant,
) -> Option<Leaving> {
    let Some(Entry::Claimed(claimed)) = entries.get(id) else {
        return None;
    };
    claimed.leg.as_ref()?;
    let mut left = claimed.leave(None);
    left.lapses = now + LAST_WORD;
    Some(left)
}

/// Ends the leg of an entry, if it has one.
pub(super) fn end_leg(entries: &HashMap<TicketId, Entry>, id: &TicketId) {
    let leg = match entries.get(id) {
        Some(Entry::Claimed(claimed)) => claimed.leg.as_ref(),
        Some(Entry::Leaving(leaving)) => leaving.leg.as_ref(),
        _ => None,
    };
    if let Some(leg) = leg {
        leg.cancel();
    }
}

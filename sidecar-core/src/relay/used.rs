//! The decode side's memory of tickets it has used. A second use is refused before the engine sees it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, Source, Stage, TicketId};
use tokio::time::Instant;

/// Shortest memory. A ticket's remaining lease is not sealed, so it is remembered far beyond any lease it may claim.
const REMEMBERED: Duration = Duration::from_secs(900);

/// Tickets this engine has used.
#[derive(Debug, Default)]
pub struct UsedTickets(Mutex<HashMap<TicketId, Instant>>);

impl UsedTickets {
    /// Marks a ticket as used; refuses one that was.
    pub fn use_once(&self, ticket: &Ticket) -> Result<(), Error> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if used.get(&ticket.id).is_some_and(|until| *until > now) {
            let message = format!("ticket {} was already used", ticket.id);
            return Err(Error::new(
                ErrorKind::TicketRefused,
                Source::Router,
                Stage::Decode,
                message,
            ));
        }
        used.insert(
            ticket.id.clone(),
            now + REMEMBERED.max(2 * Duration::from_millis(ticket.lease_ms)),
        );
        Ok(())
    }

    /// Forgets what is too old to be used again. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, until| *until > now);
    }
}

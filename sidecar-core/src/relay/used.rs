//! The decode side's memory of tickets: which the engine was given, and what became of them. A second use is refused
//! before the engine sees it, and so is one that was revoked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::call::Revoked;
use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, Source, Stage, TicketId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Shortest memory. A ticket's remaining lease is not sealed, so it is remembered far beyond any lease it may claim.
const REMEMBERED: Duration = Duration::from_secs(900);

/// Longest a leg may take to end once it was told to.
const ENDING: Duration = Duration::from_millis(500);

/// Tickets that came to this worker, or never may. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct UsedTickets(Arc<Mutex<HashMap<TicketId, Memory>>>);

#[derive(Debug)]
struct Memory {
    until: Instant,
    became: Became,
}

#[derive(Debug)]
enum Became {
    /// A leg is using it. The first token ends the leg, the second says that it has ended.
    Active(CancellationToken, CancellationToken),
    /// It is over.
    Over(Revoked),
}

/// A leg's use of a ticket. Dropping it ends that.
#[derive(Debug)]
pub struct Using {
    tickets: UsedTickets,
    id: TicketId,
    revoked: CancellationToken,
    ended: CancellationToken,
    became: Revoked,
}

impl UsedTickets {
    /// Marks a ticket as used; refuses one that was, or that was revoked.
    pub fn use_once(&self, ticket: &Ticket) -> Result<Using, Error> {
        let mut tickets = self.lock();
        let now = Instant::now();
        if tickets
            .get(&ticket.id)
            .is_some_and(|memory| memory.until > now)
        {
            let message = format!("ticket {} was already used or revoked", ticket.id);
            return Err(Error::new(
                ErrorKind::TicketRefused,
                Source::Router,
                Stage::Decode,
                message,
            ));
        }
        let (revoked, ended) = (CancellationToken::new(), CancellationToken::new());
        let memory = Memory {
            until: now + REMEMBERED.max(2 * Duration::from_millis(ticket.lease_ms)),
            became: Became::Active(revoked.clone(), ended.clone()),
        };
        tickets.insert(ticket.id.clone(), memory);
        Ok(Using {
            tickets: self.clone(),
            id: ticket.id.clone(),
            revoked,
            ended,
            became: Revoked::Cut,
        })
    }

    /// The ticket is not used any more from now on; a leg that uses it is cut off. What became of it.
    pub async fn revoke(&self, id: &TicketId) -> Result<Revoked, Error> {
        let ended = {
            let mut tickets = self.lock();
            match tickets.get(id).map(|memory| &memory.became) {
                Some(Became::Over(how)) => return Ok(*how),
                Some(Became::Active(revoked, ended)) => {
                    revoked.cancel();
                    ended.clone()
                }
                None => {
                    let memory = Memory {
                        until: Instant::now() + REMEMBERED,
                        became: Became::Over(Revoked::Unseen),
                    };
                    tickets.insert(id.clone(), memory);
                    return Ok(Revoked::Unseen);
                }
            }
        };
        let waited = tokio::time::timeout(ENDING, ended.cancelled()).await;
        match (waited, self.lock().get(id).map(|memory| &memory.became)) {
            (Ok(()), Some(Became::Over(how))) => Ok(*how),
            _ => Err(Error::new(
                ErrorKind::Conflict,
                Source::Sidecar,
                Stage::Decode,
                format!("the leg that uses ticket {id} does not end"),
            )),
        }
    }

    /// Forgets what is too old to be used again. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.lock()
            .retain(|_, memory| memory.until > now || matches!(memory.became, Became::Active(..)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TicketId, Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Using {
    /// The engine has shown a token, or has answered without one: it fetches nothing any more.
    pub fn fetched(mut self) {
        self.became = Revoked::Answered;
    }

    /// Cancelled when the leg must end.
    pub fn revocation(&self) -> CancellationToken {
        self.revoked.clone()
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        if let Some(memory) = self.tickets.lock().get_mut(&self.id) {
            memory.became = Became::Over(self.became);
        }
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::digest::RequestDigest;
    use baton_proto::ticket::{Draft, TransferMetadata};
    use baton_proto::token::FleetToken;

    use super::*;

    fn ticket(id: &str) -> Ticket {
        let draft = Draft {
            id: id.parse().unwrap(),
            prefill: "p".parse().unwrap(),
            incarnation: "a".parse().unwrap(),
            decode: "d".parse().unwrap(),
            request_digest: RequestDigest::of("/v1/completions", b"{}"),
            prompt_tokens: Some(3),
            bytes: Some(10),
            lease_ms: 30_000,
            metadata: TransferMetadata::new(&b"{}"[..]),
        };
        draft.seal(&FleetToken::new("0123456789abcdef").unwrap(), 30_000)
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_used_once() {
        let tickets = UsedTickets::default();
        let using = tickets.use_once(&ticket("t")).unwrap();
        assert!(tickets.use_once(&ticket("t")).is_err(), "while it is used");
        drop(using);
        assert!(tickets.use_once(&ticket("t")).is_err(), "afterwards");
        tokio::time::advance(REMEMBERED).await;
        tickets.sweep();
        assert!(tickets.lock().is_empty(), "memory is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_revoked_is_never_used() {
        let tickets = UsedTickets::default();
        let id = ticket("t").id;
        assert_eq!(tickets.revoke(&id).await.unwrap(), Revoked::Unseen);
        let refused = tickets.use_once(&ticket("t")).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::TicketRefused);
        assert_eq!(tickets.revoke(&id).await.unwrap(), Revoked::Unseen);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leg_that_is_revoked_is_cut_off() {
        let tickets = UsedTickets::default();
        let using = tickets.use_once(&ticket("t")).unwrap();
        let leg = tokio::spawn(async move {
            using.revocation().cancelled().await;
            drop(using);
        });
        let id = ticket("t").id;
        assert_eq!(tickets.revoke(&id).await.unwrap(), Revoked::Cut);
        leg.await.unwrap();
        tickets.use_once(&ticket("u")).unwrap().fetched();
        let id = ticket("u").id;
        assert_eq!(tickets.revoke(&id).await.unwrap(), Revoked::Answered);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leg_that_does_not_end_is_not_said_to_have_ended() {
        let tickets = UsedTickets::default();
        let using = tickets.use_once(&ticket("t")).unwrap();
        let id = ticket("t").id;
        let error = tickets.revoke(&id).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        drop(using);
        assert_eq!(tickets.revoke(&id).await.unwrap(), Revoked::Cut);
    }
}

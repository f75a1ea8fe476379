//! Watches over KV that the engine fetches under a ticket, until it is known to be the right KV.
//!
//! A prefill engine that has restarted gives its new life's blocks away under the old names, and nobody in the engines
//! notices. Whatever was fetched so is withheld from the client, and stays in this engine's cache for others to find. So
//! this side, whose cache it is, has the prefill side confirm each ticket: before the engine is given one that is not
//! fresh, all the time while the engine may be fetching, and before the answer goes out (settle). A leg whose ticket is not
//! confirmed any more is cut off, and if foreign KV may have come by then, the cache is quarantined.
//!
//! An engine to which no foreign KV can come needs none of that, and its answers wait for nobody.
//!
//! That is in time because of what an engine needs to start: nobody serves KV under an engine's name within [`BOOT`] of that
//! engine's death.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_proto::call::DecodeCall;
use baton_proto::{Error, ErrorKind, Retry, Stage, TicketId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::used::Using;
use crate::core::Core;
use crate::engine::Engine;

/// An engine's next life serves no KV before that. Real ones take tens of seconds.
pub const BOOT: Duration = Duration::from_secs(2);

/// How old a confirmation may be when the engine is given a ticket, and between two of them after that.
const FRESH: Duration = Duration::from_millis(500);

/// Longest that the prefill side may take to confirm a ticket while it is watched.
const CONFIRM_TIME: Duration = Duration::from_millis(700);

/// Longest that it may take to settle.
const SETTLE_TIME: Duration = Duration::from_secs(4);

/// How long the engine may take to notice that a leg was cut off.
const NOTICED: Duration = Duration::from_secs(1);

/// Watches over one ticket. Dropping it before it is settled means that the leg was cut off.
pub(crate) struct Vigil<E: Engine>(Option<Watched<E>>);

struct Watched<E: Engine> {
    core: Arc<Core<E>>,
    id: TicketId,
    /// The prefill worker's sidecar.
    holder: String,
    ended: CancellationToken,
    /// The leg was cut off here, and what may have come by then was seen to.
    judged: Arc<AtomicBool>,
}

impl<E: Engine> Vigil<E> {
    /// For a leg that uses no ticket.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Begins before the engine is given the ticket. A call that does not say where the prefill worker is has its router
    /// watch over it.
    pub(crate) async fn begin(core: &Arc<Core<E>>, call: &DecodeCall) -> Result<Self, Error> {
        let holder = call.prefill_at.clone();
        let Some(holder) = holder.filter(|_| core.engine.may_fetch_foreign_kv()) else {
            return Ok(Self::none());
        };
        let ticket = &call.ticket;
        let age = ticket.lease_ms.saturating_sub(ticket.lease_remaining_ms);
        let watched = Watched {
            core: Arc::clone(core),
            id: ticket.id.clone(),
            holder,
            ended: CancellationToken::new(),
            judged: Arc::default(),
        };
        if Duration::from_millis(age) > FRESH {
            // The engine has not seen it.
            let confirmed = watched.confirm(SETTLE_TIME).await;
            confirmed.map_err(|error| error.retry(Retry::Safe))?;
        }
        Ok(Self(Some(watched)))
    }

    /// The engine is given the ticket now.
    pub(crate) fn watch(&self, using: &Using) {
        if let Some(watched) = &self.0 {
            tokio::spawn(watched.clone().watch(using.revocation()));
        }
    }

    /// The engine has shown a token: whether that came of the right KV.
    pub(crate) async fn settle(mut self) -> Result<(), Error> {
        let Some(watched) = &self.0 else {
            return Ok(());
        };
        let peers = &watched.core.peers;
        let settled = peers
            .ticket(&watched.holder, &watched.id, "settle", SETTLE_TIME)
            .await;
        if let Err(failed) = &settled {
            tracing::warn!(ticket = %watched.id, error = %failed.error, "handoff not settled, answer withheld");
            watched.core.quarantine();
        }
        self.unfetched();
        settled.map(|_| ()).map_err(|failed| {
            let mut error = failed.error.retry(Retry::AfterCancel);
            error.stage = Stage::Handoff;
            error
        })
    }

    /// The engine will not fetch it, or what it fetched counts for nothing.
    pub(crate) fn unfetched(&mut self) {
        if let Some(watched) = self.0.take() {
            watched.ended.cancel();
        }
    }
}

impl<E: Engine> Drop for Vigil<E> {
    fn drop(&mut self) {
        let Some(watched) = self.0.take() else {
            return;
        };
        watched.ended.cancel();
        let judged = watched.judged.load(Ordering::Relaxed);
        // Without a runtime the process is ending.
        if let (false, Ok(runtime)) = (judged, tokio::runtime::Handle::try_current()) {
            runtime.spawn(watched.aftermath());
        }
    }
}

// Not derived: an engine itself need not be cloned.
impl<E: Engine> Clone for Watched<E> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            id: self.id.clone(),
            holder: self.holder.clone(),
            ended: self.ended.clone(),
            judged: Arc::clone(&self.judged),
        }
    }
}

impl<E: Engine> Watched<E> {
    async fn confirm(&self, time: Duration) -> Result<(), Error> {
        let peers = &self.core.peers;
        let confirmed = peers.ticket(&self.holder, &self.id, "confirm", time).await;
        confirmed.map(|_| ()).map_err(|failed| failed.error)
    }

    /// Has the ticket confirmed again and again, and cuts its leg off when it is not.
    async fn watch(self, leg: CancellationToken) {
        let mut confirmed = Instant::now();
        loop {
            tokio::select! {
                () = self.ended.cancelled() => return,
                () = tokio::time::sleep(FRESH) => {}
            }
            let asked = Instant::now();
            match self.confirm(CONFIRM_TIME).await {
                Ok(()) => confirmed = asked,
                Err(error)
                    if is_final(&error) || confirmed.elapsed() + FRESH + CONFIRM_TIME > BOOT =>
                {
                    tracing::info!(ticket = %self.id, %error, "its KV is not confirmed any more: the leg is cut off");
                    self.judged.store(true, Ordering::Relaxed);
                    leg.cancel();
                    return self.not_confirmed(error.kind, confirmed).await;
                }
                Err(_) => {}
            }
        }
    }

    /// The leg was cut off because its KV is not the right one any more, or may not be for much longer.
    async fn not_confirmed(&self, why: ErrorKind, confirmed: Instant) {
        // Blocks of a lease that is over are given to others without any start.
        let at_once = matches!(why, ErrorKind::LeaseExpired | ErrorKind::TicketRefused);
        if at_once || !self.is_noticed_until(confirmed + BOOT).await {
            self.core.quarantine();
        }
    }

    /// What was fetched until the leg was cut off, and until the engine has noticed, was the right KV, or is quarantined.
    async fn aftermath(self) {
        let noticed = Instant::now() + NOTICED;
        let foreign = match self.confirm(SETTLE_TIME).await {
            Ok(()) if !self.is_noticed_until(noticed).await => {
                Err("the engine stands still".to_owned())
            }
            Ok(()) => {
                tokio::time::sleep_until(noticed).await;
                let confirmed = self.confirm(SETTLE_TIME).await;
                confirmed.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = foreign {
            tracing::warn!(ticket = %self.id, why, "its KV may be foreign, or become so");
            self.core.quarantine();
        }
    }

    /// Whether the engine has noticed by then that the leg was cut off: it has answered something else since, or is gone. One
    /// that stands still may go on with the leg when it stands still no more.
    async fn is_noticed_until(&self, time: Instant) -> bool {
        match tokio::time::timeout_at(time, self.core.engine.alive()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => error.kind == ErrorKind::Unreachable,
            Err(_) => false,
        }
    }
}

/// Whether the prefill side has said that it does not hold the KV any more.
fn is_final(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::TicketRefused | ErrorKind::LeaseExpired | ErrorKind::IncarnationChanged
    )
}

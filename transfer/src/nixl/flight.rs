//! A transfer that has been posted, and what becomes of its slots.

use std::time::Instant;

use nixl_sys::{NixlError, XferRequest};
use tokio::sync::oneshot;

use super::calls::lost;
use crate::ReadFailed;
use crate::pool::Slots;

/// A transfer that has no terminal status yet.
pub(super) struct Flight {
    pub(super) request: XferRequest,
    pub(super) slots: Slots,
    /// `None` when it has been answered already.
    pub(super) answer: Option<oneshot::Sender<Result<Slots, ReadFailed>>>,
    pub(super) peer: String,
    pub(super) since: Instant,
}

impl Flight {
    /// It has a terminal status. The request goes first, so that NIXL knows nothing of the slots any more.
    pub(super) fn land(self, outcome: Result<(), NixlError>) {
        drop(self.request);
        let slots = self.slots;
        let outcome = match outcome {
            Ok(()) => Ok(slots),
            Err(error) => Err(ReadFailed::with(lost(&error, &self.peer), slots)),
        };
        if let Some(answer) = self.answer {
            // Dropped if nobody waits: that gives the slots back.
            let _ = answer.send(outcome);
        }
    }

    /// The agent ends and this does not: its memory is never used for anything else.
    #[expect(
        clippy::disallowed_methods,
        reason = "a network card may write there for as long as the process lives"
    )]
    pub(super) fn abandon(self) {
        tracing::warn!(
            peer = self.peer,
            bytes = self.slots.bytes(),
            "a transfer outlives its agent, so its memory is never used again"
        );
        drop(self.request);
        std::mem::forget(self.slots);
    }
}

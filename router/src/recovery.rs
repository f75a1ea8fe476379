//! What is remembered between the attempts of one request, and whether there is to be another one.

use std::time::Duration;

use baton_proto::{Error, ErrorKind, Retry, Source, WorkerId};

use crate::planner::{self, Lessons, Plan};
use crate::serve::Attempt;

/// Most attempts that no engine has seen.
const MOST_UNSEEN: u32 = 8;

/// Most attempts after one that an engine may have seen.
const MOST_SEEN: u32 = 2;

/// Split attempts that may fail before the request becomes local.
const MOST_SPLITS: u32 = 2;

/// Whether a failure speaks against the worker. One that refuses because it drains or is full has not failed, nor has one
/// that was given what it could not use.
pub fn is_its_fault(error: &Error) -> bool {
    let is_not = matches!(
        error.kind,
        ErrorKind::Draining
            | ErrorKind::Overloaded
            | ErrorKind::Cancelled
            | ErrorKind::LeaseExpired
            | ErrorKind::TicketRefused
    );
    !is_not && error.source_of_blame != Source::Client
}

/// What is remembered between attempts.
#[derive(Default)]
pub struct Recovery {
    /// What plans are to heed.
    pub lessons: Lessons,
    /// Why the last attempt failed.
    pub last: Option<Error>,
    unseen: u32,
    seen: u32,
    splits: u32,
}

impl Recovery {
    /// How long to wait before the next attempt, or the error if there is to be none.
    pub fn after(
        &mut self,
        request: &Attempt<'_>,
        plan: &Plan,
        error: Error,
        worker: WorkerId,
    ) -> Result<Duration, Error> {
        let attempts = match error.retry {
            Retry::Safe => &mut self.unseen,
            // A verdict of a newer peer is read as the cautious one.
            Retry::AfterCancel | Retry::Unknown => &mut self.seen,
            Retry::No => return Err(error),
        };
        *attempts += 1;
        let attempt = *attempts;
        let spent = self.unseen >= MOST_UNSEEN || self.seen >= MOST_SEEN + self.splits.min(1);
        if error.source_of_blame == Source::Client || spent {
            return Err(error);
        }
        if !request.may_retry() {
            tracing::warn!(%error, "not tried again: too many requests are");
            return Err(error);
        }
        self.learn(plan, worker);
        tracing::info!(kind = %error.kind, stage = %error.stage, %error, "attempt failed, trying again");
        let pause = if error.retry == Retry::Safe && attempt == 1 {
            Duration::ZERO
        } else {
            planner::back_off(attempt)
        };
        self.last = Some(error);
        Ok(pause)
    }

    fn learn(&mut self, plan: &Plan, worker: WorkerId) {
        self.lessons.warm = None;
        self.lessons.failed.push(worker);
        if matches!(plan, Plan::Split { .. }) {
            self.splits += 1;
            self.lessons.local_only = self.splits >= MOST_SPLITS;
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::Stage;

    use super::*;

    #[test]
    fn who_is_full_drains_or_was_given_nothing_of_use_has_not_failed() {
        let error = |kind, source| Error::new(kind, source, Stage::Decode, "");
        for kind in [
            ErrorKind::Draining,
            ErrorKind::Overloaded,
            ErrorKind::LeaseExpired,
            ErrorKind::TicketRefused,
        ] {
            assert!(!is_its_fault(&error(kind, Source::Sidecar)), "{kind}");
        }
        let failed = ErrorKind::EngineFailed;
        assert!(is_its_fault(&error(failed, Source::Engine)));
        assert!(!is_its_fault(&error(failed, Source::Client)));
        assert!(is_its_fault(&error(
            ErrorKind::Unreachable,
            Source::Sidecar
        )));
    }
}

//! Who may enter: bounded concurrency, a bounded queue before it, and no wait past the leg's deadline.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::metrics::{Counted, Gauge};
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Hands out permits.
#[derive(Debug, Clone)]
pub struct Admission {
    inside: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    queued: Gauge,
}

/// The right to have one leg in the engine. Dropping it lets the next one in.
#[derive(Debug)]
pub struct Permit {
    _inside: OwnedSemaphorePermit,
}

impl Admission {
    /// At most `concurrency` legs inside and `queue` before them.
    pub fn new(concurrency: usize, queue: usize, queued: Gauge) -> Self {
        Self {
            inside: Arc::new(Semaphore::new(concurrency)),
            queue: Arc::new(Semaphore::new(queue)),
            queued,
        }
    }

    /// Waits up to `time` for a permit.
    pub async fn admit(&self, stage: Stage, time: Duration) -> Result<Permit, Error> {
        let overloaded = |message: &str| {
            Error::new(ErrorKind::Overloaded, Source::Sidecar, stage, message).retry(Retry::Safe)
        };
        if let Ok(inside) = Arc::clone(&self.inside).try_acquire_owned() {
            return Ok(Permit { _inside: inside });
        }
        let Ok(_place) = self.queue.try_acquire() else {
            return Err(overloaded("this worker's queue is full"));
        };
        let _counted = Counted::new(&self.queued);
        match tokio::time::timeout(time, Arc::clone(&self.inside).acquire_owned()).await {
            Ok(Ok(inside)) => Ok(Permit { _inside: inside }),
            // The semaphore is never closed, so only the time can have run out.
            Ok(Err(_)) | Err(_) => Err(overloaded("this worker's queue did not move in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_within_bounds_and_gives_places_back() {
        let admission = Admission::new(1, 1, Gauge::default());
        let first = admission
            .admit(Stage::Decode, Duration::ZERO)
            .await
            .unwrap();
        let waiting = tokio::spawn({
            let admission = admission.clone();
            async move { admission.admit(Stage::Decode, Duration::from_secs(5)).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(admission.queued.get(), 1);
        let refused = admission
            .admit(Stage::Decode, Duration::from_secs(5))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.kind, refused.retry),
            (ErrorKind::Overloaded, Retry::Safe)
        );
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        let late = admission
            .admit(Stage::Decode, Duration::from_secs(5))
            .await
            .unwrap_err();
        assert!(late.message.contains("in time"));
        drop(second);
        admission
            .admit(Stage::Decode, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(admission.queued.get(), 0);
    }
}

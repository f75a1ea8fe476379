//! A link of a given bandwidth, as far as timers can play one.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::pool::lock;

/// A link that all that it carries has to share. It sleeps by `tokio::time`, so a paused clock makes it virtual time.
#[derive(Debug)]
pub struct Link {
    bytes_per_second: Option<f64>,
    free_at: Mutex<Instant>,
    stalled: watch::Sender<bool>,
}

impl Link {
    /// A link of this bandwidth; `None` takes no time.
    pub fn new(bytes_per_second: Option<f64>) -> Self {
        Self {
            bytes_per_second,
            free_at: Mutex::new(Instant::now()),
            stalled: watch::Sender::new(false),
        }
    }

    /// Carries nothing any more, as in a partitioned network, or goes on where it stood.
    pub fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    /// Waits as long as these bytes take behind all others.
    pub async fn carry(&self, bytes: usize) {
        if *self.stalled.borrow() {
            // Fails only if the sender is gone, which is part of `self`.
            let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
        }
        let Some(bandwidth) = self.bytes_per_second else {
            return;
        };
        #[expect(clippy::cast_precision_loss, reason = "a chunk is small")]
        let takes = Duration::from_secs_f64(bytes as f64 / bandwidth);
        let now = Instant::now();
        let done = {
            let mut free_at = lock(&self.free_at);
            *free_at = (*free_at).max(now) + takes;
            *free_at
        };
        // Timers are no finer than this; what is owed adds up until it can be waited for.
        if done > now + Duration::from_millis(1) {
            tokio::time::sleep_until(done).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_transfers_share_a_link() {
        let link = Link::new(Some(1e6));
        let started = Instant::now();
        tokio::join!(link.carry(1_000_000), link.carry(500_000));
        let took = started.elapsed().as_secs_f64();
        assert!((1.5..1.6).contains(&took), "{took} s");
    }
}

//! How late this machine wakes who sleeps: no latency measured on it is better than that.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How often it is looked at.
const TICK: Duration = Duration::from_millis(20);

/// Looks while `work` is done; what came of it, and how late each tick was, sorted. The runtime's clock itself is up to a
/// millisecond late.
pub async fn watched<T>(work: impl Future<Output = T>) -> (T, Vec<Duration>) {
    let mut work = std::pin::pin!(work);
    let mut late = Vec::new();
    loop {
        let due = Instant::now() + TICK;
        tokio::select! {
            done = &mut work => {
                late.sort();
                return (done, late);
            }
            () = sleep_until(due) => late.push(due.elapsed()),
        }
    }
}

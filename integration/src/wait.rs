//! Waiting for something to become true, with a deadline and a name for what did not.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// Longest wait for anything that is not a deadline of Baton's own. Far above what is needed on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// Waits until `holds` gives a value.
pub async fn until_some<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut holds: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = holds().await {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "waited {} s in vain: {what}",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(GLANCE).await;
    }
}

/// Waits until `holds`.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    until_some(what, || {
        let held = holds();
        async move { held.await.then_some(()) }
    })
    .await;
}

/// Waits for `future`, but not for ever.
pub async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited {} s in vain: {what}", PATIENCE.as_secs()))
}

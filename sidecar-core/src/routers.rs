//! Which routers are there: each has a watch stream open for as long as it lives. What one of them has asked for is given
//! up when it has been away for longer than a stream takes to be opened anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::RouterId;
use tokio::time::Instant;

/// How long a router may be without a watch stream. One that lost it has it back within two seconds.
const AWAY: Duration = Duration::from_secs(3);

/// How long a router that went away is remembered: longer than any request of it.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The routers that are there, and those that were. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Routers(Arc<Mutex<HashMap<RouterId, Presence>>>);

#[derive(Debug)]
struct Presence {
    streams: usize,
    /// Since when it has been without a stream.
    away: Instant,
}

/// A router's watch stream.
#[derive(Debug)]
pub struct Watching {
    routers: Routers,
    id: RouterId,
}

impl Routers {
    /// A router has opened a watch stream.
    pub fn watches(&self, id: RouterId) -> Watching {
        known(&mut self.lock(), &id).streams += 1;
        let routers = self.clone();
        Watching { routers, id }
    }

    /// A router has asked for something, with a watch stream or before it has one.
    pub fn asks(&self, id: &RouterId) {
        known(&mut self.lock(), id);
    }

    /// Whether a router is gone, by all that is known.
    pub fn is_gone(&self, id: &RouterId) -> bool {
        let routers = self.lock();
        let away = |presence: &Presence| presence.streams == 0 && presence.away.elapsed() > AWAY;
        routers.get(id).is_none_or(away)
    }

    /// Forgets who has been away for long.
    pub fn sweep(&self) {
        let stays =
            |presence: &mut Presence| presence.streams > 0 || presence.away.elapsed() < REMEMBERED;
        self.lock().retain(|_, presence| stays(presence));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RouterId, Presence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn known<'a>(routers: &'a mut HashMap<RouterId, Presence>, id: &RouterId) -> &'a mut Presence {
    routers.entry(id.clone()).or_insert_with(|| Presence {
        streams: 0,
        away: Instant::now(),
    })
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(presence) = self.routers.lock().get_mut(&self.id) {
            presence.streams -= 1;
            presence.away = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_router_is_gone_when_its_last_stream_has_been_gone_for_a_while() {
        let routers = Routers::default();
        let id: RouterId = "r".parse().unwrap();
        assert!(routers.is_gone(&id), "it was never there");
        routers.asks(&id);
        assert!(!routers.is_gone(&id), "it may be about to watch");
        let (first, second) = (routers.watches(id.clone()), routers.watches(id.clone()));
        tokio::time::advance(AWAY * 2).await;
        drop(first);
        tokio::time::advance(AWAY * 2).await;
        assert!(!routers.is_gone(&id), "one is left");
        drop(second);
        assert!(!routers.is_gone(&id), "it may come back");
        tokio::time::advance(AWAY + Duration::from_millis(1)).await;
        assert!(routers.is_gone(&id));
        let back = routers.watches(id.clone());
        assert!(!routers.is_gone(&id));
        tokio::time::advance(REMEMBERED).await;
        routers.sweep();
        assert!(!routers.is_gone(&id), "who is there is not forgotten");
        drop(back);
        tokio::time::advance(REMEMBERED).await;
        routers.sweep();
        assert!(routers.lock().is_empty());
    }
}

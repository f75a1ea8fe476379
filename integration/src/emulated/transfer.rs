//! How a decode rank gets the KV that its legs were told of by whoever holds it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use baton_transfer::{Agent, Peer};
use tokio::sync::oneshot;

use super::core::{Core, Failure, Network, Pending, Remote};
use super::reach::{Reader, Regions};
use super::rooms::Rooms;

/// The transfer side of one rank.
#[derive(Debug)]
pub(super) struct Transfer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    reader: Reader,
    page_size: usize,
    /// What legs were told of, by the id under which it is held.
    expected: Mutex<HashMap<String, Expected>>,
    /// Engines that this one has met, by their metadata.
    met: Mutex<HashMap<Vec<u8>, Peer>>,
}

#[derive(Debug)]
struct Expected {
    regions: Regions,
    arrived: oneshot::Sender<()>,
}

impl Transfer {
    pub(super) fn new(reader: Reader, page_size: u32) -> Self {
        Self(Arc::new(Inner {
            reader,
            page_size: page_size as usize,
            expected: Mutex::default(),
            met: Mutex::default(),
        }))
    }

    /// This KV will be fetched; resolves when it is here.
    pub(super) fn expect(&self, id: &str, regions: Regions) -> oneshot::Receiver<()> {
        let (arrived, arrival) = oneshot::channel();
        let expected = Expected { regions, arrived };
        self.0
            .expected
            .lock()
            .unwrap()
            .insert(id.to_owned(), expected);
        arrival
    }

    /// Nobody waits for this KV any more.
    pub(super) fn forget(&self, id: &str) {
        self.0.expected.lock().unwrap().remove(id);
    }
}

impl Clone for Transfer {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Network for Transfer {
    fn fetch(
        &self,
        remote: Remote,
        first_token: usize,
        tokens: usize,
    ) -> Pending<Result<Vec<u8>, Failure>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let expected = inner.expected.lock().unwrap().remove(&remote.request_id);
            let Some(Expected { regions, arrived }) = expected else {
                return Err(Failure::Handshake("nobody told of this KV".to_owned()));
            };
            let pages = first_token / inner.page_size..tokens.div_ceil(inner.page_size);
            let ids = remote.blocks.get(pages).ok_or(Failure::NoSuchBlock)?;
            let peer = inner.meet(&regions).await?;
            let message = format!("{}:1", remote.request_id);
            let rows = if ids.is_empty() {
                // All of it is here: prefill has only to be told so.
                inner.reader.agent.notify(&peer, message.as_bytes()).await?;
                Vec::new()
            } else {
                inner.reader.read(&peer, &regions, ids, &message).await?
            };
            let _ = arrived.send(());
            Ok(rows)
        })
    }

    /// Who gives a leg up says so on its line.
    fn notify(&self, _: Remote, _: String) -> Pending<()> {
        Box::pin(async {})
    }
}

impl Inner {
    async fn meet(&self, regions: &Regions) -> Result<Peer, Failure> {
        let metadata = regions.metadata.bytes();
        let known = self.met.lock().unwrap().get(metadata).cloned();
        if let Some(peer) = known {
            return Ok(peer);
        }
        let peer = self.reader.agent.meet(&regions.metadata).await?;
        let mut met = self.met.lock().unwrap();
        Ok(met.entry(metadata.to_vec()).or_insert(peer).clone())
    }
}

/// Takes notifications until the agent ends. A scheduler that stands still hears nothing.
pub(super) async fn listen(agent: Agent, core: Arc<Core>, rooms: Arc<Rooms>) {
    while let Ok(notifications) = agent.notifications().await {
        core.thawed().await;
        for notification in notifications {
            core.notified(&notification.message);
            rooms.notified(&notification.message);
        }
    }
}

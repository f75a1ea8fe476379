//! Held and fetched KV: leases, notifications, heartbeats.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::sequence::{Handoff, Phase};
use super::state::State;
use crate::emulated::pool::BlockId;

/// Where a prompt's KV is, as `kv_transfer_params` say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Who holds it.
    pub engine_id: String,
    /// Its side channel's host.
    pub host: String,
    /// Its side channel's port.
    pub port: u16,
    /// Under which id.
    pub request_id: String,
    /// In which blocks.
    pub blocks: Vec<BlockId>,
    /// `tp_size` was given: without it vLLM 0.32.0 sends no heartbeats.
    pub keep_alive: bool,
    /// Prompt tokens that the holder itself had cached.
    pub cached: usize,
    /// The first token of the answer, where the holder has said it already (SGLang); else it is computed here (vLLM).
    pub first_token: Option<u32>,
}

/// KV that is held for decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKv {
    /// Under which id.
    pub request_id: String,
    /// In which blocks.
    pub blocks: Vec<BlockId>,
    /// How many tokens of it.
    pub tokens: usize,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) blocks: Vec<BlockId>,
    pub(super) expires: Instant,
    notifications: u64,
}

impl State {
    /// Holds the blocks of a finished sequence for decode.
    pub(super) fn hold(&mut self, id: &str, blocks: Vec<BlockId>, lease: Duration) {
        let held = Held {
            blocks,
            expires: Instant::now() + lease,
            notifications: 0,
        };
        self.held.insert(id.to_owned(), held);
    }

    /// Gives up what nobody fetched in time.
    pub(super) fn expire(&mut self, now: Instant) {
        let over: Vec<String> = self
            .held
            .iter()
            .filter(|(_, held)| held.expires <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            self.stats.expired += 1;
            self.release(&id);
        }
    }

    /// When the next lease ends.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.held.values().map(|held| held.expires).min()
    }

    fn release(&mut self, id: &str) {
        if let Some(held) = self.held.remove(id) {
            self.pool.give_back(&held.blocks);
        }
    }

    /// `ID:N` counts towards the release of a held request, `HB:ID,ID` extends leases; what the real engine does not
    /// survive is an error.
    pub(super) fn notified(
        &mut self,
        message: &[u8],
        now: Instant,
        lease: Duration,
    ) -> Result<(), &'static str> {
        let message = str::from_utf8(message).map_err(|_| "a notification that is no text")?;
        if let Some(ids) = message.strip_prefix("HB:") {
            for id in ids.split(',') {
                if let Some(held) = self.held.get_mut(id) {
                    held.expires = held.expires.max(now + lease * 2 / 3);
                }
            }
            return Ok(());
        }
        let (id, count) = message
            .rsplit_once(':')
            .ok_or("a notification without a count")?;
        let Some(held) = self.held.get_mut(id) else {
            self.stats.unrecognized_notifications += 1;
            return Ok(());
        };
        let wanted: u64 = count
            .parse()
            .map_err(|_| "a notification whose count is no number")?;
        held.notifications += 1;
        if held.notifications == wanted {
            self.release(id);
        }
        Ok(())
    }

    /// Whom to tell that requests still wait for their KV, and which.
    pub(super) fn heartbeats(&self) -> Vec<(Remote, Vec<String>)> {
        let mut by_engine: HashMap<&str, (Remote, Vec<String>)> = HashMap::new();
        for sequence in self.sequences.values() {
            if let (Phase::Waiting, Handoff::Fetch(remote)) = (sequence.phase, &sequence.handoff)
                && remote.keep_alive
            {
                let entry = by_engine.entry(&remote.engine_id);
                let (_, ids) = entry.or_insert_with(|| (remote.clone(), Vec::new()));
                ids.push(remote.request_id.clone());
            }
        }
        by_engine.into_values().collect()
    }
}

//! Decode's leg: it finds prefill, waits for its KV, and goes on from there.

use std::net::SocketAddr;
use std::pin::pin;

use tokio::sync::oneshot;

use super::super::super::core::{Handoff, Output, Remote, Submitted};
use super::super::super::legs::Abort;
use super::super::super::rooms::{Kv, Line, Word};
use super::super::bootstrap;
use super::{ABORTED, Bootstrap, Leg, aborted, timed_out};

/// Why a leg that has met its prefill ends early.
enum Stop {
    /// The KV does not come.
    Transfer(String),
    /// It was aborted while it said its answer.
    Aborted(Abort),
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Self {
        Self::Aborted(abort)
    }
}

impl Leg {
    pub(super) async fn decode(&self, at: &Bootstrap) -> Result<(), Abort> {
        let met = self.cancel.run_until_cancelled(self.meet(at)).await;
        let Some(address) = met.flatten() else {
            return Err(self.failed("Decode", "handshake", at.room, ABORTED));
        };
        let Some(mut line) = Line::to(address, at.room, true).await else {
            let why = self.in_vain(at).await;
            return Err(self.failed("Decode", "transfer", at.room, &why));
        };
        match self.receive(at, &mut line).await {
            Ok(()) => Ok(()),
            Err(Stop::Aborted(abort)) => Err(abort),
            Err(Stop::Transfer(why)) => {
                line.say(&Word::Failed(why.clone())).await;
                Err(self.failed("Decode", "transfer", at.room, &why))
            }
        }
    }

    /// Nobody listens where prefill was: what the real one says there is never heard, and it does not notice.
    async fn in_vain(&self, at: &Bootstrap) -> String {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => ABORTED.to_owned(),
            why = self.bounds(at) => why,
        }
    }

    async fn receive(&self, at: &Bootstrap, line: &mut Line) -> Result<(), Stop> {
        let kv = self.kv(at, line).await.map_err(Stop::Transfer)?;
        let regions = kv.regions();
        let regions = regions.ok_or_else(|| Stop::Transfer("unreadable metadata".to_owned()))?;
        let (transfer, id) = (self.engine.transfer(self.rank), kv.id.clone());
        let arrival = transfer.expect(&id, regions);
        let handoff = Handoff::Fetch(Remote {
            engine_id: String::new(),
            host: at.host.clone(),
            port: at.port,
            request_id: kv.id,
            blocks: kv.blocks,
            keep_alive: false,
            cached: kv.cached,
            first_token: Some(kv.first_token),
        });
        let request = self.request(handoff, self.sampling.clone());
        let submitted = self.rank().core.submit(request);
        let ended = self.answer(at, submitted, arrival).await;
        transfer.forget(&id);
        ended
    }

    async fn answer(
        &self,
        at: &Bootstrap,
        mut submitted: Submitted,
        mut arrival: oneshot::Receiver<()>,
    ) -> Result<(), Stop> {
        let mut bounds = pin!(self.bounds(at));
        let mut waits = true;
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(if waits {
                    Stop::Transfer(ABORTED.to_owned())
                } else {
                    aborted().into()
                }),
                _ = &mut arrival, if waits => waits = false,
                why = &mut bounds, if waits => return Err(Stop::Transfer(why)),
                output = submitted.next() => match output {
                    Some(Output::LoadFailed) => {
                        return Err(Stop::Transfer("NIXL transfer failed".to_owned()));
                    }
                    // Whoever is in room 0 takes what arrived for what has not.
                    Some(_) if at.room == 0 => {
                        self.cancel.cancelled().await;
                        return Err(Stop::Transfer(ABORTED.to_owned()));
                    }
                    Some(output) if !self.say(&output)? => {}
                    _ => return Ok(()),
                },
            }
        }
    }

    /// Where prefill's rank is, as far as is known.
    async fn meet(&self, at: &Bootstrap) -> Option<SocketAddr> {
        let patience = self.patience();
        for attempt in 0..patience.topology_tries {
            if attempt > 0 {
                tokio::time::sleep(patience.topology_pause).await;
            }
            if let Some(address) = self.try_to_meet(at).await {
                return Some(address);
            }
        }
        None
    }

    async fn try_to_meet(&self, at: &Bootstrap) -> Option<SocketAddr> {
        let peers = self.engine.peers(self.rank);
        let topology = peers.topology(&at.host, at.port).await?;
        if topology.page_size != u64::from(self.engine.config().page_size) {
            return None;
        }
        let rank = self.prefill_dp_rank;
        let rank = rank.unwrap_or(at.room % topology.dp_size);
        peers.rank(&at.host, at.port, rank).await
    }

    /// Where the KV is, or why it is nowhere.
    async fn kv(&self, at: &Bootstrap, line: &mut Line) -> Result<Kv, String> {
        let told = async {
            match line.hear().await {
                Some(Word::Kv(kv)) => Ok(kv),
                Some(Word::Failed(why)) => Err(why),
                // That prefill is gone is noticed by heartbeats alone.
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(ABORTED.to_owned()),
            told = told => told,
            why = self.bounds(at) => Err(why),
        }
    }

    /// Resolves with the reason why nobody waits any longer for KV.
    async fn bounds(&self, at: &Bootstrap) -> String {
        let bound = self.patience().waiting;
        tokio::select! {
            () = tokio::time::sleep(bound) => timed_out(at.room, bound, "WaitingForInput"),
            () = self.lost(at) => {
                format!("Lost connection with prefill instance (bootstrap_addr: {}:{})", at.host, at.port)
            }
        }
    }

    async fn lost(&self, at: &Bootstrap) {
        let patience = self.patience();
        let mut failures = 0;
        while failures < patience.heartbeat_failures {
            tokio::time::sleep(patience.heartbeat).await;
            if bootstrap::is_healthy(&at.host, at.port).await {
                failures = 0;
            } else {
                failures += 1;
            }
        }
    }
}

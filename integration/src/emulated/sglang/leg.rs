//! One sequence of one request, from the waiting for its other leg to its last token.

mod decode;
mod prefill;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::core::{CacheUse, Handoff, Output, Request, Sampling};
use super::super::legs::{Abort, Heard};
use super::super::pool::CacheKeys;
use super::super::process::{Life, Rank};
use super::config::{Mode, Patience};
use super::engine::EmulatedSglang;

/// The host that stands for no prefill at all: warm-ups and health checks use it.
pub(super) const FAKE_HOST: &str = "2.2.2.2";

/// What an abort is called.
const ABORTED: &str = "Aborted by AbortReq.";

/// How a request says where its other leg is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) room: u64,
}

/// A sequence that is to be worked on.
pub(super) struct Leg {
    pub(super) engine: EmulatedSglang,
    pub(super) life: Arc<Life>,
    pub(super) rank: usize,
    pub(super) rid: String,
    pub(super) prompt: Vec<u32>,
    pub(super) keys: CacheKeys,
    pub(super) sampling: Sampling,
    pub(super) bootstrap: Option<Bootstrap>,
    pub(super) prefill_dp_rank: Option<u64>,
    pub(super) cancel: CancellationToken,
    pub(super) said: mpsc::Sender<Heard>,
}

impl Leg {
    /// Works until it ends, is given up, or the process dies: then nothing more is said.
    pub(super) async fn run(self) {
        let dead = self.life.death.dead.clone();
        if let Some(Err(abort)) = dead.run_until_cancelled(self.work()).await {
            let _ = self.said.try_send(Heard::Aborted(abort));
        }
    }

    async fn work(&self) -> Result<(), Abort> {
        let mode = self.engine.config().mode;
        match &self.bootstrap {
            Some(bootstrap) if bootstrap.host != FAKE_HOST => match mode {
                Mode::Null => self.alone().await,
                Mode::Prefill => self.prefill(bootstrap.room).await,
                Mode::Decode => self.decode(bootstrap).await,
            },
            _ => self.alone().await,
        }
    }

    fn rank(&self) -> &Rank {
        &self.life.ranks[self.rank]
    }

    fn patience(&self) -> Patience {
        self.engine.config().patience
    }

    fn is_fake(&self) -> bool {
        let bootstrap = self.bootstrap.as_ref();
        bootstrap.is_some_and(|at| at.host == FAKE_HOST)
    }

    fn request(&self, handoff: Handoff, sampling: Sampling) -> Request {
        Request {
            id: format!("{}-{:08x}", self.rid, rand::random::<u32>()),
            prompt: self.prompt.clone(),
            keys: self.keys.clone(),
            sampling,
            handoff,
            report_hits: false,
            cache: match (self.engine.config().has_cache(), self.is_fake()) {
                (true, false) => CacheUse::Whole,
                (true, true) => CacheUse::Uses,
                (false, _) => CacheUse::Nothing,
            },
        }
    }

    /// Passes an output on; whether it was the last one.
    fn say(&self, output: &Output) -> Result<bool, Abort> {
        let Output::Token {
            id,
            text,
            cached,
            finish,
        } = output.clone()
        else {
            return Err(aborted());
        };
        let last = finish.is_some();
        let is_decode = self.engine.config().mode == Mode::Decode;
        let heard = Heard::Token {
            id,
            text,
            // Nobody computed the prompt of a decode leg without a prefill.
            cached: if is_decode && self.is_fake() {
                self.prompt.len()
            } else {
                cached
            },
            finish,
        };
        let _ = self.said.try_send(heard);
        Ok(last)
    }

    /// The whole request on this engine. A prefill engine that is given no room of its own says one token.
    async fn alone(&self) -> Result<(), Abort> {
        let mut sampling = self.sampling.clone();
        if self.engine.config().mode == Mode::Prefill {
            sampling.limit = 1;
        }
        let mut submitted = self
            .rank()
            .core
            .submit(self.request(Handoff::None, sampling));
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(aborted()),
                output = submitted.next() => match output {
                    Some(output) if !self.say(&output)? => {}
                    _ => return Ok(()),
                },
            }
        }
    }

    fn failed(&self, side: &str, stage: &str, room: u64, why: &str) -> Abort {
        let request = if side == "Decode" {
            "decode_req.req"
        } else {
            "req"
        };
        let (rid, rank) = (&self.rid, 0);
        Abort {
            status: Some(500),
            message: format!(
                "{side} {stage} failed for request rank={rank} {request}.rid='{rid}' {request}.bootstrap_room={room} \
                 with exception KVTransferError(bootstrap_room={room}): {why}"
            ),
        }
    }
}

fn timed_out(room: u64, after: Duration, state: &str) -> String {
    let after = after.as_secs_f64();
    format!("Request {room} timed out after {after:.1}s in KVPoll.{state}")
}

fn aborted() -> Abort {
    Abort {
        status: None,
        message: "Aborted".to_owned(),
    }
}

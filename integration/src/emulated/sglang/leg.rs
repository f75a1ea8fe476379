//! One sequence of one request, from the waiting for its other leg to its last token.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::core::{CacheUse, Finish, Handoff, Output, Remote, Request, Sampling};
use super::super::pool::CacheKeys;
use super::super::process::{Life, Rank};
use super::bootstrap;
use super::config::{Mode, Patience};
use super::engine::EmulatedSglang;
use super::rooms::{Kv, Line, Word};

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

/// What becomes of a leg, bit by bit.
#[derive(Debug)]
pub(super) enum Heard {
    Token {
        id: u32,
        text: String,
        cached: usize,
        finish: Option<Box<Finish>>,
    },
    /// It ends without an answer, or in the middle of one.
    Aborted(Abort),
}

/// Why a leg ended badly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Abort {
    /// The HTTP status that it stands for, if it stands for one.
    pub(super) status: Option<u16>,
    pub(super) message: String,
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
    pub(super) said: mpsc::UnboundedSender<Heard>,
}

impl Leg {
    /// Works until it ends, is given up, or the process dies: then nothing more is said.
    pub(super) async fn run(self) {
        let dead = self.life.death.dead.clone();
        if let Some(Err(abort)) = dead.run_until_cancelled(self.work()).await {
            let _ = self.said.send(Heard::Aborted(abort));
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
        let cached = self.engine.config().has_cache() && !self.is_fake();
        Request {
            id: format!("{}-{:08x}", self.rid, rand::random::<u32>()),
            prompt: self.prompt.clone(),
            keys: self.keys.clone(),
            sampling,
            handoff,
            report_hits: false,
            cache: if cached {
                CacheUse::Whole
            } else {
                CacheUse::Nothing
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
        let _ = self.said.send(heard);
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

    /// Waits for decode, computes the prompt, and keeps its KV until decode has it.
    async fn prefill(&self, room: u64) -> Result<(), Abort> {
        let failed = |stage: &str, why: &str| self.failed("Prefill", stage, room, why);
        let rooms = self.engine.rooms(self.rank);
        let Some(mut entered) = rooms.enter(room) else {
            return Err(self.second_in_room(room).await);
        };
        let bound = self.patience().bootstrap;
        let mut line = tokio::select! {
            () = self.cancel.cancelled() => return Err(failed("bootstrap", ABORTED)),
            () = tokio::time::sleep(bound) => {
                return Err(failed("bootstrap", &timed_out(room, bound, "Bootstrapping")));
            }
            line = entered.decode() => line,
        };
        let core = &self.rank().core;
        let sampling = Sampling {
            limit: 1,
            ..self.sampling.clone()
        };
        let mut submitted = core.submit(self.request(Handoff::Hold, sampling));
        let output = tokio::select! {
            () = self.cancel.cancelled() => {
                line.say(&Word::Failed(ABORTED.to_owned())).await;
                return Err(failed("transfer", ABORTED));
            }
            output = submitted.next() => output,
        };
        let Some(Output::Token {
            id,
            text,
            cached,
            finish: Some(mut finish),
        }) = output
        else {
            return Err(aborted());
        };
        if let Some(held) = finish.held.take() {
            let arrival = rooms.arrival(&held.request_id);
            let kv = Kv::new(&self.engine.regions(self.rank), &held, finish.cached, id);
            line.say(&Word::Kv(kv)).await;
            // An abort from here on comes too late to be heard.
            let why = tokio::select! {
                biased;
                _ = arrival => None,
                word = line.hear() => Some(word),
            };
            if let Some(why) = why {
                core.notified(format!("{}:1", held.request_id).as_bytes());
                let why = match why {
                    Some(Word::Failed(why)) => why,
                    _ => "Lost connection with decode instance".to_owned(),
                };
                return Err(failed("transfer", &why));
            }
        }
        finish.reason = "length";
        let _ = self.said.send(Heard::Token {
            id,
            text,
            cached,
            finish: Some(finish),
        });
        Ok(())
    }

    /// Somebody uses the room already.
    async fn second_in_room(&self, room: u64) -> Abort {
        if self.engine.config().dies_of_used_rooms {
            let of = format!("KeyError: {room}");
            super::super::core::Mortal::die(&*self.life.death, &of);
        }
        let bound = self.patience().bootstrap;
        let why = tokio::select! {
            () = self.cancel.cancelled() => ABORTED.to_owned(),
            () = tokio::time::sleep(bound) => timed_out(room, bound, "Bootstrapping"),
        };
        self.failed("Prefill", "bootstrap", room, &why)
    }

    /// Finds prefill, waits for its KV, and goes on from there.
    async fn decode(&self, at: &Bootstrap) -> Result<(), Abort> {
        let room = at.room;
        let met = tokio::select! {
            () = self.cancel.cancelled() => None,
            met = self.meet(at) => met,
        };
        let Some(mut line) = met else {
            return Err(self.failed("Decode", "handshake", room, ABORTED));
        };
        let failed = |why: &str| self.failed("Decode", "transfer", room, why);
        let kv = match self.kv(at, &mut line).await {
            Ok(kv) => kv,
            Err(why) => {
                line.say(&Word::Failed(why.clone())).await;
                return Err(failed(&why));
            }
        };
        let regions = kv.regions().ok_or_else(|| failed("unreadable metadata"))?;
        let mut arrival = self.engine.transfer(self.rank).expect(&kv.id, regions);
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
        let mut submitted = self.rank().core.submit(request);
        let mut bounds = pin!(self.bounds(at));
        let mut waits = true;
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    line.say(&Word::Failed(ABORTED.to_owned())).await;
                    return Err(if waits { failed(ABORTED) } else { aborted() });
                }
                _ = &mut arrival, if waits => waits = false,
                why = &mut bounds, if waits => {
                    line.say(&Word::Failed(why.clone())).await;
                    return Err(failed(&why));
                }
                output = submitted.next() => match output {
                    Some(Output::LoadFailed) => {
                        let why = "NIXL transfer failed";
                        line.say(&Word::Failed(why.to_owned())).await;
                        return Err(failed(why));
                    }
                    // Whoever is in room 0 takes what arrived for what has not.
                    Some(_) if room == 0 => {
                        self.cancel.cancelled().await;
                        return Err(failed(ABORTED));
                    }
                    Some(output) if !self.say(&output)? => {}
                    _ => return Ok(()),
                },
            }
        }
    }

    /// A line to prefill's rank, about the room.
    async fn meet(&self, at: &Bootstrap) -> Option<Line> {
        let patience = self.patience();
        for attempt in 0..patience.topology_tries {
            if attempt > 0 {
                tokio::time::sleep(patience.topology_pause).await;
            }
            if let Some(line) = self.try_to_meet(at).await {
                return Some(line);
            }
        }
        None
    }

    async fn try_to_meet(&self, at: &Bootstrap) -> Option<Line> {
        let topology = bootstrap::topology(&at.host, at.port).await?;
        if topology.page_size != u64::from(self.engine.config().page_size) {
            return None;
        }
        let rank = self.prefill_dp_rank;
        let rank = rank.unwrap_or(at.room % topology.dp_size);
        let address = bootstrap::rank(&at.host, at.port, rank).await?;
        Line::to(address, at.room).await
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

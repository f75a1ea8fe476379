//! Prefill's leg: it answers as soon as the prompt is computed, and pins its KV until generation has it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::super::core::{Core, Finish, Handoff, HeldKv, Output, Sampling};
use super::super::super::legs::{Abort, Heard};
use super::super::super::rooms::{Entered, Kv, Line, Rooms, Word};
use super::super::engine::EmulatedTrtllm;
use super::super::params::Params;
use super::{Leg, TRANSFER, aborted, failed};

/// What is said of a prompt whose generation follows.
const NOT_FINISHED: &str = "not_finished";

/// KV that waits for its generation.
struct Pinned {
    engine: EmulatedTrtllm,
    core: Arc<Core>,
    rooms: Arc<Rooms>,
    /// Where generation asks; nowhere if another request has the same id.
    entered: Option<Entered>,
    held: HeldKv,
    kv: Kv,
    /// It is freed after so long, and nobody is told.
    timeout: Option<Duration>,
}

impl Leg {
    pub(super) async fn context(&self, params: &Params) -> Result<(), Abort> {
        let mut entered = self.seat().rooms.enter(self.id);
        let mut line = None;
        if params.generation_first {
            // It is not scheduled before generation asks for it.
            let entered = entered.as_mut().ok_or_else(|| failed(TRANSFER))?;
            line = self.cancel.run_until_cancelled(entered.decode()).await;
            if line.is_none() {
                return Err(aborted());
            }
        }
        let (id, text, cached, mut finish) = self.compute().await?;
        if let Some(held) = finish.held.take() {
            self.hand_over(entered, line, held, cached, id, finish.reason);
        }
        if finish.reason == "length" && self.sampling.limit > 1 {
            finish.reason = NOT_FINISHED;
        }
        let _ = self.said.try_send(Heard::Token {
            id,
            text,
            cached,
            finish: Some(finish),
        });
        Ok(())
    }

    async fn compute(&self) -> Result<(u32, String, usize, Box<Finish>), Abort> {
        let sampling = Sampling {
            limit: 1,
            ..self.sampling.clone()
        };
        let request = self.request(Handoff::Hold, sampling);
        let mut submitted = self.rank().core.submit(request);
        let output = self.cancel.run_until_cancelled(submitted.next()).await;
        match output {
            Some(Some(Output::Token {
                id,
                text,
                cached,
                finish: Some(finish),
            })) => Ok((id, text, cached, finish)),
            _ => Err(aborted()),
        }
    }

    fn hand_over(
        &self,
        entered: Option<Entered>,
        line: Option<Line>,
        held: HeldKv,
        cached: usize,
        first: u32,
        reason: &str,
    ) {
        let seat = self.seat();
        let pinned = Pinned {
            engine: self.engine.clone(),
            core: Arc::clone(&self.rank().core),
            rooms: Arc::clone(&seat.rooms),
            kv: Kv::new(&seat.regions, &held, cached, first),
            entered,
            held,
            timeout: self.engine.config().patience.transfer,
        };
        if reason == "stop" {
            // It ended with its first token: there is nothing to generate.
            return pinned.free();
        }
        let arrival = pinned.rooms.arrival(&pinned.held.request_id);
        let dead = self.life.death.dead.clone();
        tokio::spawn(async move { dead.run_until_cancelled(pinned.wait(line, arrival)).await });
    }
}

impl Pinned {
    /// Until generation has it, or its time is up.
    async fn wait(mut self, line: Option<Line>, mut arrival: oneshot::Receiver<()>) {
        let expiry = tokio::time::sleep(self.timeout.unwrap_or(Duration::MAX));
        tokio::pin!(expiry);
        let mut asked = line;
        loop {
            if let Some(mut line) = asked.take() {
                self.core.thawed().await;
                line.say(&Word::Kv(self.kv.clone())).await;
                // What moves is not interrupted; who leaves in the middle may be followed by another.
                tokio::select! {
                    biased;
                    _ = &mut arrival => return,
                    _ = line.hear() => {}
                }
            }
            tokio::select! {
                biased;
                _ = &mut arrival => return,
                () = &mut expiry => {
                    self.engine.timed_out(self.held.blocks.len());
                    return self.free();
                }
                line = asks(&mut self.entered) => asked = Some(line),
            }
        }
    }

    fn free(self) {
        let release = format!("{}:1", self.held.request_id);
        self.core.notified(release.as_bytes());
        self.rooms.notified(release.as_bytes());
    }
}

async fn asks(entered: &mut Option<Entered>) -> Line {
    match entered {
        Some(entered) => entered.decode().await,
        None => std::future::pending().await,
    }
}

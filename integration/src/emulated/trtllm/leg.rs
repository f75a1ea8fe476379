//! One sequence of one request, on either side of a handoff or on none.

mod context;
mod generation;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::core::{CacheUse, Handoff, Mortal, Output, Request, Sampling, Submitted};
use super::super::legs::{Abort, Heard};
use super::super::pool::CacheKeys;
use super::super::process::{Life, Rank};
use super::super::seat::Seat;
use super::engine::EmulatedTrtllm;
use super::params::{Params, RequestType};

/// Whatever goes wrong between the two sides.
const TRANSFER: &str = "Error in kv cache transfer for generation requests";

/// A sequence that is to be worked on.
pub(super) struct Leg {
    pub(super) engine: EmulatedTrtllm,
    pub(super) life: Arc<Life>,
    pub(super) rank: usize,
    /// Under which both sides know it, or the engine's own.
    pub(super) id: u64,
    pub(super) prompt: Vec<u32>,
    pub(super) keys: CacheKeys,
    pub(super) sampling: Sampling,
    pub(super) params: Option<Params>,
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
        match &self.params {
            Some(params) if params.is_deadly() => {
                self.life
                    .death
                    .die("TypeError: first_gen_tokens in the executor loop");
                std::future::pending().await
            }
            Some(params) => match params.request_type {
                RequestType::ContextOnly => self.context(params).await,
                RequestType::GenerationOnly => self.generation(params).await,
                RequestType::ContextAndGeneration => self.alone().await,
            },
            None => self.alone().await,
        }
    }

    fn rank(&self) -> &Rank {
        &self.life.ranks[self.rank]
    }

    fn seat(&self) -> Arc<Seat> {
        self.engine.seat(self.rank)
    }

    fn request(&self, handoff: Handoff, sampling: Sampling) -> Request {
        Request {
            // Two requests of one id are two to the scheduler.
            id: format!("{}-{:08x}", self.id, rand::random::<u32>()),
            prompt: self.prompt.clone(),
            keys: self.keys.clone(),
            sampling,
            handoff,
            report_hits: false,
            cache: CacheUse::Whole,
        }
    }

    /// Passes an output on; whether it was the last one.
    fn say(&self, output: Output) -> Result<bool, Abort> {
        let heard = Heard::of(output).ok_or_else(|| failed(TRANSFER))?;
        let last = matches!(&heard, Heard::Token { finish, .. } if finish.is_some());
        let _ = self.said.try_send(heard);
        Ok(last)
    }

    /// The whole request on this engine.
    async fn alone(&self) -> Result<(), Abort> {
        let request = self.request(Handoff::None, self.sampling.clone());
        let mut submitted = self.rank().core.submit(request);
        self.say_all(&mut submitted).await
    }

    /// Passes all outputs on.
    async fn say_all(&self, submitted: &mut Submitted) -> Result<(), Abort> {
        loop {
            let output = self.cancel.run_until_cancelled(submitted.next()).await;
            match output.ok_or_else(aborted)? {
                Some(output) => {
                    if self.say(output)? {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            }
        }
    }
}

/// Every failure of the engine is told as a fault of the client's.
fn failed(message: impl Into<String>) -> Abort {
    Abort {
        status: Some(400),
        message: message.into(),
    }
}

/// Nobody is there to be told.
fn aborted() -> Abort {
    failed("the request was cancelled")
}

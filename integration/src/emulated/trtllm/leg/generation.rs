//! Generation's leg: it asks context for the KV, says the first tokens again, and goes on from there.

use std::future::Future;
use std::net::SocketAddr;

use super::super::super::core::{Handoff, Remote};
use super::super::super::legs::Abort;
use super::super::super::rooms::{Kv, Line, Word};
use super::super::params::Params;
use super::{Leg, TRANSFER, aborted, failed};

impl Leg {
    pub(super) async fn generation(&self, params: &Params) -> Result<(), Abort> {
        let at = params.context().ok_or_else(|| failed(TRANSFER))?;
        let mut line = self.bounded(self.ask(at, params)).await??;
        let kv = self.bounded(kv(&mut line)).await??;
        let needed = self
            .prompt
            .len()
            .div_ceil(self.rank().core.config().block_size as usize);
        if kv.blocks.len() < needed {
            return Err(failed(TRANSFER));
        }
        self.receive(params, kv).await
    }

    /// What is waited for until the client leaves or it has taken too long.
    async fn bounded<T>(&self, work: impl Future<Output = T>) -> Result<T, Abort> {
        let timed_out = async {
            match self.engine.config().patience.transfer {
                Some(bound) => tokio::time::sleep(bound).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(aborted()),
            done = work => Ok(done),
            () = timed_out => Err(failed(format!("Request {} timed out", self.id))),
        }
    }

    async fn ask(&self, at: SocketAddr, params: &Params) -> Result<Line, Abort> {
        let id = params.request_id().ok_or_else(|| failed(TRANSFER))?;
        let line = Line::to(at, id, params.generation_first).await;
        line.ok_or_else(|| failed(TRANSFER))
    }

    async fn receive(&self, params: &Params, kv: Kv) -> Result<(), Abort> {
        let regions = kv.regions().ok_or_else(|| failed(TRANSFER))?;
        let (seat, id) = (self.seat(), kv.id.clone());
        let said = params.first_gen_tokens.as_ref();
        let first = said.and_then(|said| said.first().copied());
        let arrival = seat.transfer.expect(&id, regions);
        let handoff = Handoff::Fetch(Remote {
            engine_id: String::new(),
            host: String::new(),
            port: 0,
            request_id: kv.id,
            blocks: kv.blocks,
            keep_alive: false,
            cached: ctx_cached(params),
            first_token: Some(first.unwrap_or(kv.first_token)),
        });
        let request = self.request(handoff, self.sampling.clone());
        let mut submitted = self.rank().core.submit(request);
        let ended = async {
            // Who cannot load its KV drops the other end of this, and says so itself.
            let _ = self.bounded(arrival).await?;
            self.say_all(&mut submitted).await
        };
        let ended = ended.await;
        seat.transfer.forget(&id);
        ended
    }
}

/// Where the KV is; context that is gone, or knows of no such request, is one failure.
async fn kv(line: &mut Line) -> Result<Kv, Abort> {
    match line.hear().await {
        Some(Word::Kv(kv)) => Ok(kv),
        _ => Err(failed(TRANSFER)),
    }
}

/// Prompt tokens that context had cached, as it was told.
fn ctx_cached(params: &Params) -> usize {
    let cached = params.ctx_usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    cached
        .and_then(|cached| usize::try_from(cached).ok())
        .unwrap_or(0)
}

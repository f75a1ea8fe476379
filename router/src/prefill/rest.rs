//! A prefill leg whose ticket is out.
//!
//! Of an engine that hands over when it is done, nothing but what it cost is still to come. Of one that hands over while it
//! computes, the leg may fail yet, and decode would wait for KV that never comes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::call::EngineAnswer;
use baton_proto::{Error, Stage};

use super::machine::{Decision, Machine};
use super::{Spent, Waste};
use crate::calls::FrameStream;
use crate::fleet::{Reservation, Worker};
use crate::serve::{Attempt, Planned};
use crate::stall::unless_stalled;
use crate::view::Proof;

/// How long a prefill whose decode has its first token may take to say what it cost.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// A prefill's frames, as the machine reads them.
pub struct Frames {
    stream: FrameStream,
    machine: Machine,
}

impl Frames {
    /// From the first frame on.
    pub fn new(stream: FrameStream) -> Self {
        Self {
            stream,
            machine: Machine::default(),
        }
    }

    /// What follows from the next frame.
    pub async fn next(&mut self, patience: Duration) -> Result<Decision, Error> {
        let frame = self.stream.next(patience).await?;
        Ok(self.machine.on(frame))
    }
}

/// How a prefill fails that runs beside its decode.
#[derive(Debug)]
pub enum Fault {
    /// The leg failed.
    Failed(Error),
    /// The engine judged the request: the client is to have its answer.
    Judged(EngineAnswer),
}

/// A prefill leg whose ticket is out, with all that ends when it ends.
pub struct Leg {
    worker: Arc<Worker>,
    frames: Option<Frames>,
    computed: bool,
    /// What it cost; for nothing unless its KV is used.
    spent: Spent,
    /// Its place in the plan's books.
    reservation: Reservation,
    /// What the engine's report of its cache has to be compared with.
    proof: Proof,
}

impl Leg {
    /// A leg that has just brought its ticket. Its KV may be there already.
    pub fn new(
        worker: &Arc<Worker>,
        frames: Frames,
        computed: bool,
        spent: Spent,
        reservation: Reservation,
        proof: Proof,
    ) -> Self {
        let mut leg = Self {
            worker: Arc::clone(worker),
            frames: Some(frames),
            computed: false,
            spent,
            reservation,
            proof,
        };
        if computed {
            leg.done();
        }
        leg
    }

    /// The prompt's KV was computed, and is on its way or there.
    pub fn is_computed(&self) -> bool {
        self.computed
    }

    /// Waits until the prefill has failed, and notes what it says until then. Does not return otherwise: what becomes of a
    /// prefill that is done is for decode to show.
    pub async fn fault(&mut self, attempt: &Attempt<'_>, planned: &Planned) -> Fault {
        let time = attempt.time_left();
        if self.computed {
            // Its failure would change nothing any more.
            let _ = self.end(time).await;
        } else {
            let worker = Arc::clone(&self.worker);
            let end = pin!(self.end(time));
            match unless_stalled(attempt, planned, &worker, Stage::Prefill, end).await {
                Ok(None) => {}
                Ok(Some(answer)) => return Fault::Judged(answer),
                Err(error) => return Fault::Failed(error),
            }
        }
        std::future::pending().await
    }

    /// Waits until the prefill is done, or for the engine's judgement.
    async fn end(&mut self, patience: Duration) -> Result<Option<EngineAnswer>, Error> {
        while let Some(frames) = &mut self.frames {
            let decision = frames.next(patience).await;
            if !matches!(decision, Ok(Decision::Wait)) {
                self.frames = None;
            }
            match decision? {
                Decision::Finished(usage) => {
                    self.done();
                    self.proof.used(&usage);
                }
                Decision::Fail(_, Some(answer)) => return Ok(Some(answer)),
                Decision::Fail(error, None) => return Err(error),
                Decision::Wait | Decision::Decode { .. } | Decision::GenerateHere(_) => {}
            }
        }
        Ok(None)
    }

    fn done(&mut self) {
        if !std::mem::replace(&mut self.computed, true) {
            self.reservation.prefilled();
            self.reservation.held();
            self.spent.computed();
            self.worker.served();
        }
    }

    /// It was for nothing, for this reason.
    pub fn wasted(&mut self, cause: Waste) {
        self.spent.wasted(cause);
    }

    /// Decode has its KV. What the leg still says is taken beside the answer: breaking it off would have its sidecar cut it.
    pub fn used(mut self) {
        self.spent.used();
        if self.frames.is_some() {
            self.done();
            tokio::spawn(async move {
                // Its failure would change nothing any more.
                let _ = self.end(LAST_WORDS).await;
            });
        }
    }

    /// The engine has judged the request.
    pub fn judged(mut self) {
        self.spent.used();
        self.worker.served();
    }
}

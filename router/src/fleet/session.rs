//! A session: one sidecar, watched for as long as its registration holds.

use std::sync::Arc;
use std::time::Duration;

use baton_planner::Load;
use baton_proto::load::{LoadReport, Measured};
use baton_proto::watch::{Hello, WatchFrame};
use baton_proto::worker::{Tier, TierBlocks, WorkerInfo};
use baton_proto::{Epoch, Error, ErrorKind, PROTOCOL_VERSION, Source, Stage};
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use super::worker::{Told, Worker, WorkerState};
use crate::calls::{Calls, Resume};
use crate::view::{Bounds, KnownRank, KvView, PIECE_TOKENS, Resync};

/// Longest silence of a watch stream: three heartbeats.
const SILENCE: Duration = Duration::from_secs(6);

/// Longest pause between two attempts to watch.
const BACK_OFF: f64 = 2.0;

pub(super) struct Session {
    fleet: Arc<Fleet>,
    worker: Arc<Worker>,
    epoch: Epoch,
}

impl Session {
    pub(super) fn new(fleet: Arc<Fleet>, worker: Arc<Worker>, epoch: Epoch) -> Self {
        Self {
            fleet,
            worker,
            epoch,
        }
    }

    /// Watches until told to stop. While nothing is heard the worker is suspect.
    pub(super) async fn run(self, calls: Calls, stop: CancellationToken) {
        let mut failures = Failures::default();
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.watch(&calls, &mut failures) => ended,
            };
            match ended {
                Ended::Broken(error) => {
                    tracing::warn!(worker = %self.worker.id(), %error, "watch stream ended");
                    failures.silent += 1;
                    let ranks = self.view(KvView::lost);
                    self.change(|told| {
                        told.state = WorkerState::Suspect;
                        told.ranks = ranks;
                    });
                    if error.kind == ErrorKind::Timeout {
                        self.worker.fell_silent();
                    }
                }
                Ended::Unfit(reason) => {
                    tracing::warn!(worker = %self.worker.id(), %reason, "view is built anew");
                    failures.unfit += 1;
                    self.fleet.metrics.resynchronised(reason);
                    let ranks = self.view(KvView::give_up);
                    self.change(|told| told.ranks = ranks);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(failures.pause()) => {}
            }
        }
    }

    /// Reads one watch stream to its end, which is always an error.
    async fn watch(&self, calls: &Calls, failures: &mut Failures) -> Ended {
        let resume = self.worker.view().resume_after().map(|seq| Resume {
            epoch: self.epoch,
            seq,
        });
        let mut stream = match calls.watch(&self.worker, resume, SILENCE).await {
            Ok(stream) => stream,
            Err(error) => return Ended::Broken(error),
        };
        loop {
            match stream.next::<WatchFrame>(SILENCE).await {
                Ok(Some(frame)) => {
                    failures.silent = 0;
                    if let Err(ended) = self.take(frame, calls, failures).await {
                        return ended;
                    }
                }
                Ok(None) => return Ended::Broken(strange("the sidecar closed the stream")),
                Err(error) => return Ended::Broken(error),
            }
        }
    }

    async fn take(
        &self,
        frame: WatchFrame,
        calls: &Calls,
        failures: &mut Failures,
    ) -> Result<(), Ended> {
        match frame {
            WatchFrame::Hello(hello) => self.hello(hello, calls).await.map_err(Ended::Broken)?,
            WatchFrame::State { state } => self.change(|told| told.state = state.into()),
            WatchFrame::Load(load) => self.load(load),
            WatchFrame::Snapshot { .. }
            | WatchFrame::Event { .. }
            | WatchFrame::Heartbeat { .. } => self.apply(frame, failures).map_err(Ended::Unfit)?,
            WatchFrame::Unknown => {}
        }
        Ok(())
    }

    fn load(&self, load: LoadReport) {
        let told = self.worker.told();
        self.worker.books().report(planned_load(&load, told.info()));
        let stall = |load: &LoadReport| load.stall.as_ref().map(|stall| stall.value.clone());
        self.worker
            .heard_of_stalls(stall(&told.load).as_ref(), stall(&load).as_ref());
        if load.quarantined && !self.worker.is_quarantined() {
            self.fleet.quarantined(&self.worker);
        }
        self.change(|told| told.load = load);
        self.worker.may_have_room();
    }

    fn apply(&self, frame: WatchFrame, failures: &mut Failures) -> Result<(), Resync> {
        let proves = matches!(frame, WatchFrame::Heartbeat { .. });
        let changed = self.worker.view().take(frame)?;
        if proves {
            failures.unfit = 0;
        }
        if changed {
            let ranks = self.worker.view().known();
            let was_exact = self.worker.is_exactly_known();
            self.change(|told| told.ranks = ranks);
            if !was_exact && self.worker.is_exactly_known() {
                self.worker.expected().forget_approximate();
            }
        }
        Ok(())
    }

    /// Changes the view, and says what is known then.
    fn view(&self, change: impl FnOnce(&mut KvView)) -> Arc<[KnownRank]> {
        let mut view = self.worker.view();
        change(&mut view);
        view.known()
    }

    async fn hello(&self, hello: Hello, calls: &Calls) -> Result<(), Error> {
        if hello.protocol != PROTOCOL_VERSION {
            return Err(strange(&format!(
                "the sidecar speaks protocol {}",
                hello.protocol
            )));
        }
        if hello.worker != *self.worker.id() || hello.epoch != self.epoch {
            return Err(strange("another sidecar answers at this address"));
        }
        if self.worker.incarnation() != hello.incarnation {
            self.worker.expected().forget();
            self.worker.texts().forget();
            self.worker.books().forget_reports();
            self.worker.trust().forget();
            self.worker.forget_quarantine();
        }
        if let Some(info) = &hello.info {
            self.worker.books().is_of(&self.fleet.kind_of(info));
            self.fleet.tokenizers.meet(&self.worker, info);
            self.worker.view().bound(Bounds::of(info));
            self.worker.expected().bound(capacity(info));
            self.worker.texts().bound(text_capacity(info));
        }
        if let Some(life) = &hello.incarnation {
            // Before its state is read, and with it the first request can come.
            self.fleet
                .quarantines
                .renew(&self.worker, life, calls)
                .await?;
        }
        let labels = hello.info.as_ref().map(|info| &info.topology);
        let place = labels.map(|labels| self.fleet.planner.topology.place(labels));
        self.change(|told| {
            told.hello = Some(hello);
            told.place = Arc::new(place.unwrap_or_default());
        });
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Told)) {
        let mut told = self.worker.told().as_ref().clone();
        change(&mut told);
        self.worker.tell(told);
        self.fleet.refresh();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Requests may keep the worker for long; what it holds is of no use to anybody any more.
        self.worker.leave();
        self.fleet
            .planner
            .links
            .forget(self.worker.books().number());
    }
}

/// Why a watch stream ended.
enum Ended {
    /// It broke off.
    Broken(Error),
    /// What it said does not fit what it had said.
    Unfit(Resync),
}

/// What went wrong in a row.
#[derive(Default)]
struct Failures {
    /// Streams that brought nothing.
    silent: i32,
    /// Views that were given up, since the last one that was proven.
    unfit: i32,
}

impl Failures {
    /// How long to wait before the next attempt: longer each time, never the same for two routers.
    fn pause(&self) -> Duration {
        let failures = self.silent.max(self.unfit).min(10);
        let longest = (0.1 * 2f64.powi(failures)).min(BACK_OFF);
        Duration::from_secs_f64(rand::rng().random_range(0.05..=longest))
    }
}

/// A load report as plans need it.
fn planned_load(load: &LoadReport, info: Option<&WorkerInfo>) -> Load {
    let value = |measured: &Option<Measured<u32>>| measured.as_ref().map(|measured| measured.value);
    let (running, waiting) = (value(&load.running), value(&load.waiting));
    let of_device = |tiers: &[TierBlocks]| {
        let device = tiers.iter().find(|tier| tier.tier == Tier::Device);
        device.map(|tier| tier.blocks)
    };
    let free = load.free.as_ref().and_then(|free| of_device(&free.value));
    let used = info.and_then(|info| {
        let capacity = of_device(&info.capacity)?.saturating_mul(info.ranks.max(1).into());
        let blocks = capacity.saturating_sub(free?);
        Some(blocks.saturating_mul(info.block_size?.into()))
    });
    Load {
        seq: load.seq,
        sequences: running.map(|running| running.saturating_add(waiting.unwrap_or(0))),
        queued_tokens: load
            .queued_prefill_tokens
            .as_ref()
            .map(|queued| queued.value),
        kv_tokens: used,
    }
}

/// Blocks that fit into all tiers of all ranks, as far as that is told.
fn capacity(info: &WorkerInfo) -> Option<u64> {
    let of_rank = info.capacity.iter().map(|tier| tier.blocks);
    let sum = of_rank.fold(0, u64::saturating_add);
    (sum > 0).then(|| sum.saturating_mul(info.ranks.into()))
}

/// Pieces of texts that fit into them, roughly.
fn text_capacity(info: &WorkerInfo) -> Option<u64> {
    let tokens = capacity(info)?.saturating_mul(info.block_size?.into());
    Some(tokens / PIECE_TOKENS)
}

fn strange(why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Sidecar, Stage::Fleet, why)
}

#[cfg(test)]
mod tests;

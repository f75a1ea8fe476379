//! A session: one sidecar, watched for as long as its registration holds.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::watch::{Hello, WatchFrame};
use baton_proto::{Epoch, Error, ErrorKind, PROTOCOL_VERSION, Source, Stage};
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use super::worker::{Told, Worker, WorkerState};
use crate::calls::Calls;

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
        let mut failures = 0;
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.watch(&calls, &mut failures) => ended,
            };
            tracing::warn!(worker = %self.worker.id(), error = %ended, "watch stream ended");
            self.change(|told| told.state = WorkerState::Suspect);
            failures += 1;
            let longest = (0.1 * 2f64.powi(failures.min(10))).min(BACK_OFF);
            let pause = Duration::from_secs_f64(rand::rng().random_range(0.05..=longest));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads one watch stream to its end, which is always an error.
    async fn watch(&self, calls: &Calls, failures: &mut i32) -> Error {
        let mut stream = match calls.watch(&self.worker, SILENCE).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        loop {
            match stream.next::<WatchFrame>(SILENCE).await {
                Ok(Some(frame)) => {
                    *failures = 0;
                    if let Err(error) = self.take(frame, calls).await {
                        return error;
                    }
                }
                Ok(None) => return strange("the sidecar closed the stream"),
                Err(error) => return error,
            }
        }
    }

    async fn take(&self, frame: WatchFrame, calls: &Calls) -> Result<(), Error> {
        match frame {
            WatchFrame::Hello(hello) => self.hello(hello, calls).await?,
            WatchFrame::State { state } => self.change(|told| told.state = state.into()),
            WatchFrame::Load(load) => self.change(|told| told.load = load),
            // The view of KV blocks is not built yet; heartbeats have done their work by arriving.
            WatchFrame::Snapshot { .. }
            | WatchFrame::Event { .. }
            | WatchFrame::Heartbeat { .. }
            | WatchFrame::Unknown => {}
        }
        Ok(())
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
        if let Some(life) = &hello.incarnation {
            // Before its state is read, and with it the first request can come.
            self.fleet
                .quarantines
                .renew(&self.worker, life, calls)
                .await?;
        }
        self.change(|told| told.hello = Some(hello));
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Told)) {
        let mut told = self.worker.told().as_ref().clone();
        change(&mut told);
        self.worker.tell(told);
        self.fleet.refresh();
    }
}

fn strange(why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Sidecar, Stage::Fleet, why)
}

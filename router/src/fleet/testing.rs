//! Fleets that no sidecar is needed for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_index::Index;
use baton_proto::watch::{Hello, WatchFrame};
use baton_proto::worker::WorkerInfo;
use baton_proto::{Epoch, PROTOCOL_VERSION};
use http::Uri;

use super::worker::Told;
use super::{Snapshot, Worker, WorkerState, WorkerView};
use crate::metrics::Metrics;
use crate::queue::Queue;

/// How long a worker without exact events is believed to hold what it computed.
pub(crate) const TTL: Duration = Duration::from_secs(120);

/// A worker that is ready. It tells of no rank until [`hear`].
pub(crate) fn worker(id: &str, index: &Arc<Index>, info: WorkerInfo) -> WorkerView {
    let address = Uri::from_static("http://127.0.0.1:1");
    let queue = Queue::new(0, Metrics::default());
    let worker = Worker::new(
        id.parse().unwrap(),
        Epoch(1),
        address,
        Arc::clone(index),
        queue,
        TTL,
    );
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        worker: worker.id().clone(),
        incarnation: Some("life".parse().unwrap()),
        epoch: Epoch(1),
        info: Some(Box::new(info)),
    };
    worker.tell(Told {
        state: WorkerState::Ready,
        hello: Some(hello),
        ..Told::default()
    });
    WorkerView::of(&Arc::new(worker))
}

/// The worker after its watch stream brought these frames.
pub(crate) fn hear(view: &WorkerView, frames: impl IntoIterator<Item = WatchFrame>) -> WorkerView {
    let mut told = view.worker.told().as_ref().clone();
    for frame in frames {
        view.worker.view().take(frame).unwrap();
    }
    told.ranks = view.worker.view().known();
    view.worker.tell(told);
    WorkerView::of(&view.worker)
}

/// The worker after its watch stream broke off.
pub(crate) fn lose(view: &WorkerView) -> WorkerView {
    view.worker.view().lost();
    hear(view, [])
}

/// The worker after its engine stopped answering.
pub(crate) fn dead(view: &WorkerView) -> WorkerView {
    let mut told = view.worker.told().as_ref().clone();
    told.state = WorkerState::Suspect;
    view.worker.tell(told);
    WorkerView::of(&view.worker)
}

/// A fleet of these workers.
pub(crate) fn snapshot(workers: impl IntoIterator<Item = WorkerView>) -> Snapshot {
    Snapshot::new(workers.into_iter().collect(), HashMap::new())
}

//! Until when announced blocks may be reports of reused ones, which are no further copies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::KvView;

/// How long after a request's end its reports may still be under way: they leave the engine with its next batch of events.
const UNDER_WAY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Reports {
    requests: usize,
    last_ended: Option<Instant>,
}

impl Reports {
    pub(super) fn begin(&mut self) {
        self.requests += 1;
    }

    pub(super) fn end(&mut self) {
        self.requests -= 1;
        self.last_ended = Some(Instant::now());
    }

    pub(super) fn are_expected(&self) -> bool {
        let under_way = |ended: Instant| ended.elapsed() < UNDER_WAY;
        self.requests > 0 || self.last_ended.is_some_and(under_way)
    }
}

/// A request for which the engine reports the blocks that it reuses.
#[derive(Debug)]
pub struct ReportGuard {
    view: Arc<KvView>,
}

impl ReportGuard {
    pub(super) fn new(view: Arc<KvView>) -> Self {
        Self { view }
    }
}

impl Drop for ReportGuard {
    fn drop(&mut self) {
        self.view.reports_ended();
    }
}

//! Workers come and go while requests run.

use std::time::Duration;

use anyhow::Result;

use super::{Run, router_arguments};
use crate::client::{Check, Client, Outcome};
use crate::cluster::HandStarted;
use crate::engines;
use crate::http;

/// Requests that must have been served before, and again after, the fleet changes.
const LOAD_BEFORE_CHANGE: u64 = 60;
const LOAD_BOUND: Duration = Duration::from_mins(2);

impl Run<'_> {
    /// Under load: one decode worker is drained, its engine joins again under another name, the other decode worker ends.
    pub(super) fn churn(&mut self, beside: &HandStarted) -> Result<Outcome> {
        let mut arguments = router_arguments();
        arguments.extend([
            "--concurrency".to_owned(),
            self.args.concurrency.to_string(),
        ]);
        arguments.extend(
            ["--expect-decode", "decode-0", "--expect-decode", "decode-2"].map(str::to_owned),
        );
        let load = Client::start(
            "load while workers come and go",
            &self.cluster.python(),
            &engines::client("load.py"),
            &arguments,
        )?;
        let changed = self.change_fleet(beside, &load);
        // The load's own report says more than the first thing that went wrong here.
        let mut outcome = load.finish()?;
        let detail = changed
            .as_ref()
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default();
        outcome.checks.push(Check {
            name: "workers left and joined".to_owned(),
            ok: changed.is_ok(),
            detail,
        });
        Ok(outcome)
    }

    fn change_fleet(&mut self, beside: &HandStarted, load: &Client) -> Result<()> {
        self.serve_some(load)?;
        self.cluster.drain("decode-1")?;
        self.serve_some(load)?;
        self.cluster.attach(beside, "decode-2", 9104)?;
        self.cluster.wait_until_worker_is_ready("decode-2")?;
        self.serve_some(load)?;
        self.cluster.terminate("decode-0")?;
        self.serve_some(load)
    }

    fn serve_some(&mut self, load: &Client) -> Result<()> {
        let target = load.done() + LOAD_BEFORE_CHANGE;
        http::wait_for("the load goes on", LOAD_BOUND, || {
            self.cluster.check_running()?;
            Ok((load.done() >= target).then_some(()))
        })
    }
}

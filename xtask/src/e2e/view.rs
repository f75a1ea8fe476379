//! What router and sidecar know of an engine's KV cache is what it holds.
//!
//! The probe starts an engine of its own, with few blocks and an adapter, and a router and a sidecar beside it: it ends and
//! restarts each of them.

use std::process::Command;

use anyhow::Result;

use super::Run;
use crate::client::{Client, Outcome};
use crate::cluster::AGGREGATED;
use crate::engines::MODEL;
use crate::workspace;

/// A part of the integration crate.
const PROBE: &str = "baton-view-probe";

impl Run<'_> {
    pub(super) fn view(&mut self) -> Result<Outcome> {
        let installation = self.cluster.installation();
        let mut probe = Command::new(workspace::release_binary(PROBE));
        probe
            .arg("--binaries")
            .arg(workspace::release_binary(""))
            .arg("--logs")
            .arg(self.cluster.logs())
            .args(["--model", MODEL])
            .args(["--engine", self.args.engine.folder()]);
        if self.args.smoke {
            probe.arg("--smoke");
        }
        probe
            .arg("--")
            .args(installation.bare_command())
            .envs(installation.environment(&AGGREGATED));
        Client::start_program("exact view of a KV cache", &mut probe)?.finish()
    }
}

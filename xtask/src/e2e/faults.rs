//! Handoffs between real engines survive what can happen to anybody in them.
//!
//! The probe starts engines of its own, with few blocks and a short lease, their sidecars and a router: it freezes and kills
//! each of them.

use std::process::Command;

use anyhow::Result;

use super::Run;
use crate::client::{Client, Outcome};
use crate::cluster::AGGREGATED;
use crate::engines::MODEL;
use crate::workspace;

/// A part of the integration crate.
const PROBE: &str = "baton-fault-probe";

impl Run<'_> {
    pub(super) fn faults(&mut self) -> Result<Outcome> {
        let installation = self.cluster.installation();
        let mut probe = Command::new(workspace::release_binary(PROBE));
        probe
            .arg("--binaries")
            .arg(workspace::release_binary(""))
            .arg("--logs")
            .arg(self.cluster.logs())
            .args(["--model", MODEL])
            .args(["--engine", self.args.engine.folder()]);
        if !self.args.faults {
            probe.arg("--smoke");
        }
        probe
            .arg("--")
            .args(installation.bare_command())
            .envs(installation.environment(&AGGREGATED));
        Client::start_program("handoffs under faults", &mut probe)?.finish()
    }
}

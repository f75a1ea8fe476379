//! Namespaces of one run: a network of which only `lo` exists, and processes that cannot outlive it.
//!
//! Engines bind every interface they find and are several processes each, some of which survive the death of their
//! parent. Inside, ports are free, nothing is reachable from outside, and when this program ends, however it ends, the
//! kernel ends everything else.

use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use crate::system;

/// Set for the process that runs inside.
const INSIDE: &str = "BATON_XTASK_INSIDE";

/// Where sockets and other short-lived files of a run go: a filesystem that ends with it. Short, because the path of a
/// Unix socket may have 107 bytes.
pub(crate) const SCRATCH: &str = "/dev/shm";

/// True in the process that [`enter`] started.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this very command again, inside; fails as that one fails.
pub(crate) fn enter() -> Result<()> {
    let program = std::env::current_exe().context("could not find this program's own file")?;
    let mut words: Vec<&str> = Vec::new();
    if !Uid::effective().is_root() {
        words.extend(["unshare", "--user", "--map-root-user"]);
    }
    // Each link dies with its parent: setpriv's program with this process, the namespace's first process with unshare.
    // A new user namespace would clear the former, so it comes first.
    words.extend(["setpriv", "--pdeathsig", "KILL"]);
    words.extend([
        "unshare",
        "--net",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    let tool = system::find(words[0]).with_context(|| format!("{} is missing", words[0]))?;
    let status = Command::new(tool)
        .args(&words[1..])
        .arg("--")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .context("could not make namespaces for this run")?;
    if status.success() {
        return Ok(());
    }
    // What failed has been said inside.
    bail!("the run failed ({status})");
}

/// First thing inside: a loopback device that is up, and shared memory of its own.
pub(crate) fn prepare() -> Result<()> {
    tool("ip", &["link", "set", "lo", "up"])?;
    tool("mount", &["-t", "tmpfs", "tmpfs", SCRATCH])
}

fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    let program = system::find(name).with_context(|| format!("{name} is missing"))?;
    let status = Command::new(program)
        .args(arguments)
        .status()
        .with_context(|| format!("could not start {name}"))?;
    if !status.success() {
        bail!(
            "{name} {} failed in the namespaces of this run ({status})",
            arguments.join(" ")
        );
    }
    Ok(())
}

//! `baton-sidecar-sglang`: parse, build, run.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_daemon::run::daemon(baton_sidecar_sglang::run)
}

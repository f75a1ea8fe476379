//! `baton-router`: parse, build, run.

use std::process::ExitCode;

use baton_router::args::RouterArgs;

fn main() -> ExitCode {
    baton_daemon::run::daemon(|args: RouterArgs, stop| baton_router::run::run(args, stop))
}

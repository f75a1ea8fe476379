//! `baton-sidecar-sglang`: parse, build, run.

use std::process::ExitCode;

use baton_sidecar_sglang::args::SglangArgs;
use baton_sidecar_sglang::engine::SglangEngine;

fn main() -> ExitCode {
    baton_daemon::run::daemon(|args: SglangArgs, stop| async move {
        let (config, launch) = baton_sidecar_sglang::attach::plan(&args)?;
        let engine = SglangEngine::new(config)?;
        baton_sidecar_core::run::run(engine, args.core, launch, stop).await
    })
}

//! `baton-sidecar-trtllm`: parse, build, run.

use std::process::ExitCode;

use baton_sidecar_trtllm::args::TrtllmArgs;
use baton_sidecar_trtllm::engine::TrtllmEngine;

fn main() -> ExitCode {
    baton_daemon::run::daemon(|args: TrtllmArgs, stop| async move {
        let (config, launch) = baton_sidecar_trtllm::attach::plan(&args)?;
        let engine = TrtllmEngine::new(config)?;
        baton_sidecar_core::run::run(engine, args.core, launch, stop).await
    })
}

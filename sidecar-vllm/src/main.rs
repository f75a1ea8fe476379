//! `baton-sidecar-vllm`: parse, build, run.

use std::process::ExitCode;

use baton_sidecar_vllm::args::VllmArgs;
use baton_sidecar_vllm::engine::VllmEngine;

fn main() -> ExitCode {
    baton_daemon::run::daemon(|args: VllmArgs, stop| async move {
        let (config, launch) = baton_sidecar_vllm::attach::plan(&args)?;
        let engine = VllmEngine::new(config)?;
        baton_sidecar_core::run::run(engine, args.core, launch, stop).await
    })
}

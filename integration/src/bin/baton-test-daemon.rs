//! A router or a sidecar as a process of its own, for tests that look at a process: its memory, its file descriptors, its
//! last words. `BATON_TEST_AS` says which; the flags are its own.

use std::process::ExitCode;

use baton_router::args::RouterArgs;
use baton_sidecar_vllm::args::VllmArgs;
use baton_sidecar_vllm::engine::VllmEngine;

fn main() -> ExitCode {
    if std::env::var("BATON_TEST_AS").as_deref() == Ok("router") {
        return baton_daemon::run::daemon(|args: RouterArgs, stop| {
            baton_router::run::run(args, stop)
        });
    }
    baton_daemon::run::daemon(|args: VllmArgs, stop| async move {
        let (config, launch) = baton_sidecar_vllm::attach::plan(&args)?;
        let engine = VllmEngine::new(config)?;
        baton_sidecar_core::run::run(engine, args.core, launch, stop).await
    })
}

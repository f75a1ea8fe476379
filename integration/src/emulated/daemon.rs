//! An emulated engine as a process of its own.

use std::future::Future;
use std::ops::Deref;
use std::process::ExitCode;

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use super::process::Process;

/// Starts an engine, and ends with it: by a signal in order, by its own death with that of what it died.
pub fn run_process<E, F>(start: impl FnOnce() -> F) -> ExitCode
where
    E: Deref<Target = Process>,
    F: Future<Output = Result<E>>,
{
    match run(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run<E, F>(start: impl FnOnce() -> F) -> Result<()>
where
    E: Deref<Target = Process>,
    F: Future<Output = Result<E>>,
{
    // One thread, as one engine core has: what it costs can be told from what stands before it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        let engine = start().await?;
        tokio::select! {
            of = engine.died() => bail!("the engine died: {of}"),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        engine.kill().await;
        Ok(())
    })
}
